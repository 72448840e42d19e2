// One job: where it is, its curves, its schedule, its bill.

import * as api from "../../api.js";
import { bytesChart } from "../../charts/bytes.js";
import { lossChart } from "../../charts/loss.js";
import { panel } from "../../charts/panel.js";
import { scheduleChart } from "../../charts/schedule.js";
import { controls } from "./controls.js";
import { decisions } from "./decisions.js";
import { badge, element, empty, patch, since, table, whenChanged } from "../../dom.js";
import { isTooLong, MAX_POINTS, merged } from "../../live/snapshot.js";
import { besides, duration, level, loss, number, share, size, spread } from "../../units.js";

const OVER = ["succeeded", "failed", "cancelled"];
const TRAINING = ["running", "pausing", "stopping", "cancelling"];

export function jobPage(root, id) {
  const head = element("div", {});
  const actions = controls(() => refresh().catch(() => {})); // the next look tells what was wrong
  const section = () => element("section", { class: "panel wide" });
  const [arms, bill, files, stages, waiting] = [section(), section(), section(), section(), element("div", {}, empty("loading …"))];
  const curves = panel("Loss over the training clock", "wide");
  const schedule = panel("Learned schedule");
  const bytes = panel("Bytes");
  const why = decisions(id);
  const panels = element("div", { class: "panels", hidden: "" },
    curves.body, arms, schedule.body, bytes.body, bill, files, stages, why.body);
  root.replaceChildren(head, actions.body, waiting, panels);
  let held = null;
  let me = null;
  let isGone = false;
  let turn = Promise.resolve();

  // One at a time: a change is merged into what it is a change of.
  function refresh() {
    turn = turn.catch(() => {}).then(look);
    return turn;
  }

  async function look() {
    if (isGone) return;
    try {
      me ??= await api.me();
      const since = held && !isTooLong(held) ? held.cursor : null;
      held = merged(held, await api.snapshot(id, since, MAX_POINTS));
    } catch (error) {
      if (error.status !== 404) throw error;
      return showNone();
    }
    document.title = `${held.job.name} – Wiretune`;
    actions.body.hidden = false;
    patch(head, ...heading(held.job));
    actions.update(held.job, me);
    panels.hidden = held.job.started_at === null;
    patch(waiting, panels.hidden ? element("div", { class: "panel" }, empty(waitingText(held.job))) : null);
    if (!panels.hidden) await drawPanels(held);
  }

  function showNone() {
    isGone = true;
    document.title = "No such job – Wiretune";
    patch(head, element("h1", {}, "No such job"));
    patch(waiting, element("div", { class: "panel spaced" }, empty("There is no job ", element("code", {}, id),
      " that you may see. It may have been removed. ", element("a", { href: "/" }, "All jobs"))));
    panels.hidden = actions.body.hidden = true;
  }

  async function drawPanels({ job, trials, stages: decided, schedules, series, report }) {
    drawTables(job, trials, decided, schedules, report);
    await Promise.all([
      drawCurves(series, job.spec),
      drawSchedule(schedules, decided, job.spec),
      drawBytes(trials, job.spec),
      why.update(known(report.trials, job), decided, TRAINING.includes(job.state)),
    ]);
  }

  const drawTables = whenChanged((job, trials, decided, schedules, report) => {
    const several = job.spec.seeds.length > 1;
    const billed = known(trials, job);
    const levels = new Map(report.trials.map((trial) => [trial.trial_id, trial.level_name]));
    const named = known(decided, job).map((stage) => ({ ...stage, level_name: levels.get(stage.trial_id) }));
    const scheduled = schedules.filter((each) => each.entries.length).map((each) => each.trial_id);
    patch(arms, element("h2", {}, "Arms"), armTable(report), ...(several ? [] : crossings(report)), ...notes(known(report.trials, job)));
    patch(stages, element("h2", {}, "Stages"), stageTable(named, job));
    patch(bill, element("h2", {}, "Bill"), billTable(billed, job), ...optionTables(billed));
    patch(files, element("h2", {}, "Files"), ...fileLines(id, job.attempt, billed, scheduled));
  });
  const drawCurves = whenChanged((series, spec) => {
    const of = (name) => known(series.filter((each) => each.name === name), { spec });
    return curves.draw(() => lossChart(of("loss"), of("validation_loss")));
  });
  const drawSchedule = whenChanged((schedules, decided, spec) =>
    schedule.draw(() => scheduleChart(known(schedules, { spec }), decided)));
  const drawBytes = whenChanged((trials, spec) => bytes.draw(() => bytesChart(known(trials, { spec }))));

  return { refresh, shows: (job) => job === id };
}

// What has an arm and a seed, with the name and the colour of its trial.
function known(rows, { spec }) {
  const names = spec.arms.map((arm) => arm.name);
  return rows.map((each) => ({
    ...each,
    label: spec.seeds.length > 1 ? `${each.arm} seed ${each.seed}` : each.arm,
    arm_index: names.indexOf(each.arm),
    is_first_seed: each.seed === spec.seeds[0],
  }));
}

function heading(job) {
  const facts = [
    ["workload", job.spec.workload.kind],
    ["workers", String(job.spec.workers.count)],
    ["link", linkText(job.spec.link)],
    ["budget", budget(job.spec.budget)],
    ["attempt", String(job.attempt)],
    ["created", since(job.created_at)],
    ["finished", job.finished_at && since(job.finished_at)],
    ["labels", Object.entries(job.labels).map((each) => each.join("=")).join(", ") || null],
    ["archived", job.archived ? "yes" : null],
  ].filter(([, value]) => value !== null);
  return [
    element("div", { class: "title" }, element("h1", {}, job.name), badge(job.state)),
    element("code", { class: "quiet" }, job.id),
    job.reason ? element("p", { class: "reason" }, job.reason) : null,
    element("ul", { class: "facts" }, ...facts.map(([name, value]) =>
      element("li", { key: name }, element("span", { class: "quiet" }, `${name} `), element("b", {}, value)))),
    job.notes ? element("p", { class: "reason", key: "notes" }, element("span", { class: "quiet" }, "notes "), job.notes) : null,
  ];
}

const linkText = (link) =>
  (link.mode === "emulate" ? `emulated ${number(link.mbps)} Mbit/s, ${duration(link.latency_ms / 1000)}` : "as it is");

function budget(given) {
  return [
    given.seconds === null ? null : duration(given.seconds),
    given.steps === null ? null : `${given.steps} steps`,
    given.bytes === null ? null : size(given.bytes),
  ].filter((each) => each !== null).join(" or ");
}

function waitingText(job) {
  if (OVER.includes(job.state)) return `This job ${job.state === "failed" ? "failed" : `was ${job.state}`} before it trained.`;
  if (job.state === "paused") return `It has not trained yet; "resume" has it go on.`;
  return job.state === "queued" ? "Waiting for its turn. Charts appear with the first report." : "Starting its workers.";
}

function stageTable(stages, job) {
  if (!stages.length) return empty(OVER.includes(job.state) ? "No stage was decided." : "No stage is decided yet: the first search is under way.");
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

// A mean over seeds and half its interval; nothing is known of the spread of one seed.
const interval = (estimate, write) =>
  spread(estimate?.mean, estimate && estimate.high !== null ? estimate.high - estimate.mean : null, write);

function armTable(report) {
  const metrics = Object.keys(report.metric_directions).sort();
  const caption = `Means over finished seeds ± ${share(report.confidence)} interval; target: where the worst arm ended`;
  const name = (arm) => (arm.arm === report.best_arm ? element("b", {}, `${arm.arm} (best ${report.metric})`) : arm.arm);
  return table(caption, [
    ["arm", name, "name"],
    ["controller", (arm) => arm.controller, ""],
    ["seeds", (arm) => `${arm.num_finished} of ${arm.num_trials}`, "number"],
    ["validation loss", (arm) => interval(arm.validation_loss, loss), "number"],
    ...metrics.map((metric) => [metric, (arm) => interval(arm.validation_metrics[metric], loss), "number"]),
    ["sent", (arm) => interval(arm.bytes_sent, size), "number"],
    ["to the target", (arm) => interval(arm.seconds_to_target, duration), "number"],
    ["diverged", (arm) => String(arm.num_diverged), "number"],
  ], report.arms, { key: (arm) => arm.arm });
}

// When the first arm got to where another ended; of several seeds the table tells.
function crossings(report) {
  const first = report.arms[0].arm;
  return report.trials.filter((trial) => trial.crossing).map((trial) => {
    const { loss: goal, seconds: reached, other_seconds: other } = trial.crossing;
    const where = `the loss at which ${trial.arm} ended (${loss(goal)})`;
    return element("p", { class: "fact" }, reached === null ? `${first} did not reach ${where}.`
      : `${first} reached ${where} after ${duration(reached)} instead of ${duration(other)}.`);
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
  const link = job.spec.link.mode === "emulate" ? `on an ${linkText(job.spec.link)} link` : "on the network as it is";
  const ratio = (bill) => (bill.bytes_sent && bill.bytes_dense ? `${(bill.bytes_dense / bill.bytes_sent).toFixed(1)}×` : "–");
  return table(`Bytes of one worker, time on the training clock, ${link}`, [
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
    ["validation loss", (trial) => loss(trial.validation_loss), "number"],
    ...metricNames(trials).map((name) => [name, (trial) => loss(trial.validation_metrics[name] ?? null), "number"]),
    ...(trials.some((trial) => trial.bill.steps_insurance) ? [["insurance", insurance, "number"]] : []),
    ...(trials.some((trial) => trial.bill.repairs) ? [["repairs", repairs, "number"]] : []),
    ...(trials.some((trial) => Object.keys(trial.bill.absences).length) ? [["averages missed", absences, ""]] : []),
  ], trials, { key: (trial) => trial.trial_id });
}

// What the exchanges, or optimizers, that competed took, most steps first.
function optionTables(trials) {
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

// The user's own schedule, trained beside the search: outside of the bytes sent.
const insurance = ({ bill }) =>
  (bill.steps_insurance ? `${bill.steps_insurance} steps, ${size(bill.bytes_insurance)}` : "–");

// Lost workers that were replaced: outside of the training clock and of the bytes sent.
const repairs = ({ bill }) =>
  (bill.repairs ? `${bill.repairs}: ${duration(bill.seconds_recovery)}, ${size(bill.bytes_recovery)}` : "–");

// Workers that were away when the others averaged.
const absences = ({ bill }) =>
  Object.entries(bill.absences).map(([rank, missed]) => `worker ${rank}: ${missed}`).join(", ") || "–";

function unfinished(trial, job) {
  if (OVER.includes(job.state)) return "not finished";
  if (trial.backend && job.state === "paused") return "paused";
  return trial.backend && TRAINING.includes(job.state) ? "training" : "waiting";
}

function fileLines(id, attempt, trials, scheduled) {
  const ofJob = element("p", { class: "files", key: id }, "Of the whole job: ",
    fileButton(id, "metrics.csv", {}, `${id}-metrics.csv`), fileButton(id, "report", {}, `${id}-report.json`),
    attempt ? fileButton(id, "logs", {}, `${id}-attempt-${attempt}.log`, "log") : null);
  const offers = trials.filter((trial) => scheduled.includes(trial.trial_id) || trial.weights_url !== null);
  return [ofJob, ...offers.map((trial) => trialLine(id, trial, scheduled.includes(trial.trial_id)))];
}

function trialLine(id, { trial_id, label, arm, seed, weights_url, last_weights_url }, hasSchedule) {
  const file = (what, more, name, text) => fileButton(id, what, { arm, seed, ...more }, `${trial_id}.${name}`, text);
  return element("p", { class: "files", key: trial_id }, `Of ${label}: `,
    hasSchedule ? file("schedule", {}, "schedule.json") : null,
    weights_url === null ? null : file("weights", {}, "weights.safetensors"),
    last_weights_url === null ? null : file("weights", { which: "last" }, "last.weights.safetensors", "weights of its end"));
}

function fileButton(id, what, parameters, name, label = what) {
  const fetchIt = ({ currentTarget: button }) => api.download(id, what, parameters, name)
    .catch((error) => { button.title = button.textContent = error.message; });
  return element("button", { type: "button", key: name, onclick: fetchIt }, label);
}
