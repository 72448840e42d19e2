// The job in four tiles: what was chosen, what it reached against a baseline, how soon, and what it sent.

import { element, patch } from "../../dom.js";
import { mean, median } from "../../statistics.js";
import { duration, level, loss, number, share, size } from "../../units.js";

export function summary() {
  const body = element("ul", { class: "tiles", id: "summary", "aria-label": "Summary" });

  function update(report, trials, stages) {
    const tiles = tilesOf(report, trials, stages);
    body.hidden = !tiles.length;
    patch(body, ...tiles.map(({ name, value, note }) => element("li", { class: "panel", key: name.split(" ")[0] },
      element("span", { class: "quiet" }, name), element("b", {}, value), element("span", { class: "quiet small", title: note }, note))));
  }

  return { body, update };
}

// Of the first arm, or of a sweep's best sample. Tiles about which nothing is known yet are left out.
export function tilesOf(report, trials, stages) {
  const subject = report.sweep?.ranking[0]?.arm ?? report.trials[0]?.arm;
  const own = trials.filter((trial) => trial.arm === subject);
  const baseline = baselineOf(report, subject);
  return [chosenTile(own, stages), resultTile(report, subject, baseline), crossingTile(report, subject, baseline), sentTile(report, trials, subject)]
    .filter((tile) => tile !== null);
}

// The best of the other arms.
function baselineOf(report, subject) {
  const others = report.arms.map(({ arm }) => arm).filter((arm) => arm !== subject && resultOf(report, arm) !== null);
  const sign = report.metric_directions[report.metric] === "max" ? -1 : 1;
  return others.sort((one, other) => sign * (resultOf(report, one) - resultOf(report, other)))[0] ?? null;
}

// The mean of the objective's metric over the exported weights of the arm's finished seeds; null: none has finished.
function resultOf({ metric, trials }, arm) {
  const values = trials.filter((trial) => trial.arm === arm && trial.outcome !== null).map((trial) => valueOf(trial, metric));
  return mean(values.filter((value) => value !== null));
}

const valueOf = (trial, metric) => (metric === "loss" ? trial.validation_loss : trial.validation_metrics[metric] ?? null);

// The newest of one seed's stages that were not rolled back, with the reason for its values: that of the last switch, or else
// of the first stage, and where the rate has changed since, also why. Undefined: there is none.
export function chosenStage(stages) {
  const kept = stages.filter((stage) => stage.num_steps !== 0);
  if (!kept.length) return undefined;
  const [now, picked] = [kept.at(-1), kept.findLast((stage) => stage.switched) ?? kept[0]];
  if (now.learning_rate === picked.learning_rate) return { ...now, reason: picked.reason };
  const changed = kept.findLast((stage, at) => at > 0 && stage.learning_rate !== kept[at - 1].learning_rate);
  return { ...now, reason: `${picked.reason}; ${changed.reason}` };
}

function chosenTile(own, stages) {
  const decided = own.map((trial) => stages.filter((stage) => stage.trial_id === trial.trial_id));
  const newest = decided.map(chosenStage).filter((stage) => stage !== undefined);
  if (!newest.length) return null;
  const levels = newest.filter((stage) => stage.level !== null);
  const name = levels[0]?.level_name;
  const searched = decided.filter((each) => each.some((stage) => stage.probes.length)).length;
  return {
    name: `chosen for ${own[0].arm}`,
    value: [`learning rate ${rangeOf(newest.map((stage) => stage.learning_rate), number)}`,
      levels.length ? `${name.replaceAll("_", " ")} ${rangeOf(levels.map((stage) => stage.level), (value) => level(value, name))}` : ""].filter((text) => text !== "").join(", "),
    note: [insuredText(own), own.length > 1 ? `${searched} of ${own.length} seeds searched` : searched ? "" : "no search", newest[0].reason]
      .filter((text) => text !== "").join("; "),
  };
}

// With `lanes.after: insurance`, the seeds whose second line ended better: its weights are kept, and not those of these values.
function insuredText(own) {
  const kept = own.filter((trial) => trial.line === "insurance").length;
  if (!kept) return "";
  return `your own schedule was kept${own.length > 1 ? ` for ${kept} of ${own.length} seeds` : ""}`;
}

export function rangeOf(values, write) {
  const ends = [...new Set([Math.min(...values), Math.max(...values)].map((value) => write(value)))];
  return ends.join(" to ");
}

function resultTile(report, subject, baseline) {
  const [own, other] = [subject, baseline].map((arm) => (arm === null ? null : resultOf(report, arm)));
  if (own === null) return null;
  if (other === null) return { name: `result of ${subject}`, value: `${report.metric} ${loss(own)}`, note: seedsText(report, [subject]) };
  const change = other === 0 || own === other ? "" : `${share(Math.abs(own - other) / Math.abs(other))} ${own < other ? "lower" : "higher"}; `;
  return { name: `result of ${subject} against ${baseline}`, value: `${report.metric} ${loss(own)} instead of ${loss(other)}`,
    note: change + seedsText(report, [subject, baseline]) };
}

function seedsText({ trials }, arms) {
  const own = trials.filter((trial) => arms.includes(trial.arm));
  const over = own.filter((trial) => trial.outcome !== null).length;
  return over < own.length ? `${over} of ${own.length} trials are over` : own.length > arms.length ? `means over ${own.length / arms.length} seeds` : "one seed";
}

// When the first arm was as good as `arm` ended, as medians over the seeds of which that is known; Infinity: never.
export function crossingOf({ trials }, arm) {
  const found = trials.filter((trial) => trial.arm === arm && trial.crossing).map((trial) => trial.crossing);
  return found.length ? { value: median(found.map((each) => each.value)), seconds: median(found.map((each) => each.seconds ?? Infinity)),
    other_seconds: median(found.map((each) => each.other_seconds)), num_seeds: found.length,
    num_reached: found.filter((each) => each.seconds !== null).length } : null;
}

function crossingTile(report, subject, baseline) {
  const found = baseline !== null && report.trials[0].arm === subject ? crossingOf(report, baseline) : null;
  if (!found) return null;
  const reached = found.seconds === Infinity ? "not reached" : duration(found.seconds);
  const seeds = found.num_seeds > 1 ? `median of ${found.num_seeds} seeds, of which ${found.num_reached} got there` : "training clock";
  const isOther = report.trials.some((trial) => trial.arm === baseline && trial.crossing && loss(valueOf(trial, report.metric)) !== loss(trial.crossing.value));
  const exported = isOther ? ` (its exported weights: ${loss(resultOf(report, baseline))})` : ""; // which the result is of
  return { name: `time to where ${baseline} ended`, value: `${reached} instead of ${duration(found.other_seconds)}`,
    note: `to ${report.metric} ${loss(found.value)}${exported}; ${seeds}` };
}

function sentTile(report, trials, subject) {
  const arm = report.best_arm ?? subject;
  const bills = trials.filter((trial) => trial.arm === arm && trial.bill.bytes_sent > 0).map((trial) => trial.bill);
  if (!bills.length) return null;
  const of = (name) => mean(bills.map((bill) => bill[name]));
  const [sent, dense] = [of("bytes_sent"), of("bytes_dense")];
  const saved = dense > sent ? `${share(1 - sent / dense)} less than dense, which is ${size(dense)}` : "as much as dense";
  return { name: `sent by ${arm}${report.best_arm === arm ? ", the best arm" : ""}`, value: size(sent),
    note: `${saved}; searching took ${share(of("seconds_search") / of("seconds_training"))} of the time` };
}
