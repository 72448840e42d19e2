// The predicted cost of each method for the job in the form, on a stated link with stated workers.

import * as api from "../../api.js";
import { reason } from "../../dialog.js";
import { element, table } from "../../dom.js";
import { duration, figures, number, size } from "../../units.js";
import { yaml } from "../../yaml.js";
import { showProblems } from "./fields.js";

const OWN = "this job";
const DENSE = "dense";
// [name in the request, label, hint]
const FIELDS = [
  ["mbps", "Mbit/s", "of each host's link, each way; default: the job's, if it is emulated"],
  ["latency_ms", "latency, ms", "one way; default: the job's, if it is emulated, or 0"],
  ["workers", "workers", "default: the job's"],
  ["hosts", "hosts", "that share the workers evenly; default: as the job's per_node has its workers, or one for each"],
  ["compute_ms", "compute a step, ms", "of one worker that exchanges nothing"],
];
const MORE = [
  ["shapes", "shapes", "of the trained parameters, as 512x64,512; needed for a model of your own"],
  ["like", "like", "the recorded task whose losses stand for the job's; default: by the workload, if it is alike"],
  ["dense_steps", "dense steps", "to the loss, by dense training; default: the budget"],
  ["slowdown", "slowdown", "of computing, where workers share cores; default: 1"],
];

// `currentJob` resolves to the job as the service reads it, with its defaults; `write` puts another one into the form.
// `source` is the original of a clone: its bill gives the compute time of a step.
export function predictionPanel({ schema, field, source, currentJob, write }) {
  const given = {};
  let recordedMs; // undefined: nothing was timed
  const fields = element("div", {});
  const result = element("div", {});
  const status = element("p", { class: "quiet", role: "status" });
  const refused = element("p", { class: "refused", role: "alert" });
  const predict = element("button", { type: "button", onclick: () => during(ask) }, "Predict");
  const panel = element("details", { class: "panel section", id: "prediction" },
    element("summary", {}, element("h2", {}, "What would each method take?")),
    element("p", { class: "quiet" }, "A step, its bytes, and the time of the budget by every method that fits the job. Nothing is trained for it."),
    fields, element("div", { class: "buttons spaced" }, predict), refused, status, result);
  drawFields();
  if (source) recall();

  async function recall() {
    recordedMs = await api.trials(source.id).then(computeMs, () => undefined); // it can be written by hand
    drawFields();
  }

  function drawFields() {
    const made = ([name, label, hint]) => field(label, { ...typeOf(schema.properties[name]), description: hint }, `/${name}`,
      () => given[name], (value) => { given[name] = value; }, false);
    const measured = recordedMs === undefined ? "“wiretune predict JOB.yaml” measures it" : `default: ${number(recordedMs)}, as in “${source.name}”`;
    const first = FIELDS.map(([name, label, hint]) => made([name, label, name === "compute_ms" ? `${hint}; ${measured}` : hint]));
    fields.replaceChildren(...first, element("details", { class: "more" }, element("summary", {}, `${MORE.length} more`), ...MORE.map(made)));
  }

  async function during(act) {
    const pressed = document.activeElement;
    predict.disabled = true;
    refused.textContent = status.textContent = "";
    try {
      await act();
    } catch (error) {
      const others = showProblems(panel, error.errors ?? []);
      refused.textContent = error.errors?.length && !others.length ? "" : [reason(error), ...others.map(({ pointer, message }) => `${pointer}: ${message}`)].join(" ");
    } finally {
      predict.disabled = false;
      if (document.activeElement === document.body) pressed.focus(); // which was lost meanwhile
    }
  }

  // The job's own problems are already shown at its fields.
  const jobOrNone = () => currentJob().catch((error) => {
    if (!error.errors?.length) throw error;
    refused.textContent = "The job has problems: mend them first.";
    return null;
  });

  async function ask() {
    const job = await jobOrNone();
    if (!job) return;
    const found = await api.predict(question(job, given, recordedMs));
    showProblems(panel, []);
    result.replaceChildren(...drawn(found, (row) => during(() => use(row))));
    status.textContent = `${found.methods.length} rows.`;
  }

  async function use({ method, job: parts }) {
    const job = await jobOrNone();
    if (!job) return;
    write(withMethod(job, parts));
    const keeps = job.arms.some((arm) => arm.exchange || arm.sync) ? " An arm with an exchange or sync of its own keeps it." : "";
    status.textContent = `“${method}” is in the job: ${yaml(parts).trim().replaceAll("\n", ", ")}.${keeps}`;
  }

  return panel;
}

// The type of a field, or its type besides null, without its default: the hint shows that.
const typeOf = ({ default: _, anyOf: [type] = [{}], ...property }) => ({ ...property, ...type });

// The compute time of a step in milliseconds, from the bills of a job's trials; undefined if no step was timed. Samples of
// a sweep are left out, since they may have another model or batch size.
export function computeMs(trials) {
  const own = trials.filter(({ sample }) => !sample);
  const sum = (name) => own.reduce((all, { bill }) => all + bill[name], 0);
  return sum("steps_timed") ? (1000 * sum("seconds_compute")) / sum("steps_timed") : undefined;
}

// The request for a prediction: fields left out follow from the job.
export function question(job, given, recordedMs) {
  const { mbps, latency_ms } = job.link.mode === "emulate" ? job.link : {};
  const usual = { compute_ms: recordedMs, mbps, latency_ms, workers: Math.max(2, job.workers.count) };
  return { ...written(usual), ...written(given), job };
}

const written = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));

// The job with a method in place of its own. A part without a kind changes only some values.
export function withMethod({ exchange: _, sync: __, blocks: ___, ...job }, parts) {
  const changed = Object.entries(parts).map(([name, part]) => [name, part.kind ? part : { ...job[name], ...part }]);
  return { ...job, ...Object.fromEntries(changed) };
}

function drawn(found, use) {
  const hosts = found.hosts === found.workers ? "" : ` on ${found.hosts} hosts`;
  const order = found.task ? "the soonest at dense training's loss first, then by the step" : "the fastest step first";
  const title = `${found.workers} workers${hosts} over ${number(found.mbps)} Mbit/s and ${number(found.latency_ms)} ms, ${found.num_parameters.toLocaleString("en")} parameters; ${order}`;
  const loss = found.dense_steps === null ? "to the loss" : `to dense's loss at step ${found.dense_steps}`;
  return [
    table(title, [
      ["method", ({ method }) => (method === OWN ? element("strong", {}, method) : method)],
      ["choose", (row) => (row.method === OWN ? element("span", { class: "quiet" }, "chosen")
        : element("button", { type: "button", "aria-label": `use ${row.method}`, onclick: () => use(row) }, "use"))],
      ["a step, error bar", ({ step_s }) => lines(duration(step_s.expected), range(step_s)), "number", ({ step_s }) => step_s.expected],
      figures("sent in a step", ({ bytes_per_step }) => bytes_per_step, size),
      ["the budget", ({ budget_s, steps }) => (steps === null ? "–" : lines(duration(budget_s), `${Math.round(steps).toLocaleString("en")} steps`)), "number", ({ budget_s, steps }) => (steps === null ? null : budget_s)],
      [loss, (row) => (row.loss_s ? lines(duration(row.loss_s.expected), spanToLoss(row)) : "unknown"), "number", (row) => row.loss_s?.expected],
      ["beats dense", breakEven, "number"],
    ], found.methods, { key: ({ method }) => method }),
    found.methods.some(({ method }) => method === OWN) ? "" : element("p", { class: "quiet" }, "The job's own choice is not among them: it settles only while the job runs, or does not fit these workers."),
    element("h3", {}, "Steps to the loss, and how they are known"),
    element("ul", { class: "assumed" }, ...knownFrom(found.methods).map((each) => element("li", {}, each))),
    element("h3", {}, "Assumed"),
    element("ul", { class: "assumed" }, ...found.assumptions.map((each) => element("li", {}, each))),
  ];
}

// Why the steps to a loss are known or not, with the methods concerned; for dense training they are known by definition.
function knownFrom(methods) {
  const others = methods.filter(({ method }) => method !== DENSE);
  const reasons = [...new Set(others.map((each) => each.known_from))];
  if (reasons.length === 1) return reasons;
  return reasons.map((why) => `${why}: ${others.filter((each) => each.known_from === why).map(({ method }) => method).join("; ")}`);
}

const lines = (first, second) => element("span", {}, first, element("br", {}), element("span", { class: "quiet small" }, second));

const range = ({ low, high }) => `${duration(low)} to ${duration(high)}`;

// Open-ended if a recorded seed missed the loss.
export const spanToLoss = ({ loss_s: span, num_missed: missed }) => (missed ? `${duration(span.low)} or more` : range(span));

// The rates at which a method beats dense training.
export function breakEven({ method, pays_below_mbps: below, pays_above_mbps: above }) {
  if (method === DENSE) return "–";
  if (below === 0) return "at no rate";
  if (above === null) return below === null ? "at any rate" : `below ${number(below)} Mbit/s`;
  return below === null ? `above ${number(above)} Mbit/s` : `from ${number(above)} to ${number(below)} Mbit/s`;
}
