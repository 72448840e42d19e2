// The cluster: its nodes, what runs on them, and who waits for them.

import * as api from "../api.js";
import { badge, element, empty, patch, since, table } from "../dom.js";
import { number } from "../units.js";

const WAITING = ["queued", "starting", "paused"];
const ON_A_PAGE = 200;
const LOOK_EVERY_MS = 5000; // Ray tells of no changes

export function clusterPage(root) {
  const facts = element("div", {}, empty("loading …"));
  const nodes = element("section", { class: "panel spaced" });
  const queue = element("section", { class: "panel spaced" });
  root.replaceChildren(element("h1", {}, "Cluster"), facts, nodes, queue);
  document.title = "Cluster – Wiretune";
  let timer = 0;

  async function refresh() {
    clearTimeout(timer);
    const [found, waiting] = await Promise.all([api.cluster(),
      api.jobs({ state: WAITING, order_by: "created", limit: ON_A_PAGE, count: true })]);
    patch(facts, ...summary(found));
    patch(nodes, element("h2", {}, "Nodes"), found.nodes.length ? nodeTable(found.nodes) : empty("No node is known now."));
    patch(queue, element("h2", {}, "Queue"), ...queued(waiting));
    timer = setTimeout(() => document.hidden || !facts.isConnected || refresh().catch(() => {}), LOOK_EVERY_MS);
  }

  return { refresh, shows: (_, hasMoved) => hasMoved };
}

const sum = (each, field) => each.reduce((total, one) => total + one[field], 0);

function summary({ embedded, reachable, reason, version, ray_version, nodes }) {
  const placed = nodes.flatMap((node) => node.placements);
  const taken = (field) => `${number(sum(placed, field))} of ${number(sum(nodes, field))} taken`;
  const known = [["Ray", `${ray_version}, ${embedded ? "started by the service" : "a cluster of its own"}`], ["nodes", String(nodes.length)],
    ["processors", taken("cpus")], ...(sum(nodes, "gpus") ? [["GPUs", taken("gpus")]] : []), ["workers", String(sum(placed, "workers"))]];
  const facts = [...(reachable ? known : []), ["Wiretune", version]];
  return [
    element("div", { class: "title" }, element("span", { class: `badge ${reachable ? "succeeded" : "queued"}` }, reachable ? "Ray answers" : "no Ray")),
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
    ["processors", (node) => element("div", {}, ...used("cpus")(node)), "number"],
    ["GPUs", (node) => element("div", {}, ...(node.gpus ? used("gpus")(node) : ["–"])), "number"],
    ["runs", (node) => workers(node.placements), "name"],
  ], nodes, { key: (node) => node.id });
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

// The oldest comes first, and first gets room. Who waits behind whom follows from that: all queued ones before it.
function queued({ jobs, total }) {
  if (!jobs.length) return [empty("Nobody waits.")];
  const before = new Map(jobs.filter(({ state }) => state === "queued").map((job, at, all) => [job.id, all.slice(0, at)]));
  const link = ({ id, name }) => element("a", { href: `/?job=${encodeURIComponent(id)}` }, name);
  return [table(total > jobs.length ? `The first ${jobs.length} of ${total} that wait` : "In the order in which room is given", [
    ["place", ({ id }) => (before.has(id) ? String(before.get(id).length + 1) : "–"), "number"],
    ["job", link, "name"],
    ["state", ({ state }) => badge(state), ""],
    ["why", ({ reason, state }) => reason || (state === "queued" ? "its turn comes with the next look at the queue" : "–"), "text"],
    ["behind", ({ id }) => (before.get(id)?.length ? link(before.get(id).at(-1)) : "–"), "name"],
    ["owner", ({ owner, project }) => `${owner} · ${project}`, ""],
    ["created", ({ created_at }) => since(created_at), ""],
  ], jobs, { key: (job) => job.id })];
}
