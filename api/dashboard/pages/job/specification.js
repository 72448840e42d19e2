// The job as YAML, as it would be submitted; and of a clone, what differs from the job that it was made of.

import * as api from "../../api.js";
import { element, empty, patch, table } from "../../dom.js";
import { whenSeen } from "./sight.js";

const PLAIN = /^[A-Za-z_/][\w ./-]*$/;
const WORDS = /^(?:true|false|yes|no|on|off|null|none|y|n|~)$/i;

const isTree = (value) => value !== null && typeof value === "object" && Object.keys(value).length > 0;

function scalar(value) {
  if (Array.isArray(value)) return "[]";
  if (value !== null && typeof value === "object") return "{}";
  if (typeof value !== "string") return JSON.stringify(value);
  return PLAIN.test(value) && !WORDS.test(value) && value.trim() === value ? value : JSON.stringify(value);
}

// Plain values of JSON as YAML; short lists of scalars on one line.
export function yaml(value, indent = "") {
  if (!isTree(value)) return `${scalar(value)}\n`;
  if (Array.isArray(value)) {
    return value.map((item) => (isTree(item) ? `${indent}- ${yaml(item, `${indent}  `).trimStart()}` : `${indent}- ${scalar(item)}\n`)).join("");
  }
  return Object.entries(value).map(([name, item]) => {
    const isFlat = Array.isArray(item) && !item.some(isTree);
    if (isFlat && item.length) return `${indent}${scalar(name)}: [${item.map(scalar).join(", ")}]\n`;
    return isTree(item) ? `${indent}${scalar(name)}:\n${yaml(item, `${indent}  `)}` : `${indent}${scalar(name)}: ${scalar(item)}\n`;
  }).join("");
}

// What differs, by its place: [{pointer, before, after}]; undefined: it is not there.
export function differences(before, after, pointer = "") {
  if (JSON.stringify(before) === JSON.stringify(after)) return [];
  if (!isTree(before) || !isTree(after) || Array.isArray(before) !== Array.isArray(after)) return [{ pointer: pointer || "/", before, after }];
  return [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((name) => differences(before[name], after[name], `${pointer}/${name}`));
}

const short = (value) => (value === undefined ? "–" : JSON.stringify(value));

export function specification() {
  const text = element("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "the job as YAML" });
  const changes = element("div", {});
  const copied = element("button", { type: "button", onclick: copy }, "copy");
  const body = element("section", { class: "panel wide", id: "specification" },
    element("div", { class: "panel-head" }, element("h2", {}, "Specification"), copied), changes, text);
  let job = null;
  let parent = { of: null, spec: null };
  const look = whenSeen(body, () => show().catch((error) => patch(changes, element("p", { class: "fact" }, `A clone of ${job.source}: ${error.message}`))));

  function copy() {
    const byHand = () => (copied.textContent = "select it, and copy it by hand");
    navigator.clipboard?.writeText(text.textContent).then(() => (copied.textContent = "copied"), byHand) ?? byHand(); // none over plain HTTP
  }

  function update(given) {
    if (job && job.version === given.version) return;
    job = given;
    look();
  }

  async function show() {
    patch(text, yaml(job.spec));
    if (job.source === null) return patch(changes);
    if (parent.of !== job.source) parent = { of: job.source, spec: await parentOf(job.source) };
    const link = element("a", { href: `/?job=${encodeURIComponent(job.source)}` }, job.source);
    if (!parent.spec) return patch(changes, element("p", { class: "fact" }, "A clone of ", job.source, ", which is not there any more."));
    const found = differences(parent.spec, job.spec);
    patch(changes, element("p", { class: "fact" }, "A clone of ", link, found.length ? ":" : "; nothing differs."),
      found.length ? table("What differs", [["where", (row) => row.pointer, "name"], ["there", (row) => short(row.before), "text"],
        ["here", (row) => short(row.after), "text"]], found, { key: (row) => row.pointer }) : null);
  }

  return { body, update };
}

async function parentOf(id) {
  try {
    return (await api.job(id)).spec;
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}
