// One job: where it is, its curves, its schedule, its bill.

import * as api from "./api.js";
import { bytesChart, lossChart, panel, scheduleChart } from "./charts.js";
import { controls } from "./controls.js";
import { decisions } from "./decisions.js";
import { age, badge, besides, element, empty, loss, number, seconds, share, size, table } from "./dom.js";

const OVER = ["succeeded", "failed", "cancelled"];

export function jobPage(root, id) {
  const head = element("div", {});
  const actions = controls(() => refresh().catch(() => {})); // the next beat tells what was wrong
  const curves = panel("Loss over the training clock", "wide");
  const schedule = panel("Learned schedule");
  const bytes = panel("Bytes");
  const arms = element("section", { class: "panel wide" });
  const stages = element("section", { class: "panel wide" });
  const why = decisions(id);
  const bill = element("section", { class: "panel wide" });
  const files = element("section", { class: "panel wide" });
  const drawFiles = onChange((offered) => files.replaceChildren(element("h2", {}, "Files"), ...fileLines(id, offered)));
  const panels = element("div", { class: "panels", hidden: "" },
    curves.body, arms, schedule.body, bytes.body, bill, files, stages, why.body);
  const waiting = element("div", {}, empty("loading …"));
  root.replaceChildren(head, actions.body, waiting, panels);
  let over = false;
  let newest = 0;

  async function refresh() {
    const mine = (newest += 1);
    const job = await api.job(id);
    if (mine !== newest) return; // asked before something else was: it may be older than what is shown
    document.title = `${job.name} – Wiretune`;
    head.replaceChildren(...heading(job));
    actions.update(job);
    over = OVER.includes(job.state);
    panels.hidden = job.started_at === null;
    waiting.replaceChildren(...(panels.hidden ? [element("div", { class: "panel" }, empty(waitingText(job)))] : []));
    if (!panels.hidden) await drawPanels(job);
  }

  async function drawPanels(job) {
    const [trials, report, decided, validation, training] = await Promise.all([
      api.trials(id), api.report(id), api.stages(id), api.metric(id, "validation_loss"), api.metric(id, "loss"),
    ]);
    const several = job.spec.seeds.length > 1;
    const names = job.spec.arms.map((arm) => arm.name);
    const levels = new Map(report.trials.map((trial) => [trial.trial_id, trial.level_name]));
    const known = new Map(trials.map((trial) => [trial.trial_id, {
      label: several ? `${trial.arm} seed ${trial.seed}` : trial.arm,
      arm_index: names.indexOf(trial.arm),
      level_name: levels.get(trial.trial_id),
      is_first_seed: trial.seed === job.spec.seeds[0],
    }]));
    const labelled = (each) => ({ ...each, ...known.get(each.trial_id) });
    const schedules = await Promise.all(trials.map((trial) => api.schedule(id, trial)));
    const found = schedules.filter((each) => each !== null).map(labelled);
    const boundaries = decided.filter((stage) => stage.trial_id === trials[0].trial_id && stage.stage > 0);
    arms.replaceChildren(element("h2", {}, "Arms"), armTable(report), ...(several ? [] : crossings(report)), ...notes(report.trials.map(labelled)));
    stages.replaceChildren(element("h2", {}, "Stages"), stageTable(decided.map(labelled)));
    const billed = trials.map(labelled);
    bill.replaceChildren(element("h2", {}, "Bill"), billTable(billed, job), ...optionTables(billed));
    const decidedIds = found.map((each) => each.trial_id);
    drawFiles({ attempt: job.attempt, trials: trials.map(labelled).map((trial) => offer(trial, decidedIds)) });
    await curves.draw(lossChart(training.map(labelled), validation.map(labelled)));
    await schedule.draw(scheduleChart(found, boundaries.map((stage) => stage.first_step)));
    await bytes.draw(bytesChart(trials.map(labelled)));
    await why.update(report.trials.map(labelled).map((trial) => ({ ...trial, 
      stages: decided.filter((stage) => stage.trial_id === trial.trial_id) })));
  }

  return { refresh, everyMs: () => (over ? 10000 : 1500) };
}

function heading(job) {
  const facts = [
    ["workload", job.spec.workload.kind],
    ["workers", String(job.spec.workers.count)],
    ["link", job.spec.link.mode === "emulate" ? `emulated ${job.spec.link.mbps} Mbit, ${job.spec.link.latency_ms} ms` : "as it is"],
    ["budget", budget(job.spec.budget)],
    ["attempt", String(job.attempt)],
    ["created", age(job.created_at)],
  ];
  return [
    element("div", { class: "title" }, element("h1", {}, job.name), badge(job.state)),
    element("code", { class: "quiet" }, job.id),
    job.reason ? element("p", { class: "reason" }, job.reason) : null,
    element("ul", { class: "facts" }, ...facts.map(([name, value]) =>
      element("li", {}, element("span", { class: "quiet" }, `${name} `), element("b", {}, value)))),
  ].filter((each) => each !== null);
}

function budget(given) {
  return [
    given.seconds === null ? null : `${given.seconds} s`,
    given.steps === null ? null : `${given.steps} steps`,
    given.bytes === null ? null : size(given.bytes),
  ].filter((each) => each !== null).join(" or ");
}

function waitingText(job) {
  if (OVER.includes(job.state)) return `This job ${job.state === "failed" ? "failed" : `was ${job.state}`} before it trained.`;
  if (job.state === "paused") return `It has not trained yet; "resume" has it go on.`;
  return job.state === "queued" ? "Waiting for its turn. Charts appear with the first report." : "Starting its workers.";
}

function stageTable(stages) {
  if (!stages.length) return empty("No stage is decided yet: the first search is under way.");
  const level = (stage) => (stage.level_name === "density" ? share(stage.level) : number(stage.level));
  const forecast = (stage) => (stage.forecast === null ? "–" : `${loss(stage.forecast)} ± ${number(stage.forecast_std, 2)}`);
  const result = (stage) => (stage.num_steps === null ? "runs" : stage.num_steps === 0 ? "rewound" : String(stage.num_steps));
  return table("What was chosen, and why", [
    ["trial", (stage) => stage.label, ""],
    ["stage", (stage) => String(stage.stage), "number"],
    ["from step", (stage) => String(stage.first_step), "number"],
    ["committed", result, "number"],
    ["learning rate", (stage) => number(stage.learning_rate), "number"],
    [[...new Set(stages.map((stage) => stage.level_name))].sort().join(" or "), level, "number"],
    ...(stages.some((stage) => besides(stage.values) !== "") ? [["besides", (stage) => besides(stage.values), ""]] : []),
    ["measured density", (stage) => share(stage.density), "number"],
    ["forecast", forecast, "number"],
    ["probes", (stage) => String(stage.probes.length), "number"],
    ["search", (stage) => seconds(stage.search_seconds), "number"],
  ], stages, (stage) => stage.reason);
}

// A mean over seeds and half its interval; nothing is known of the spread of one seed.
function interval(estimate, write) {
  if (!estimate) return "–";
  return estimate.high === null ? write(estimate.mean) : `${write(estimate.mean)} ± ${write(estimate.high - estimate.mean)}`;
}

function armTable(report) {
  const metrics = Object.keys(report.metric_directions).sort();
  const caption = `Means over finished seeds ± ${100 * report.confidence} % interval; target: where the worst arm ended`;
  const name = (arm) => (arm.arm === report.best_arm ? element("b", {}, `${arm.arm} (best ${report.metric})`) : arm.arm);
  return table(caption, [
    ["arm", name, ""],
    ["controller", (arm) => arm.controller, ""],
    ["seeds", (arm) => `${arm.num_finished} of ${arm.num_trials}`, "number"],
    ["validation loss", (arm) => interval(arm.validation_loss, loss), "number"],
    ...metrics.map((metric) => [metric, (arm) => interval(arm.validation_metrics[metric], loss), "number"]),
    ["sent", (arm) => interval(arm.bytes_sent, (bytes) => size(Math.round(bytes))), "number"],
    ["to the target", (arm) => interval(arm.seconds_to_target, seconds), "number"],
    ["diverged", (arm) => String(arm.num_diverged), "number"],
  ], report.arms);
}

// When the first arm got to where another ended; of several seeds the table tells.
function crossings(report) {
  const first = report.arms[0].arm;
  return report.trials.filter((trial) => trial.crossing).map((trial) => {
    const { loss: goal, seconds: reached, other_seconds: other } = trial.crossing;
    const where = `the loss at which ${trial.arm} ended (${loss(goal)})`;
    return element("p", { class: "fact" }, reached === null ? `${first} did not reach ${where}.`
      : `${first} reached ${where} after ${seconds(reached)} instead of ${seconds(other)}.`);
  });
}

// What the figures alone do not show; the service writes the sentences.
function notes(trials) {
  return trials.flatMap((trial) => trial.notes.map((note) => element("p", { class: "fact" }, `${trial.label}: ${note}.`)));
}

function metricNames(trials) {
  return [...new Set(trials.flatMap((trial) => Object.keys(trial.metric_directions)))].sort();
}

function billTable(trials, job) {
  const link = job.spec.link.mode === "emulate" ? `on an emulated ${job.spec.link.mbps} Mbit link` : "on the network as it is";
  const ratio = (bill) => (bill.bytes_sent && bill.bytes_dense ? `${(bill.bytes_dense / bill.bytes_sent).toFixed(1)}×` : "–");
  return table(`Bytes of one worker, elapsed seconds, ${link}`, [
    ["trial", (trial) => trial.label, ""],
    ["state", (trial) => (trial.outcome ?? unfinished(trial, job)) + (trial.line === "insurance" ? ", own schedule" : ""), ""],
    ["steps", (trial) => String(trial.step), "number"],
    ["sent", (trial) => size(trial.bill.bytes_sent), "number"],
    ["dense", (trial) => (trial.bill.bytes_dense ? size(trial.bill.bytes_dense) : "–"), "number"],
    ["ratio", (trial) => ratio(trial.bill), "number"],
    ...(trials.some((trial) => trial.bill.bytes_within_nodes)
      ? [["within nodes", (trial) => size(trial.bill.bytes_within_nodes), "number"]] : []),
    ["search", (trial) => seconds(trial.bill.seconds_search), "number"],
    ["training", (trial) => seconds(trial.seconds), "number"],
    ["validation loss", (trial) => loss(trial.validation_loss), "number"],
    ...metricNames(trials).map((name) => [name, (trial) => loss(trial.validation_metrics[name] ?? null), "number"]),
    ...(trials.some((trial) => trial.bill.steps_insurance) ? [["insurance", insurance, "number"]] : []),
    ...(trials.some((trial) => trial.bill.repairs) ? [["repairs", repairs, "number"]] : []),
    ...(trials.some((trial) => Object.keys(trial.bill.absences).length) ? [["averages missed", absences, ""]] : []),
  ], trials);
}

// What the exchanges, or optimizers, that competed took, most steps first.
function optionTables(trials) {
  const rows = trials.flatMap((trial) => Object.entries(trial.bill.by_option)
    .map(([option, took]) => ({ label: trial.label, option, ...took })).sort((one, other) => other.steps - one.steps));
  return rows.length ? [table("Steps by option: bytes of one worker, seconds of the steps themselves", [
    ["trial", (row) => row.label, ""],
    ["option", (row) => row.option, ""],
    ["steps", (row) => String(row.steps), "number"],
    ["of them probes", (row) => String(row.steps_search), "number"],
    ["sent", (row) => size(row.bytes_sent), "number"],
    ["in steps", (row) => seconds(row.seconds), "number"],
  ], rows)] : [];
}

// The user's own schedule, trained beside the search: outside of the bytes sent.
const insurance = ({ bill }) =>
  (bill.steps_insurance ? `${bill.steps_insurance} steps, ${size(bill.bytes_insurance)}` : "–");

// Lost workers that were replaced: outside of the training clock and of the bytes sent.
const repairs = ({ bill }) =>
  (bill.repairs ? `${bill.repairs}: ${seconds(bill.seconds_recovery)}, ${size(bill.bytes_recovery)}` : "–");

// Workers that were away when the others averaged.
const absences = ({ bill }) =>
  Object.entries(bill.absences).map(([rank, missed]) => `worker ${rank}: ${missed}`).join(", ") || "–";

function unfinished(trial, job) {
  if (OVER.includes(job.state)) return "not finished";
  return trial.backend ? (job.state === "paused" ? "paused" : "training") : "waiting";
}

// Draws anew only what has changed: a button that has the focus, or is being clicked, stays.
function onChange(draw) {
  let drawn = null;
  return (data) => {
    const now = JSON.stringify(data);
    if (now !== drawn) draw(data);
    drawn = now;
  };
}

// What there is to download of a trial.
const offer = ({ trial_id, label, arm, seed, weights_url, last_weights_url }, decidedIds) => ({
  trial_id, label, arm, seed, has_schedule: decidedIds.includes(trial_id), has_weights: weights_url !== null,
  has_last: last_weights_url !== null,
});

function fileLines(id, { attempt, trials }) {
  const ofJob = element("p", { class: "files" }, "Of the whole job: ",
    fileButton(id, "metrics.csv", {}, `${id}-metrics.csv`), fileButton(id, "report", {}, `${id}-report.json`),
    attempt ? fileButton(id, "logs", {}, `${id}-attempt-${attempt}.log`, "log") : null);
  return [ofJob, ...trials.filter((trial) => trial.has_schedule || trial.has_weights).map((trial) => trialLine(id, trial))];
}

function trialLine(id, { trial_id, label, arm, seed, has_schedule, has_weights, has_last }) {
  return element("p", { class: "files" }, `Of ${label}: `,
    has_schedule ? fileButton(id, "schedule", { arm, seed }, `${trial_id}.schedule.json`) : null,
    has_weights ? fileButton(id, "weights", { arm, seed }, `${trial_id}.weights.safetensors`) : null,
    has_last ? fileButton(id, "weights", { arm, seed, which: "last" }, `${trial_id}.last.weights.safetensors`, "weights of its end") : null);
}

function fileButton(id, what, parameters, name, label = what) {
  const failed = (error) => { button.title = button.textContent = error.message; };
  const button = element("button", { type: "button", onclick: () => api.download(id, what, parameters, name).catch(failed) },
    label);
  return button;
}
