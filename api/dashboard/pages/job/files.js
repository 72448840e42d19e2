// The job's files with their sizes, and the attempts that made them.

import * as api from "../../api.js";
import { element, inTurn, patch, table, unanswered, whenChanged } from "../../dom.js";
import { since } from "../../times.js";
import { duration, figures, number, size } from "../../units.js";
import { whenSeen } from "./sight.js";

export function files(id) {
  const lines = element("div", {});
  const list = element("div", {});
  const body = element("section", { class: "panel wide online", id: "files" }, element("h2", {}, "Files"), lines, list);
  const lives = element("section", { class: "panel wide online", id: "attempts" }, element("h2", {}, "Attempts"));
  let job = null;
  let of = { files: null, attempts: null };
  const lookAtFiles = whenSeen(body, () => showFiles().catch((error) => patch(list, ...failed(error, "files", () => lookAtFiles()))));
  const lookAtAttempts = whenSeen(lives, () => showAttempts().catch((error) =>
    patch(lives, element("h2", {}, "Attempts"), ...failed(error, "attempts", () => lookAtAttempts()))));

  function failed(error, what, again) {
    of[what] = null;
    return unanswered(error, again);
  }

  const write = whenChanged((attempt) => patch(lines, element("p", { class: "files", key: id }, "Of the whole job: ",
    button(`/v1/jobs/${id}/metrics.csv`, `${id}-metrics.csv`, "metrics.csv"), button(`/v1/jobs/${id}/report`, `${id}-report.json`, "report"),
    attempt ? button(`/v1/jobs/${id}/logs`, `${id}-attempt-${attempt}.log`, "log") : null)));

  // `state`: the parts of a job that make or remove files.
  function update(given, state) {
    job = given;
    of.wanted = state;
    write(job.attempt);
    lives.hidden = !job.attempt; // what is hidden never comes into sight
    if (of.files !== state) lookAtFiles();
    if (of.attempts !== job.version) lookAtAttempts();
  }

  const showFiles = inTurn(async () => {
    if (!job || of.files === of.wanted) return;
    of.files = of.wanted;
    const found = await api.artifacts(id);
    const known = found.map((file) => file.num_bytes).filter((bytes) => bytes !== null);
    patch(list, table(`${found.length} ${found.length === 1 ? "file" : "files"}; ${size(known.reduce((sum, bytes) => sum + bytes, 0))} on storage; the others are made when they are asked for`, [
      ["file", (file) => button(file.href, file.name.replaceAll("/", "-"), file.name.replaceAll(`${id}.`, "")), "name", (file) => file.name],
      ["kind", (file) => file.kind, ""],
      figures("size", (file) => file.num_bytes, size),
      ["made", (file) => (file.created_at === null ? "–" : since(file.created_at)), "", (file) => file.created_at],
    ], found, { key: (file) => file.name }));
  });

  const showAttempts = inTurn(async () => {
    if (!job || of.attempts === job.version) return;
    of.attempts = job.version;
    const found = await api.attempts(id);
    const took = ({ began_at: began, ended_at: ended }) => (ended === null ? null : (Date.parse(ended) - Date.parse(began)) / 1000);
    patch(lives, element("h2", {}, "Attempts"), table("Lives of the job on the cluster", [
      ["attempt", (life) => String(life.number), ""],
      ["began", (life) => since(life.began_at), "", (life) => life.began_at],
      figures("took", took, (seconds) => (seconds === null ? "lives" : duration(seconds))),
      figures("workers", (life) => life.workers, number),
      ["ended", (life) => life.outcome ?? "–", ""],
      ["why", (life) => life.reason || "–", "text"],
    ], found, { key: (life) => life.number, isStacked: true }));
  });

  return { body, attempts: lives, update };
}

// Fetches a file, then saves it under its name, so that the page itself can show a refusal.
function button(href, name, label) {
  async function fetchIt({ currentTarget: pressed }) {
    const refused = pressed.nextSibling;
    const told = refused.nextSibling;
    // Looked up with each part: the list may have been drawn again.
    const tell = (taken, whole) => {
      pressed.disabled = true;
      told.textContent = ` ${size(taken)}${whole === null ? "" : ` of ${size(whole)}`}`;
    };
    refused.textContent = "";
    tell(0, null);
    await api.download(href, name, tell).catch((error) => { refused.textContent = ` ${error.message}`; });
    told.textContent = "";
    pressed.disabled = false;
    if (document.activeElement === document.body) pressed.focus(); // which was lost meanwhile
  }
  return element("span", { key: name }, element("button", { type: "button", onclick: fetchIt }, label),
    element("span", { class: "quiet", role: "alert" }), element("span", { class: "quiet" }));
}
