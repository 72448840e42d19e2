// The public API. The session's cookie goes along by itself; no script can read it, and no key stays here.

import { setClock } from "./clock.js";
import { save } from "./files.js";

export class NeedsKey extends Error {}

export const UNREADABLE = "/problems/unreadable-job"; // another release has stored it

// By a problem document (RFC 9457). Where the service itself failed, the request's id leads to the line in its log.
export class Refused extends Error {
  constructor(status, { detail, type, request_id: requestId, errors = [] }) {
    super(status >= 500 && requestId ? `${detail} (request ${requestId})` : detail);
    this.status = status;
    this.type = type;
    this.errors = errors; // each with the pointer of the field at fault
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

function openSession(code) {
  caller = null;
  return send("/v1/sessions", {}, { method: "POST", timeoutMs: 10000,
    headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }) });
}

export const signOut = () => send("/v1/sessions", {}, { method: "DELETE", timeoutMs: 10000 });

// Raises NeedsKey, Refused with the problem's text, or what `fetch` raises; also if the service says nothing for so long.
// `read` takes the body, each part of which renews the time. Without it the answer is returned as it begins, and its body
// has no time limit: it may be a download, and the service cuts off who takes nothing.
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

// The same answer, which calls `renew` now and with each part of its body, which it hands to it.
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

const get = (path, parameters = {}) => send(path, parameters, { timeoutMs: 10000, read: json });

const post = (path, parameters, headers, body) =>
  send(path, parameters, { method: "POST", timeoutMs: 60000, headers, body, read: json });

// Only if the job still is as `job` shows it: one that has changed since answers 412, and nothing is done.
export const ask = (job, verb, body = {}) =>
  post(`/v1/jobs/${encodeURIComponent(job.id)}:${verb}`, {},
    { "If-Match": `"${job.version}"`, "Content-Type": "application/json" }, JSON.stringify(body));

const change = (job, method, body) => send(`/v1/jobs/${encodeURIComponent(job.id)}`, {}, { method, timeoutMs: 60000,
  headers: { "If-Match": `"${job.version}"`, "Content-Type": "application/json" }, body: body && JSON.stringify(body) });

export const edit = (job, patch) => change(job, "PATCH", patch);
export const remove = (job) => change(job, "DELETE");

const TEXT = { "Content-Type": "application/yaml" }; // JSON is YAML, too
export const validate = (text) => post("/v1/jobs:validate", {}, TEXT, text);
// `source`: the id of the job that it is a clone of, if it is one.
export const submit = (text, key, source) => post("/v1/jobs", { source }, { ...TEXT, "Idempotency-Key": key }, text);

export const predict = (asked) => post("/v1/predictions", {}, { "Content-Type": "application/json" }, JSON.stringify(asked));

export const newKey = () => [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(16)).join("-");

// Fetched, then handed to the browser under its name: a refusal is shown on the page, not in its place.
// Calls `tell` with how many bytes are there, and of how many; null where that is not known.
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

// Who is signed in; `may` lists what their role allows them to do to what is their own.
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
  get(`/v1/jobs/${encodeURIComponent(id)}/snapshot`, { since, max_points });
export const steering = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/steering`);
export const cards = (id, trial, stage) => get(`/v1/jobs/${encodeURIComponent(id)}/stages`, { trial, stage, posterior: true });
export const series = (id, name, about) => get(`/v1/jobs/${encodeURIComponent(id)}/metrics/${encodeURIComponent(name)}`, about);
export const comparison = ([first, ...others]) =>
  get(`/v1/jobs/${encodeURIComponent(first)}/comparison`, { other: others });
export const trials = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/trials`);
export const attempts = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/attempts`);
export const artifacts = (id) => get(`/v1/jobs/${encodeURIComponent(id)}/artifacts`);
export const MAX_EVENTS = 500; // of a page
export const happened = (id, kind, after) => get(`/v1/jobs/${encodeURIComponent(id)}/events`, { kind, after, limit: MAX_EVENTS });

// What an attempt printed behind a byte of its log (`part` is {offset}), or its last lines ({tail}: in how many bytes);
// and the bytes at which that begins and ends (null: a service of an earlier release does not say).
export const log = (id, attempt, part) => send(`/v1/jobs/${encodeURIComponent(id)}/logs`, { attempt, ...part }, { timeoutMs: 30000,
  read: async (answer) => {
    const end = answer.headers.get("x-log-end");
    return { start: Number(answer.headers.get("x-log-offset")), end: end && Number(end), bytes: await answer.arrayBuffer() };
  } });
