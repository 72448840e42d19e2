// The service's clock. Its times are compared with this one, whatever the reader's own clock says.

let aheadMs = 0;

export const now = () => Date.now() + aheadMs;

// `date`: the header of an answer that was made just now; null: it has none.
export function setClock(date) {
  const ms = Date.parse(date);
  if (!Number.isNaN(ms)) aheadMs = ms - Date.now();
}
