// The service's clock. Times from the service are compared with it, since the reader's clock may be wrong.

let aheadMs = 0;

export const now = () => Date.now() + aheadMs;

// `date`: the header of a fresh answer, or null if it has none.
export function setClock(date) {
  const ms = Date.parse(date);
  if (!Number.isNaN(ms)) aheadMs = ms - Date.now();
}
