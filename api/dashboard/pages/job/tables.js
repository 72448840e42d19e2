// The tables of a job: each arm's result, the chosen values, the bill.

import { element, empty, table } from "../../dom.js";
import { isOver, TRAINING } from "../../states.js";
import { besides, duration, level, loss, money, number, share, size, spread } from "../../units.js";
import { linkText } from "./heading.js";

export function stageTable(stages, job) {
  if (!stages.length) return empty(isOver(job) ? "No stage was decided." : "No stage is decided yet: the first search is under way.");
  const open = TRAINING.includes(job.state) ? "runs" : "not finished";
  const result = (stage) => (stage.num_steps === null ? open : stage.num_steps === 0 ? "rewound" : String(stage.num_steps));
  return table("What was chosen, and why", [
    ["trial", (stage) => stage.label, "name"],
    ["stage", (stage) => String(stage.stage), "number"],
    ["from step", (stage) => String(stage.first_step), "number"],
    ["committed", result, "number"],
    ["learning rate", (stage) => number(stage.learning_rate), "number"],
    [[...new Set(stages.map((stage) => stage.level_name))].sort().join(" or "), (stage) => level(stage.level, stage.level_name), "number"],
    ...(stages.some((stage) => besides(stage.values) !== "") ? [["besides", (stage) => besides(stage.values), ""]] : []),
    ["measured density", (stage) => share(stage.density), "number"],
    ["forecast", (stage) => spread(stage.forecast, stage.forecast_std, loss, (std) => number(std, 2)), "number"],
    ["probes", (stage) => String(stage.probes.length), "number"],
    ["search", (stage) => duration(stage.search_seconds), "number"],
  ], stages, { note: (stage) => stage.reason, key: (stage) => `${stage.trial_id} ${stage.stage}` });
}

// A mean over seeds and half its interval; one seed has no known spread.
const interval = (estimate, write) =>
  spread(estimate?.mean, estimate && estimate.high !== null ? estimate.high - estimate.mean : null, write);

export function armTable(report) {
  const metrics = Object.keys(report.metric_directions).sort();
  const caption = `Means over finished seeds ± ${share(report.confidence)} interval`;
  const name = (arm) => (arm.arm === report.best_arm ? element("b", {}, `${arm.arm} (best ${report.metric})`) : arm.arm);
  return table(caption, [
    ["arm", name, "name"],
    ["controller", (arm) => arm.controller, ""],
    ["seeds", (arm) => `${arm.num_finished} of ${arm.num_trials}`, "number"],
    ["validation loss", (arm) => interval(arm.validation_loss, loss), "number"],
    ...metrics.map((metric) => [metric, (arm) => interval(arm.validation_metrics[metric], loss), "number"]),
    ["sent", (arm) => interval(arm.bytes_sent, size), "number"],
    ["to target", (arm) => interval(arm.seconds_to_target, duration), "number"],
    ["diverged", (arm) => String(arm.num_diverged), "number"],
  ], report.arms, { key: (arm) => arm.arm });
}

// When the first arm reached another's final result; with several seeds, see the table.
export function crossings(report) {
  const first = report.arms[0].arm;
  return report.trials.filter((trial) => trial.crossing).map((trial) => {
    const { value: goal, seconds: reached, other_seconds: other } = trial.crossing;
    const where = `the ${report.metric} at which ${trial.arm} ended (${loss(goal)})`;
    return element("p", { class: "fact" }, reached === null ? `${first} did not reach ${where}.`
      : `${first} reached ${where} after ${duration(reached)} instead of ${duration(other)}.`);
  });
}

// Notes that the figures do not show; the service writes the sentences.
export function notes(trials) {
  return trials.flatMap((trial) => trial.notes.map((note) => element("p", { class: "fact" }, `${trial.label}: ${note}.`)));
}

function metricNames(trials) {
  return [...new Set(trials.flatMap((trial) => Object.keys(trial.metric_directions)))].sort();
}

export function billTable(trials, job, prices) {
  const link = job.spec.link.mode === "emulate" ? `on an ${linkText(job.spec.link)} link` : "on the network as it is";
  const ratio = (bill) => (bill.bytes_sent && bill.bytes_dense ? `${(bill.bytes_dense / bill.bytes_sent).toFixed(1)}×` : "–");
  const sum = trials.reduce((total, trial) => total + (trial.cost?.money ?? 0), 0);
  const costs = prices ? `; all trials cost ${money(sum, prices.currency)} (${pricesText(prices)})` : "";
  return table(`Bytes of one worker, time on the training clock, ${link}${costs}`, [
    ["trial", (trial) => trial.label, "name"],
    ["state", (trial) => (trial.outcome ?? unfinished(trial, job)) + (trial.line === "insurance" ? ", own schedule" : ""), ""],
    ["steps", (trial) => String(trial.step), "number"],
    ["sent", (trial) => size(trial.bill.bytes_sent), "number"],
    ["dense", (trial) => (trial.bill.bytes_dense ? size(trial.bill.bytes_dense) : "–"), "number"],
    ["ratio", (trial) => ratio(trial.bill), "number"],
    ...(trials.some((trial) => trial.bill.bytes_within_nodes)
      ? [["within nodes", (trial) => size(trial.bill.bytes_within_nodes), "number"]] : []),
    ["search", (trial) => duration(trial.bill.seconds_search), "number"],
    ["training", (trial) => duration(trial.seconds), "number"],
    ...(trials.some((trial) => trial.bill.steps_timed) ? [["waited for the exchange", waited, "number"]] : []),
    ...(prices ? [["worker-hours", (trial) => number(trial.cost?.worker_hours ?? null), "number"],
      ["cost", (trial) => money(trial.cost?.money ?? null, prices.currency), "number"]] : []),
    ["validation loss", (trial) => loss(trial.validation_loss), "number"],
    ...metricNames(trials).map((name) => [name, (trial) => loss(trial.validation_metrics[name] ?? null), "number"]),
    ...(trials.some((trial) => trial.bill.steps_insurance) ? [["insurance", insurance, "number"]] : []),
    ...(trials.some((trial) => trial.bill.repairs) ? [["repairs", repairs, "number"]] : []),
    ...(trials.some((trial) => Object.keys(trial.bill.absences).length) ? [["averages missed", absences, ""]] : []),
    ...(trials.some((trial) => Object.keys(trial.bill.steps_by_workers).length > 1) ? [["steps by workers", byWorkers, ""]] : []),
  ], trials, { key: (trial) => trial.trial_id });
}

const pricesText = ({ worker_hour: hour, gb, currency }) => [
  hour === null ? "" : `${money(hour, currency)} a worker-hour`, gb === null ? "" : `${money(gb, currency)} a GB`].filter((text) => text !== "").join(", ");

// The cost of each competing exchange, most steps first.
export function optionTables(trials) {
  const rows = trials.flatMap((trial) => Object.entries(trial.bill.by_option)
    .map(([option, took]) => ({ label: trial.label, option, ...took })).sort((one, other) => other.steps - one.steps));
  return rows.length ? [table("Steps by option: bytes of one worker, time of the steps themselves", [
    ["trial", (row) => row.label, "name"],
    ["option", (row) => row.option, ""],
    ["steps", (row) => String(row.steps), "number"],
    ["of them probes", (row) => String(row.steps_search), "number"],
    ["sent", (row) => size(row.bytes_sent), "number"],
    ["in steps", (row) => duration(row.seconds), "number"],
  ], rows, { key: (row) => `${row.label} ${row.option}` })] : [];
}

// The user's own schedule, trained next to the search: not part of the sent bytes.
const insurance = ({ bill }) =>
  (bill.steps_insurance ? `${bill.steps_insurance} steps, ${size(bill.bytes_insurance)}` : "–");

// The share of timed steps in which training waited for the exchange.
const waited = ({ bill }) => {
  const steps = bill.seconds_compute + bill.seconds_exposed;
  return steps ? share(bill.seconds_exposed / steps) : "–";
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

