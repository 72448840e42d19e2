// The public API. The browser sends the session's cookie by itself; no script can read it, and the page stores no key.

import { setClock } from "./clock.js";
import { save } from "./files.js";

export class NeedsKey extends Error {}

export const UNREADABLE = "/problems/unreadable-job"; // another release has stored it

// Made from a problem document (RFC 9457). If the service itself failed, the request's id finds the line in its log.
export class Refused extends Error {
  constructor(status, { detail, type, request_id: requestId, errors = [] }) {
    super(status >= 500 && requestId ? `${detail} (request ${requestId})` : detail);
    this.status = status;
    this.type = type;
    this.errors = errors; // each with the pointer of the field at fault
  }
}

// Returns whether the address had a code. Fragments are never sent, and a code works once; still, it is removed.
export async function takeCodeFromAddress() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return false;
  history.replaceState(null, "", location.pathname + location.search);
  await openSession(code);
  return true;
}

// Exchanges a key for a session at once. Raises NeedsKey if it is wrong.
export async function signIn(key) {
  const { code } = await post("/v1/sign-in-codes", {}, { Authorization: `Bearer ${key}` });
  await openSession(code);
}

function openSession(code) {
  caller = null;
  return send("/v1/sessions", {}, { method: "POST", timeoutMs: 10000,
    headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }) });
}

export const signOut = () => send("/v1/sessions", {}, { method: "DELETE", timeoutMs: 10000 });

// Raises NeedsKey, Refused with the problem's text, or what `fetch` raises, also if the service is silent for `timeoutMs`.
// `read` takes the body, each part of which restarts the timeout. Without it the answer is returned as it begins, with no
// timeout for its body: that may be a download, and the service cuts off clients that do not read.
async function send(path, parameters, { timeoutMs, read = null, ...request }) {
  const pairs = Object.entries(parameters).flatMap(([name, value]) => [value ?? []].flat().map((each) => [name, each]));
  const query = new URLSearchParams(pairs);
  const late = new AbortController();
  let timer = null;
  const renew = () => {
    clearTimeout(timer);
    timer = setTimeout(() => late.abort(), timeoutMs);
  };
  try {
    renew();
    const answer = await fetch(query.size ? `${path}?${query}` : path, { ...request, signal: late.signal });
    setClock(answer.headers.get("date"));
    if (!answer.ok) throw await refusal(renewing(answer, renew));
    return read ? await read(renewing(answer, renew)) : answer;
  } catch (error) {
    throw error.name === "AbortError" ? new Error(`The service has not answered within ${timeoutMs / 1000} s.`) : error;
  } finally {
    clearTimeout(timer);
  }
}

// The same answer; it calls `renew` now and with each part of its body, and passes that part.
function renewing(answer, renew) {
  renew();
  if (!answer.body) return answer;
  const transform = (part, parts) => {
    renew(part);
    parts.enqueue(part);
  };
  return new Response(answer.body.pipeThrough(new TransformStream({ transform })), answer);
}

async function refusal(answer) {
  const told = await problem(answer);
  if (answer.status !== 401) return new Refused(answer.status, told);
  caller = null;
  return new NeedsKey(told.detail);
}

async function problem(answer) {
  const told = (await answer.json().catch(() => null)) ?? {}; // a proxy may answer with a page of its own
  return { ...told, detail: told.detail ?? `${answer.status} ${answer.statusText}`,
    request_id: told.request_id ?? answer.headers.get("x-request-id") };
}

const json = (answer) => answer.json();

const get = (path, parameters = {}, timeoutMs = 10000) => send(path, parameters, { timeoutMs, read: json });
const LONG_MS = 60000; // what hundreds of trials recorded takes the service seconds to read, and longer under load

const post = (path, parameters, headers, body) =>
  send(path, parameters, { method: "POST", timeoutMs: 60000, headers, body, read: json });

// Acts only if the job is still as `job` shows it. Otherwise the service answers 412 and does nothing.
export const ask = (job, verb, body = {}) =>
  post(`/v1/jobs/${encodeURIComponent(job.id)}:${verb}`, {},
    { "If-Match": `"${job.version}"`, "Content-Type": "application/json" }, JSON.stringify(body));

export const stopTrial = (job, trialId) =>
  post(`/v1/jobs/${encodeURIComponent(job.id)}/trials/${encodeURIComponent(trialId)}:stop`, {},
    { "If-Match": `"${job.version}"`, "Content-Type": "application/json" }, "{}");

const change = (job, method, body) => send(`/v1/jobs/${encodeURIComponent(job.id)}`, {}, { method, timeoutMs: 60000,
  headers: { "If-Match": `"${job.version}"`, "Content-Type": "application/json" }, body: body && JSON.stringify(body) });

export const edit = (job, patch) => change(job, "PATCH", patch);
export const remove = (job) => change(job, "DELETE");

const TEXT = { "Content-Type": "application/yaml" }; // JSON is YAML, too
export const validate = (text) => post("/v1/jobs:validate", {}, TEXT, text);
// `source`: if the job is a clone, the id of the original.
export const submit = (text, key, source) => post("/v1/jobs", { source }, { ...TEXT, "Idempotency-Key": key }, text);

// The job that trains what one sample or arm of a job trains.
export const ofTrial = (id, trial) => post(`/v1/jobs/${encodeURIComponent(id)}:clone`, { trial, dry_run: true },
  { "Content-Type": "application/json" }, "{}").then(({ spec }) => spec);

export const predict = (asked) => post("/v1/predictions", {}, { "Content-Type": "application/json" }, JSON.stringify(asked));

export const newKey = () => [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(16)).join("-");

// Fetches a file, then saves it under its name, so that the page itself can show a refusal.
// Calls `tell` with the bytes so far and the total, null if that is unknown.
export async function download(href, name, tell) {
  const answer = await send(href, {}, { timeoutMs: 60000 });
  const whole = answer.headers.get("content-encoding") ? null : answer.headers.get("content-length");
  let taken = 0;
  const heard = renewing(answer, (part) => tell(taken += part?.byteLength ?? 0, whole && Number(whole)));
  save(name, await heard.blob());
}

let caller = null; // asked for once

export const forget = () => {
  caller = null;
};

// The signed-in user; `may` lists what their role allows on their own jobs and keys.
export const me = () => (caller ??= get("/v1/me").catch((error) => {
  caller = null;
  throw error;
}));

export const jobs = (filter) => get("/v1/jobs", filter);
export const job = (id) => get(`/v1/jobs/${encodeURIComponent(id)}`);
export const cluster = () => get("/v1/cluster");
export const queue = (page) => get("/v1/queue", page);
export const description = () => get("/openapi.json");
export const keys = () => get("/v1/keys");
export const createKey = (key) => post("/v1/keys", {}, { "Content-Type": "application/json" }, JSON.stringify(key));
export const actOnKey = (id, verb) => post(`/v1/keys/${encodeURIComponent(id)}:${verb}`, {}, {});
export const audit = (filter) => get("/v1/audit", filter);
export const snapshot = (id, since, max_points) =>
  get(`/v1/jobs/${encodeURIComponent(id)}/snapshot`, { since, max_points }, LONG_MS);
export const steering = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/steering`);
export const cards = (id, trial, stage) => get(`/v1/jobs/${encodeURIComponent(id)}/stages`, { trial, stage, posterior: true });
export const series = (id, name, about) => get(`/v1/jobs/${encodeURIComponent(id)}/metrics/${encodeURIComponent(name)}`, about, LONG_MS);
export const recorded = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/metrics`);
export const comparison = ([first, ...others]) =>
  get(`/v1/jobs/${encodeURIComponent(first)}/comparison`, { other: others });
export const trials = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/trials`);
export const attempts = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/attempts`);
export const artifacts = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/artifacts`);
export const MAX_EVENTS = 500; // of a page
export const happened = (id, kind, after) => get(`/v1/jobs/${encodeURIComponent(id)}/events`, { kind, after, limit: MAX_EVENTS });

// An attempt's output behind a byte of its log (`part` is {offset}), or its last lines ({tail}: at most so many bytes),
// with the bytes at which the text begins and ends (null: earlier releases do not send them).
export const log = (id, attempt, part) => send(`/v1/jobs/${encodeURIComponent(id)}/logs`, { attempt, ...part }, { timeoutMs: 30000,
  read: async (answer) => {
    const end = answer.headers.get("x-log-end");
    return { start: Number(answer.headers.get("x-log-offset")), end: end && Number(end), bytes: await answer.arrayBuffer() };
  } });
