// An attempt's output: its end, followed while it runs; search results; tracebacks first.

import * as api from "../../api.js";
import { now } from "../../clock.js";
import { element, empty, patch } from "../../dom.js";
import { size } from "../../units.js";
import { whenSeen } from "./sight.js";
import { plain, tracebacks } from "./traceback.js";

const FIRST_BYTES = 1_000_000; // of its end; all of it only for whoever asks: the link is the training's
const SHOWN_LINES = 1000;
const KEPT = 4_000_000; // characters in memory, the newest
const AGAIN_MS = 2000;
const BYTES_PER_MS = 1000;
const LATE_MS = 30000; // last lines may come so long after the end

export function logs(id) {
  const attempt = element("select", { onchange: () => more() });
  const search = element("input", { type: "search", placeholder: "find in the log", "aria-label": "find in the log", oninput: () => read?.text && write() });
  const following = element("input", { type: "checkbox", checked: "" });
  const trace = element("div", {});
  const told = element("p", { class: "quiet" });
  const text = element("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "log", "aria-live": "off" });
  const body = element("section", { class: "panel wide online", id: "log" },
    element("div", { class: "panel-head" }, element("h2", {}, "Log"),
      element("div", { class: "tools" }, element("label", {}, "attempt ", attempt), search, element("label", {}, following, " follow"))),
    trace, told, text);
  let job = null;
  let read = null; // {number, start, end, text, decoder, isShown}: what was read of an attempt's log, from byte to byte
  let isBusy = false;
  let isWanted = false; // again: something may have been printed since the answer that is under way
  let seen = ""; // the attempt, and whether it has ended: what there was to read when the job last changed
  let dueAt = 0;
  let quietAt = Infinity; // when, by the service's clock, nothing more of a job that has ended is waited for
  const look = whenSeen(body, more);

  function update(given) {
    if (given.finished_at === null) quietAt = Infinity;
    else if (quietAt === Infinity) quietAt = (job ? now() : Date.parse(given.finished_at)) + LATE_MS;
    job = given;
    body.hidden = !job.attempt;
    const numbers = Array.from({ length: job.attempt }, (_, at) => String(job.attempt - at));
    const isLast = !attempt.value || attempt.value === attempt.options[0]?.value;
    patch(attempt, ...numbers.map((number) => element("option", { value: number, key: number }, number)));
    if (isLast && numbers.length) attempt.value = numbers[0];
    const readable = `${job.attempt} ${job.finished_at}`;
    if (!body.hidden && seen !== readable) look();
    seen = readable;
  }

  const isLive = () => now() < quietAt && attempt.value === String(job.attempt);
  setInterval(() => job && !isBusy && body.isConnected && !document.hidden && following.checked && isLive() && Date.now() >= dueAt && look(), AGAIN_MS);

  // The text read of the chosen attempt; nothing of another stays visible.
  function chosen() {
    return read?.number === attempt.value ? read : begin(null);
  }

  // `at`: the byte from which to read; null: begin with the last lines.
  function begin(at) {
    read = { number: attempt.value, start: at, end: at, text: "", decoder: new TextDecoder(), isShown: false };
    for (const part of [trace, told, text]) patch(part);
    return read;
  }

  function readAll() {
    begin(0);
    text.focus(); // the button is gone
    more();
  }

  // Only new output.
  async function more() {
    const asked = chosen();
    if (isBusy) return void (isWanted = true);
    isBusy = true;
    try {
      const piece = await api.log(id, asked.number, asked.end === null ? { tail: FIRST_BYTES } : { offset: asked.end });
      if (asked === chosen()) take(piece);
    } catch (error) {
      if (asked === chosen()) failed(error);
    } finally {
      isBusy = false;
      dueAt = Date.now() + read.end / BYTES_PER_MS; // the service reads all of it each time
      if (isWanted || asked !== read) setTimeout(look); // another attempt was chosen meanwhile, or the job has ended
      isWanted = false;
    }
  }

  function take({ start, end, bytes }) {
    read.start ??= start;
    read.end = end ?? (read.end ?? start) + bytes.byteLength;
    read.text += read.decoder.decode(bytes, { stream: true });
    read.isCut ||= read.text.length > KEPT;
    read.text = read.text.slice(-KEPT);
    if (bytes.byteLength || !read.isShown) write();
  }

  function failed(error) {
    read.isShown = false; // the next answer takes the error's place, though nothing new was printed
    if (!read.text) patch(text, error.message);
    patch(told, read.text ? error.message : null);
  }

  function write() {
    read.isShown = true;
    const lines = read.text.replace(/\n$/, "").split("\n").map(plain);
    const asked = search.value.trim().toLowerCase();
    const found = asked ? lines.filter((line) => line.toLowerCase().includes(asked)) : lines;
    const shown = found.slice(-SHOWN_LINES);
    const counted = `${lines.length} ${lines.length === 1 ? "line" : "lines"}`;
    const held = read.start > 0 || read.isCut ? `the last ${counted} of ${size(read.end)}` : `${counted}, ${size(read.end)}`;
    patch(told, `${asked ? `${found.length} of ` : ""}${held}${shown.length < found.length ? `; here are the last ${shown.length} ` : " "}`,
      read.start > 0 ? element("button", { type: "button", onclick: readAll }, "read all of it") : null);
    const isAtEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
    const isNew = !text.childNodes.length;
    text.textContent = read.text ? shown.join("\n") : "Nothing was printed yet.";
    if (isNew || (following.checked && isAtEnd)) text.scrollTop = text.scrollHeight;
    patch(trace, ...tracebackParts(tracebacks(read.text)));
  }

  return { body, update };
}

// The last traceback; an earlier one is often its cause, printed before.
function tracebackParts(found) {
  const last = found.at(-1);
  if (!last) return [];
  const line = ({ file, line: at, name, code }) => element("li", {}, element("code", {}, `${file}:${at}`), name ? ` in ${name}` : "", code ? element("pre", {}, code) : null);
  const own = last.own.length ? [element("p", { class: "quiet" }, "In your code, the innermost call first:"), element("ol", {}, ...last.own.toReversed().map(line))] : [];
  const others = last.others.length ? [element("details", { key: "others" }, element("summary", {}, `${last.others.length} ${last.others.length === 1 ? "call" : "calls"} of libraries`),
    element("ol", {}, ...last.others.toReversed().map(line)))] : [];
  return [element("div", { class: "traceback", key: "traceback" }, element("p", { class: "bad" }, last.error || "an error"), ...own, ...others,
    found.length > 1 ? element("p", { class: "quiet" }, `${found.length - 1} more in the log`) : null)];
}
