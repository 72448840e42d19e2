// The job's state, and its request.

import { badge, element } from "../../dom.js";
import { isOver, lostOf, whyOf } from "../../states.js";
import { since } from "../../times.js";
import { duration, number, size } from "../../units.js";
import { progressOf, workersText } from "./progress.js";

export function heading(job) {
  const [why, lost] = [whyOf(job), lostOf(job)];
  const { seconds_held: took = null } = job;
  const facts = [
    ...(job.unreadable ? [] : asked(job.spec)),
    ["attempt", job.attempt ? String(job.attempt) : null],
    ["clone of", job.source && element("a", { href: `/?job=${encodeURIComponent(job.source)}` }, job.source)],
    ["owner", job.owner],
    ["project", job.project],
    ["priority", job.priority === "normal" ? null : job.priority],
    ["created", since(job.created_at)],
    ["finished", job.finished_at && since(job.finished_at)],
    ["took", took === null ? null : duration(took)],
    ["labels", Object.entries(job.labels).map((each) => each.join("=")).join(", ") || null],
    ["archived", job.archived ? "yes" : null],
  ].filter(([, value]) => value !== null);
  return [
    element("div", { class: "title" }, element("h1", {}, job.name), badge(job.state)),
    element("code", { class: "quiet" }, job.id),
    why ? element("p", { class: "reason", key: "why" }, why) : null,
    lost ? element("p", { class: "reason bad", key: "lost" }, lost) : null,
    element("ul", { class: "facts" }, ...facts.map(([name, value]) =>
      element("li", { key: name }, element("span", { class: "quiet" }, `${name} `), element("b", {}, value)))),
    job.notes ? element("p", { class: "reason", key: "notes" }, element("span", { class: "quiet" }, "notes "), job.notes) : null,
  ];
}

// The title of the browser's tab, for readers on another tab: "62 % · running · digits". The share is of all trials'
// budgets, as lists show it: one that completed needs no more of its budget, however early it ended.
export function tabTitle(job, trials) {
  const shares = trials.map((trial) => (trial.outcome === "completed" ? 1 : trial.backend ? progressOf(trial, job.spec.budget).share : 0));
  const done = shares.reduce((sum, each) => sum + each, 0) / shares.length;
  const isUnderWay = job.started_at !== null && !isOver(job);
  return [...(isUnderWay ? [`${Math.floor(100 * done)} %`] : []), job.state, job.name].join(" · ");
}

const asked = (spec) => [
  ["workload", spec.workload.factory ?? spec.workload.kind],
  ["workers", workersText(spec.workers)],
  ["link", linkText(spec.link)],
  ["budget", budget(spec.budget)],
];

export const linkText = (link) =>
  (link.mode === "emulate" ? `emulated ${number(link.mbps)} Mbit/s, ${duration(link.latency_ms / 1000)}` : "as it is");

function budget(given) {
  return [
    given.seconds === null ? null : duration(given.seconds),
    given.steps === null ? null : `${given.steps} steps`,
    given.bytes === null ? null : size(given.bytes),
  ].filter((each) => each !== null).join(" or ");
}

export function waitingText(job) {
  if (job.unreadable) return `Another release of Wiretune has stored this job, and this one cannot read it: ${job.unreadable}.`;
  if (isOver(job)) return `This job ${job.state === "failed" ? "failed" : `was ${job.state}`} before it trained.`;
  if (job.state === "paused") return `It has not trained yet; "resume" has it go on.`;
  return job.state === "queued" ? "Waiting for its turn. Charts appear with the first report." : "Starting its workers.";
}

