// The cluster: its nodes, the workers on them, and the queue. The address says from which place of the queue on.

import * as api from "../api.js";
import { element, empty, patch, table } from "../dom.js";
import { since } from "../times.js";
import { figures, number, share } from "../units.js";

const ON_A_PAGE = 100;

export function clusterPage(root, _, asked) {
  const after = Number(asked.get("after")) || 0;
  const facts = element("div", {}, element("h1", {}, "Cluster"), empty("loading …"));
  const nodes = element("section", { class: "panel spaced" });
  const queue = element("section", { class: "panel spaced" });
  root.replaceChildren(facts, nodes, queue);
  document.title = "Cluster – Wiretune";

  async function refresh() {
    const [found, line] = await Promise.all([api.cluster(), api.queue({ after, limit: ON_A_PAGE })]);
    const ids = line.entries.map((entry) => entry.job_id);
    const { jobs } = ids.length ? await api.jobs({ id: ids, limit: ON_A_PAGE }) : { jobs: [] };
    patch(facts, ...summary(found));
    patch(nodes, element("h2", {}, "Nodes"), found.nodes.length ? nodeTable(found.nodes) : empty("No node is known now."));
    patch(queue, element("h2", {}, "Queue"), ...queued(line, after, new Map(jobs.map((job) => [job.id, job.name]))));
  }

  return { refresh, shows: (_, hasMoved) => hasMoved, ages: () => true };
}

const sum = (each, field) => each.reduce((total, one) => total + one[field], 0);

function summary({ embedded, reachable, reason, version, ray_version, nodes }) {
  const placed = nodes.flatMap((node) => node.placements);
  const taken = (field) => `${number(sum(placed, field))} of ${number(sum(nodes, field))} taken`;
  const known = [["Ray", `${ray_version}, ${embedded ? "started by the service" : "a cluster of its own"}`], ["nodes", String(nodes.length)],
    ["processors", taken("cpus")], ...(sum(nodes, "gpus") ? [["GPUs", taken("gpus")]] : []), ["workers", String(sum(placed, "workers"))]];
  const facts = [...(reachable ? known : []), ["Wiretune", version]];
  return [
    element("div", { class: "title" }, element("h1", {}, "Cluster"), element("span", { class: `badge ${reachable ? "succeeded" : "queued"}` }, reachable ? "Ray answers" : "no Ray")),
    reason ? element("p", { class: "reason" }, reason) : null,
    element("ul", { class: "facts" }, ...facts.map(([name, value]) =>
      element("li", { key: name }, element("span", { class: "quiet" }, `${name} `), element("b", {}, value)))),
  ];
}

function nodeTable(nodes) {
  const used = (field) => (node) => [`${number(sum(node.placements, field))} of ${number(node[field])}`,
    meter(sum(node.placements, field), node[field])];
  return table("Processors and GPUs that workers take", [
    ["node", (node) => element("span", {}, node.name, node.is_head ? element("span", { class: "label" }, "head") : null), "name"],
    ["address", ({ address }) => element("code", {}, address), ""],
    ["processors", (node) => element("div", {}, ...used("cpus")(node)), "number", (node) => sum(node.placements, "cpus")],
    ["GPUs", (node) => element("div", {}, ...(node.gpus ? [...used("gpus")(node), node.accelerator] : ["–"])), "number", (node) => sum(node.placements, "gpus")],
    ["memory", ({ memory_gb: memory }) => (memory == null ? "–" : `${number(memory)} GB`), "number", (node) => node.memory_gb ?? 0],
    ["runs", (node) => workers(node.placements), "text"],
  ], nodes, { key: (node) => node.id, isStacked: true });
}

function meter(value, max) {
  return element("progress", { value, max, "aria-hidden": "true" });
}

function workers(placements) {
  if (!placements.length) return "nothing";
  return element("ul", { class: "plain" }, ...placements.map(({ job, name, workers: count }, at) => {
    const what = job ? element("a", { href: `/?job=${encodeURIComponent(job)}` }, name) : "another project's job";
    return element("li", { key: job ?? at }, what, `: ${count} ${count === 1 ? "worker" : "workers"}`);
  }));
}

// Jobs of projects that the reader may not see have a place but are not listed; `of` counts them, too.
function queueText({ entries, of, projects, next_after: next }, after) {
  const areAllSeen = sum(projects, "waiting") === of;
  if (areAllSeen && !after && !next) return "In the order in which room is given";
  const some = after || !next ? entries.length : `The first ${entries.length}`;
  const place = after ? `, behind place ${after}` : "";
  return areAllSeen ? `${some} of ${of} jobs that wait${place}` : `${some} of yours${place}; ${of} wait in all`;
}

function nobody(of, after) {
  if (after) return empty(`None of yours waits behind place ${after}.`);
  if (!of) return empty("Nobody waits.");
  return empty(`None of yours waits; ${of === 1 ? "1 job of another project does" : `${of} jobs of other projects do`}.`);
}

function pages({ next_after: next }, after) {
  const link = (label, more) => element("a", { key: label, href: `/?cluster=now${more}` }, label);
  const links = [...(after ? [link("first page", "")] : []), ...(next ? [link("next page", `&after=${next}`)] : [])];
  return links.length ? element("nav", { class: "tools", "aria-label": "More of the queue" }, ...links) : null;
}

function queued(queue, after, names) {
  const job = ({ job_id: id }) => element("a", { href: `/?job=${encodeURIComponent(id)}` }, names.get(id) ?? id);
  return [
    queue.entries.length ? table(queueText(queue, after), [
      figures("place", ({ place }) => place.place, String),
      ["job", job, "name"],
      ["priority", ({ priority }) => priority, ""],
      ["why", ({ place }) => place.sentence, "text"],
      ["owner", ({ owner, project }) => `${owner} · ${project}`, ""],
      ["queued", ({ queued_at }) => since(queued_at), "", ({ queued_at }) => queued_at],
    ], queue.entries, { key: ({ job_id }) => job_id, isStacked: true }) : nobody(queue.of, after),
    pages(queue, after),
    queue.projects.length ? table("Projects by what they have, for their weight", [
      ["project", ({ project }) => project, "name"],
      figures("weight", ({ weight }) => weight, number),
      figures("running", ({ running }) => running, String),
      figures("waiting", ({ waiting }) => waiting, String),
      figures("workers", ({ workers: count }) => count, String),
      figures("share now", ({ share: now }) => now, share),
      figures("share lately", ({ recent }) => recent, share),
    ], queue.projects, { key: ({ project }) => project, isStacked: true }) : null,
  ];
}
