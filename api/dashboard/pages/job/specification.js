// The job as YAML, ready to submit; for a clone, also its differences from the original.

import * as api from "../../api.js";
import { differences, valueText } from "../../differences.js";
import { element, patch, table } from "../../dom.js";
import { yaml } from "../../yaml.js";
import { whenSeen } from "./sight.js";

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
      found.length ? table("Defaults filled in; –: it is not there, or has no value", [["field", (row) => element("code", {}, row.pointer), "name"],
        ["there", (row) => valueText(row.before), "value"], ["here", (row) => valueText(row.after), "value"]], found, { key: (row) => row.pointer, isStacked: true }) : null);
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
