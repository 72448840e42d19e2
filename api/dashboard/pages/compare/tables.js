// The comparison in figures: the jobs, the fields in which they differ, and their arms' results.

import { valueText } from "../../differences.js";
import { badge, element, empty, table } from "../../dom.js";
import { saveRows } from "../../files.js";
import { saveMenu } from "../../charts/panel.js";
import { since } from "../../times.js";
import { duration, estimates, figures, level, loss, number, share, size, tested } from "../../units.js";
import { chosenStage, rangeOf } from "../job/summary.js";
import { comparedNames } from "./jobs.js";

export function jobTable(jobs, remove) {
  const known = jobs.filter((job) => job.held && !job.isGone);
  return table("A letter stands for each job", [
    ["job", (job) => element("b", {}, job.letter), ""],
    ["state", ({ held }) => badge(held.job.state), ""],
    ["name", ({ id, held }) => element("a", { href: `/?job=${encodeURIComponent(id)}` }, held.job.name), "name", ({ held }) => held.job.name],
    ["arms", (job) => comparedNames(job).join(", "), "name"],
    ["created", ({ held }) => since(held.job.created_at), "", ({ held }) => held.job.created_at],
    ["id", (job) => element("code", {}, job.id), ""],
    ["leave out", (job) => element("button", { type: "button", class: "online", "aria-label": `remove ${job.letter}`, onclick: () => remove(job.id) }, "remove"), "online"],
  ], known, { key: (job) => job.id, isStacked: true });
}

export function differenceTable({ jobs, differences }, letters) {
  if (jobs.length < 2) return empty("One job alone differs from nothing.");
  if (!differences.length) return empty("These jobs ask for the same.");
  return table("Defaults filled in; –: it is not there, or has no value", [
    ["field", (row) => element("code", {}, row.pointer), "name"],
    ...jobs.map((job, at) => [letters.get(job.id), (row) => valueText(row.values[at]), "value"]),
  ], differences, { key: (row) => row.pointer, isStacked: true });
}

// Rows: the compared arms and samples, each {job_id, name, report, isPruned}, what was chosen and what it saved; `baseline` is
// the name of one, or "".
export function armRows({ arms, trials }, jobs) {
  return jobs.filter((job) => job.held && !job.isGone).flatMap((job) => {
    const names = comparedNames(job);
    const own = arms.filter(({ job_id }) => job_id === job.id).map(({ arm }) => arm);
    const samples = trials.filter(({ job_id, trial }) => job_id === job.id && !own.some(({ arm }) => arm === trial.arm));
    const pruned = (job.held.report?.sweep?.ranking ?? []).filter(({ status }) => status === "pruned").map((each) => each.trial_id);
    const bills = (arm) => trials.filter(({ job_id, trial }) => job_id === job.id && trial.arm === arm && trial.outcome !== null).map(({ trial }) => trial.bill);
    const row = (report, isPruned) => ({ job_id: job.id, name: `${job.letter} ${report.arm}`, report, isPruned, ...chosenIn(job.held, report.arm), ...savingOf(bills(report.arm)) });
    return [...own.map((report) => row(report, false)), ...samples.map((each) => row(sampleReport(each), pruned.includes(each.trial.trial_id)))]
      .filter(({ report }) => names.includes(report.arm));
  });
}

// The values that an arm's seeds chose: the least and the largest of each; null: none is known.
function chosenIn({ trials, stages, report }, arm) {
  const own = trials.filter((trial) => trial.arm === arm).map((trial) => chosenStage(stages.filter((stage) => stage.trial_id === trial.trial_id))).filter((stage) => stage !== undefined);
  const ends = (values) => (values.length ? { low: Math.min(...values), high: Math.max(...values) } : null);
  return { learning_rate: ends(own.map((stage) => stage.learning_rate)), level: ends(own.map((stage) => stage.level).filter((value) => value !== null)),
    level_name: report?.trials.find((trial) => trial.arm === arm)?.level_name ?? "level" };
}

// How many times as many bytes the same steps send without compression.
function savingOf(bills) {
  const [dense, sent] = ["bytes_dense", "bytes_sent"].map((name) => bills.reduce((sum, bill) => sum + bill[name], 0));
  return { saving: dense && sent ? dense / sent : null };
}

const chosen = (heading, of, write) => [heading, (row) => (of(row) ? rangeOf([of(row).low, of(row).high], (value) => write(value, row)) : "–"), "number", (row) => of(row)?.low];

// A sample's only trial, as the report of an arm with one seed.
function sampleReport({ trial, seconds_to_target }) {
  const isOver = trial.outcome !== null;
  const of = (value) => (isOver && value !== null ? { num_seeds: 1, mean: value, low: null, high: null } : null);
  const known = (values) => Object.fromEntries(Object.entries(values).map(([name, value]) => [name, of(value)]).filter(([, found]) => found));
  return { arm: trial.arm, controller: trial.controller, num_trials: 1, num_finished: Number(isOver), num_diverged: Number(trial.outcome === "diverged"),
    validation_loss: of(trial.validation_loss), validation_metrics: known(trial.validation_metrics), test: known(trial.test ?? {}), bytes_sent: of(trial.bill.bytes_sent),
    seconds_training: of(trial.bill.seconds_training), seconds_to_target: of(seconds_to_target), beside_best: null };
}

const COSTS = [["sent", "bytes_sent", size], ["training", "seconds_training", duration], ["to target", "seconds_to_target", duration]];

export function resultTable(comparison, rows, baseline) {
  const { confidence, metric, target } = comparison;
  const metrics = [...new Set(rows.flatMap(({ report }) => Object.keys(report.validation_metrics)))].sort();
  const levels = rows.filter((row) => row.level).map((row) => row.level_name);
  const base = rows.find((row) => row.name === baseline)?.report;
  const goal = target === null ? "no target yet" : `the target is a validation ${metric} of ${loss(target)}, the median of where the trials ended`;
  return table(`Means over finished seeds ± ${share(confidence)} interval; ${goal}`, [
    ["arm", (row) => (row.report === base ? element("b", {}, `${row.name} (baseline)`) : row.name), "name"],
    ["seeds", ({ report, isPruned }) => (isPruned ? "pruned" : `${report.num_finished} of ${report.num_trials}`), "number", ({ report }) => report.num_finished],
    chosen("learning rate", (row) => row.learning_rate, (rate) => number(rate)),
    ...(levels.length ? [chosen([...new Set(levels)].sort().join(" or "), (row) => row.level, (value, row) => level(value, row.level_name))] : []),
    figures("ratio", (row) => row.saving, (saving) => (saving === null ? "–" : `${saving.toFixed(1)}×`)),
    estimates("validation loss", ({ report }) => report.validation_loss, loss),
    ...(base ? [differences("− baseline", ({ report }) => report.validation_loss, base.validation_loss)] : []),
    ...metrics.flatMap((name) => [estimates(name, ({ report }) => report.validation_metrics[name], loss),
      ...(base ? [differences(`${name} − baseline`, ({ report }) => report.validation_metrics[name], base.validation_metrics[name])] : [])]),
    ...tested(rows.map(({ report }) => report)).flatMap((name) => [estimates(`test ${name}`, ({ report }) => report.test?.[name], loss),
      ...(base ? [differences(`test ${name} − baseline`, ({ report }) => report.test?.[name], base.test?.[name])] : [])]),
    ...COSTS.flatMap(([name, field, write]) => [estimates(name, ({ report }) => report[field], write),
      ...(base ? [[`${name} / baseline`, ({ report }) => ratio(report[field], base[field]), "number", ({ report }) => report[field]?.mean]] : [])]),
    figures("diverged", ({ report }) => report.num_diverged, String),
  ], rows, { key: (row) => row.name });
}

const differences = (heading, of, base) => [heading, (row) => difference(of(row), base), "number", (row) => of(row)?.mean];

export function difference(own, base) {
  if (!own || !base) return "–";
  const less = own.mean - base.mean;
  return `${less > 0 ? "+" : less < 0 ? "−" : ""}${number(Math.abs(less))}`;
}

export const ratio = (own, base) => (own && base?.mean ? `${number(own.mean / base.mean)}×` : "–");

// All figures of the table, exact.
export function resultMenu(rowsOf) {
  const menu = saveMenu([element("button", { type: "button", onclick: () => saveRows("comparison.csv", rowsOf()) }, "CSV")]);
  menu.firstChild.setAttribute("aria-label", "save: results");
  return menu;
}
