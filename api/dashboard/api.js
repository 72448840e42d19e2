// The public API. The session's cookie goes along by itself; no script can read it, and no key stays here.

export class NeedsKey extends Error {}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Returns whether there was a code. It was never sent anywhere, and is good once; it leaves the address bar all the same.
export async function takeCodeFromAddress() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return false;
  history.replaceState(null, "", location.pathname + location.search);
  await openSession(code);
  return true;
}

// Exchanges a key for a session at once. Raises NeedsKey for a wrong one.
export async function signIn(key) {
  const { code } = await post("/v1/sign-in-codes", {}, { Authorization: `Bearer ${key}` });
  await openSession(code);
}

const openSession = (code) =>
  send("/v1/sessions", {}, { method: "POST", timeoutMs: 10000,
    headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }) });

export const signOut = () => send("/v1/sessions", {}, { method: "DELETE", timeoutMs: 10000 });

// Raises NeedsKey, Refused with the problem's text, or what `fetch` raises if nothing answers in time.
async function send(path, parameters, { timeoutMs, ...request }) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null)
    .flatMap(([name, value]) => [value].flat().map((each) => [name, each])));
  const answer = await fetch(query.size ? `${path}?${query}` : path, {
    ...request,
    signal: AbortSignal.timeout(timeoutMs),
  });
  if (answer.status === 401) throw new NeedsKey(await detail(answer));
  if (!answer.ok) throw new Refused(answer.status, await detail(answer));
  return answer;
}

async function detail(answer) {
  try {
    return (await answer.json()).detail;
  } catch {
    return `${answer.status} ${answer.statusText}`; // a proxy's own words
  }
}

const get = async (path, parameters = {}) => (await send(path, parameters, { timeoutMs: 10000 })).json();

const post = async (path, parameters, headers, body) =>
  (await send(path, parameters, { method: "POST", timeoutMs: 60000, headers, body })).json();

// Only if the job still is as `job` shows it: one that has changed since answers 412, and nothing is done.
export const ask = (job, verb, body = {}) =>
  post(`/v1/jobs/${encodeURIComponent(job.id)}:${verb}`, {},
    { "If-Match": `"${job.version}"`, "Content-Type": "application/json" }, JSON.stringify(body));

export const clone = (id, changes, parameters, key) =>
  post(`/v1/jobs/${encodeURIComponent(id)}:clone`, parameters,
    { "Content-Type": "application/yaml", ...(key && { "Idempotency-Key": key }) }, changes.trim() || "{}");

export const newKey = () => [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(16)).join("-");

// Fetched, then handed to the browser under its name: a refusal is shown on the page, not in its place.
export async function download(id, what, parameters, name) {
  const answer = await send(`/v1/jobs/${encodeURIComponent(id)}/${what}`, parameters, { timeoutMs: 600000 });
  const address = URL.createObjectURL(await answer.blob());
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

export const me = () => get("/v1/me");
export const jobs = (cursor, limit) => get("/v1/jobs", { limit, cursor, count: true });
export const snapshot = (id, since, max_points) =>
  get(`/v1/jobs/${encodeURIComponent(id)}/snapshot`, { since, max_points });
export const comparison = ([first, ...others]) =>
  get(`/v1/jobs/${encodeURIComponent(first)}/comparison`, { other: others });
export const cards = (id, trial) => get(`/v1/jobs/${encodeURIComponent(id)}/stages`, { trial, posterior: true });
