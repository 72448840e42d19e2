// The tables of a job: each arm's result, the chosen values, the bill.

import { grouped } from "../../charts/look.js";
import { element, empty, table } from "../../dom.js";
import { isOver, TRAINING } from "../../states.js";
import { besides, duration, estimates, figures, level, loss, money, number, share, size, spread, tested } from "../../units.js";
import { linkText } from "./heading.js";
import { crossingOf } from "./summary.js";

export function stageTable(stages, job) {
  if (!stages.length) return empty(isOver(job) ? "No stage was decided." : "No stage is decided yet: the first search is under way.");
  const open = TRAINING.includes(job.state) ? "runs" : "not finished";
  const result = (stage) => (stage.num_steps === null ? open : stage.num_steps === 0 ? "rewound" : String(stage.num_steps));
  return table("What was chosen, and why", [
    ["trial", (stage) => stage.label, "name"],
    figures("stage", (stage) => stage.stage, String),
    figures("from step", (stage) => stage.first_step, String),
    ["committed", result, "number", (stage) => stage.num_steps],
    figures("learning rate", (stage) => stage.learning_rate, number),
    [[...new Set(stages.map((stage) => stage.level_name))].sort().join(" or "), (stage) => level(stage.level, stage.level_name), "number", (stage) => stage.level],
    ...(stages.some((stage) => besides(stage.values) !== "") ? [["besides", (stage) => besides(stage.values), ""]] : []),
    figures("measured density", (stage) => stage.density, share),
    ["forecast", (stage) => spread(stage.forecast, stage.forecast_std, loss, (std) => number(std, 2)), "number", (stage) => stage.forecast],
    figures("probes", (stage) => stage.probes.length, String),
    figures("search", (stage) => stage.search_seconds, duration),
  ], stages, { note: (stage) => element("span", {}, stage.reason), key: (stage) => `${stage.trial_id} ${stage.stage}` });
}

export function armTable(report) {
  const metrics = Object.keys(report.metric_directions).sort();
  const caption = report.sweep ? "Baseline over seeds" : `Means over finished seeds ± ${share(report.confidence)} interval, of two seeds both values`;
  const isBest = (arm) => arm.arm === report.best_arm && report.arms.length > 1;
  const name = (arm) => (!isBest(arm) ? arm.arm : element(report.best_is_clear === false ? "span" : "b", {}, `${arm.arm} (best ${report.metric})`));
  const each = (of) => (arm) => report.trials.filter((trial) => trial.arm === arm.arm && trial.outcome !== null).map(of);
  return table(caption, [
    ["arm", name, "name"],
    ["controller", (arm) => arm.controller, ""],
    ["seeds", (arm) => `${arm.num_finished} of ${arm.num_trials}`, "number", (arm) => arm.num_finished],
    estimates("validation loss", (arm) => arm.validation_loss, loss, each((trial) => trial.validation_loss)),
    ...metrics.map((metric) => estimates(metric, (arm) => arm.validation_metrics[metric], loss, each((trial) => trial.validation_metrics[metric]))),
    ...tested(report.arms).map((name) => estimates(`test ${name}`, (arm) => arm.test?.[name], loss, each((trial) => trial.test?.[name]))),
    estimates("sent", (arm) => arm.bytes_sent, size, each((trial) => trial.bill.bytes_sent)),
    estimates("to target", (arm) => arm.seconds_to_target, duration, each((trial) => trial.seconds_to_target)),
    figures("diverged", (arm) => arm.num_diverged, String),
  ], report.arms, { key: (arm) => arm.arm, isStacked: true });
}

// When the first arm reached another's final result; of several seeds, the median.
export function crossings(report) {
  const [{ arm: first }, ...others] = report.arms;
  return others.map(({ arm }) => ({ arm, found: crossingOf(report, arm) })).filter(({ found }) => found !== null).map(({ arm, found }) => {
    const where = `the ${report.metric} at which ${arm} ended (${loss(found.value)})`;
    const seeds = found.num_seeds > 1 ? ` (median of ${found.num_seeds} seeds)` : "";
    return element("p", { class: "fact" }, found.seconds === Infinity ? `${first} did not reach ${where}${seeds}.`
      : `${first} reached ${where} after ${duration(found.seconds)} instead of ${duration(found.other_seconds)}${seeds}.`);
  });
}

const NAMED = 3; // trials of which one note is

// Notes that the figures do not show; the service writes the sentences. One of hundreds of trials is told once.
export function notes(trials) {
  const told = grouped(trials.flatMap((trial) => trial.notes.map((note) => ({ label: trial.label, note }))), ({ note }) => note);
  return [...told].map(([note, rows]) => {
    const more = rows.length > NAMED ? ` and ${rows.length - NAMED} more` : "";
    return element("p", { class: "fact" }, `${rows.slice(0, NAMED).map(({ label }) => label).join(", ")}${more}: ${note}.`);
  });
}

function metricNames(trials) {
  return [...new Set(trials.flatMap((trial) => Object.keys(trial.metric_directions)))].sort();
}

// What adds up over trials, by its column: a row's value, and its text.
const summable = (currency) => ({
  steps: [(trial) => trial.step, String],
  sent: [({ bill }) => bill.bytes_sent, size],
  dense: [({ bill }) => bill.bytes_dense, (bytes) => size(bytes || null)],
  "within nodes": [({ bill }) => bill.bytes_within_nodes, size],
  "sent by all workers": [({ bill }) => bill.bytes_of_all, size],
  search: [({ bill }) => bill.seconds_search, duration],
  "training clock": [(trial) => trial.seconds, duration],
  "worker-hours": [({ cost }) => cost?.worker_hours ?? null, number],
  cost: [({ cost }) => cost?.money ?? null, (sum) => money(sum, currency)],
});

// Nothing is said of a sum of which a part is not known.
function totals(trials, columns) {
  const sumOf = (values) => (values.includes(null) ? null : values.reduce((sum, each) => sum + each, 0));
  return Object.fromEntries(Object.entries(columns).map(([name, [of, write]]) => [name, write(sumOf(trials.map(of)))]));
}

export function billTable(trials, job, prices) {
  const link = job.spec.link.mode === "emulate" ? `on an ${linkText(job.spec.link)} link` : "on the network as it is";
  const ratio = ({ bill }) => (bill.bytes_sent && bill.bytes_dense ? bill.bytes_dense / bill.bytes_sent : null);
  const columns = summable(prices?.currency);
  const total = totals(trials, columns);
  const summed = (name) => figures(name, ...columns[name]);
  const costs = prices ? `; all trials cost ${total.cost} (${pricesText(prices)})` : "";
  return table(`Bytes of one worker, time on the training clock, ${link}${costs}`, [
    ["trial", (trial) => trial.label, "name"],
    ["state", (trial) => (trial.outcome ?? unfinished(trial, job)) + (trial.line === "insurance" ? ", own schedule" : ""), ""],
    summed("steps"), summed("sent"), summed("dense"),
    figures("ratio", ratio, (saving) => (saving === null ? "–" : `${saving.toFixed(1)}×`)),
    ...(trials.some((trial) => trial.bill.bytes_within_nodes) ? [summed("within nodes")] : []),
    ...(trials.some((trial) => trial.bill.bytes_of_all !== null) ? [summed("sent by all workers")] : []),
    summed("search"), summed("training clock"),
    ...(trials.some((trial) => trial.bill.steps_timed) ? [figures("waited for the exchange", waited, share)] : []),
    ...(trials.some((trial) => trial.bill.memory_bytes) ? [figures("peak memory", (trial) => trial.bill.memory_bytes || null, size)] : []),
    ...(drops(job.spec) ? [figures("kept for backward", (trial) => trial.bill.saved_bytes, size)] : []),
    ...(prices ? [summed("worker-hours"), summed("cost")] : []),
    figures("validation loss", (trial) => trial.validation_loss, loss),
    ...metricNames(trials).map((name) => figures(name, (trial) => trial.validation_metrics[name] ?? null, loss)),
    ...tested(trials).map((name) => figures(`test ${name}`, (trial) => trial.test?.[name] ?? null, loss)),
    ...(trials.some((trial) => trial.bill.steps_insurance) ? [["insurance", insurance, "number", (trial) => trial.bill.bytes_insurance]] : []),
    ...(trials.some((trial) => trial.bill.repairs) ? [["repairs", repairs, "number", (trial) => trial.bill.repairs]] : []),
    ...(trials.some((trial) => Object.keys(trial.bill.absences).length) ? [["averages missed", absences, ""]] : []),
    ...(trials.some((trial) => Object.keys(trial.bill.steps_by_workers).length > 1) ? [["steps by workers", byWorkers, ""]] : []),
  ], trials, { key: (trial) => trial.trial_id, isStacked: true, total: { ...total, trial: "all trials" } });
}

const drops = ({ activations, arms }) => [activations, ...arms.map((arm) => arm.activations)].some((each) => each && each.kind !== "keep");

const pricesText = ({ worker_hour: hour, gb, currency }) => [
  hour === null ? "" : `${money(hour, currency)} a worker-hour`, gb === null ? "" : `${money(gb, currency)} a GB`].filter((text) => text !== "").join(", ");

// The cost of each competing exchange, most steps first.
export function optionTables(trials) {
  const rows = trials.flatMap((trial) => Object.entries(trial.bill.by_option)
    .map(([option, took]) => ({ label: trial.label, option, ...took })).sort((one, other) => other.steps - one.steps));
  return rows.length ? [table("Steps by option: bytes of one worker, time of the steps themselves", [
    ["trial", (row) => row.label, "name"],
    ["option", (row) => row.option, ""],
    figures("steps", (row) => row.steps, String),
    figures("of them probes", (row) => row.steps_search, String),
    figures("sent", (row) => row.bytes_sent, size),
    figures("in steps", (row) => row.seconds, duration),
  ], rows, { key: (row) => `${row.label} ${row.option}` })] : [];
}

// The user's own schedule, trained next to the search: not part of the sent bytes.
const insurance = ({ bill }) =>
  (bill.steps_insurance ? `${bill.steps_insurance} steps, ${size(bill.bytes_insurance)}` : "–");

// The share of timed steps in which training waited for the exchange.
const waited = ({ bill }) => {
  const steps = bill.seconds_compute + bill.seconds_exposed;
  return steps ? bill.seconds_exposed / steps : null;
};

// Replaced lost workers: not part of the training clock or of the sent bytes.
const repairs = ({ bill }) =>
  (bill.repairs ? `${bill.repairs}: ${duration(bill.seconds_recovery)}, ${size(bill.bytes_recovery)}` : "–");

// Workers that were absent when the others averaged.
const absences = ({ bill }) =>
  Object.entries(bill.absences).map(([rank, missed]) => `worker ${rank}: ${missed}`).join(", ") || "–";

// The number of steps by number of workers, the most workers first.
const byWorkers = ({ bill }) =>
  Object.entries(bill.steps_by_workers).reverse().map(([num, steps]) => `${num}: ${steps}`).join(", ");

export function unfinished(trial, job) {
  if (isOver(job)) return "not finished";
  if (trial.backend && job.state === "paused") return "paused";
  return trial.backend && TRAINING.includes(job.state) ? "training" : "waiting";
}

