// The public API, and the key to it. The key lives in this tab only.

const STORED = "wiretune-key";

export class NeedsKey extends Error {}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// A key in the fragment was never sent anywhere; it leaves the address bar so that it is not copied along.
export function takeKeyFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!given) return;
  setKey(given);
  history.replaceState(null, "", location.pathname + location.search);
}

export function setKey(key) {
  sessionStorage.setItem(STORED, key);
}

export async function get(path, parameters = {}) {
  const key = sessionStorage.getItem(STORED);
  if (!key) throw new NeedsKey("This service needs an API key.");
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null));
  const answer = await fetch(query.size ? `${path}?${query}` : path, {
    headers: { Authorization: `Bearer ${key}` },
    signal: AbortSignal.timeout(10000),
  });
  if (answer.status === 401) throw new NeedsKey("This key is not known here.");
  if (!answer.ok) throw new Refused(answer.status, (await answer.json()).detail);
  return answer.json();
}

export const jobs = (cursor) => get("/v1/jobs", { limit: 50, cursor });
export const job = (id) => get(`/v1/jobs/${encodeURIComponent(id)}`);
export const trials = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/trials`);
export const stages = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/stages`);
export const metric = (id, name) =>
  get(`/v1/jobs/${encodeURIComponent(id)}/metrics/${name}`, { max_points: 1000 });

export async function schedule(id, trial) {
  try {
    return await get(`/v1/jobs/${encodeURIComponent(id)}/schedule`, { arm: trial.arm, seed: trial.seed });
  } catch (error) {
    if (error.status === 404) return null; // nothing is decided yet
    throw error;
  }
}
