// Training and validation loss, with forecasts and the state whose weights are best; or another series.

import { duration, figures, loss, number } from "../units.js";
import { between } from "./axis.js";
import { ALIGNED, asOwnSchedule, colour, joined, logAxis, look, lookedAlike, marked, named, rolledBack, tint } from "./look.js";

export const LOSS = "loss";
const MARK = 5; // px, of an evaluation
const STEP = 0.1; // of a search: a shorter part is a step
const MOST_OF_A_MEAN = 2000; // points of a mean over seeds

// An exponential moving average that starts at the first value; missing values stay missing.
export function smoothed(values, weight) {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

// The mean of several lines and ± 1 standard deviation, at each place over the lines known there (`counts`), so that a line
// that began late or diverged hides no others. Null if no line has a point. The band never leaves the range of the lines:
// below 0, a logarithmic axis could not show it.
export function meanOf(lines) {
  const known = lines.map(({ x, y }) => {
    const there = x.map((_, at) => at).filter((at) => y[at] !== null && x[at] !== null);
    return { x: there.map((at) => x[at]), y: there.map((at) => y[at]) };
  }).filter((line) => line.x.length);
  if (!known.length) return null;
  const placed = known.map(({ x, y }) => ({ first: x[0], last: x.at(-1), valueAt: between(x, y) }));
  const valuesAt = (x) => placed.flatMap(({ first, last, valueAt }) => (first <= x && x <= last ? valueAt(x) : []));
  const there = thinned(places(known)).map((x) => {
    const values = valuesAt(x);
    const mean = values.reduce((sum, each) => sum + each, 0) / values.length;
    const std = values.length < 2 ? 0 : Math.sqrt(values.reduce((sum, each) => sum + (each - mean) ** 2, 0) / (values.length - 1));
    return { x, mean, upper: Math.min(mean + std, Math.max(...values)), lower: Math.max(mean - std, Math.min(...values)), count: values.length };
  });
  const all = (name) => there.map((each) => each[name]);
  return { x: all("x"), mean: all("mean"), upper: all("upper"), lower: all("lower"), counts: all("count") };
}

// Where any of the lines has a point: most places where their points are close, as where the reader has zoomed to.
const places = (lines) => [...new Set(lines.flatMap(({ x }) => x))].sort((one, other) => one - other);

function thinned(xs) {
  if (xs.length <= MOST_OF_A_MEAN) return xs;
  return Array.from({ length: MOST_OF_A_MEAN }, (_, at) => xs[Math.round((at * (xs.length - 1)) / (MOST_OF_A_MEAN - 1))]);
}

// `choice`: {metric, isRecorded, smooth, isLog, isLogAxis, isEach}. `stages` are those of one trial, drawn as shaded areas, and
// its searches hatched; `searched` are the stages of all trials, whose lines pause in a search. `trials` are all. Metrics other than the loss have no training series and no forecast. One that `isRecorded` in training
// steps stands for the validation series, and nobody says which way it is better. Of the loss, `smooth` is for the training
// series alone: its evaluations are few. `insured` are the evaluations of second lines, which train the user's own schedule.
export function lossChart({ training, validation, insured = [], trials, stages, searched = stages, place, choice }) {
  const isLoss = choice.metric === LOSS;
  const [kind, title] = choice.isRecorded ? [choice.metric, choice.metric] : ["validation", `validation ${choice.metric}`];
  const drawn = (series, weight) => series.filter((each) => each.values.length)
    .map((each) => ({ ...each, x: place.along(each), y: weight ? smoothed(each.values, weight) : each.values }));
  const [trained, validated] = [drawn(training, choice.smooth), drawn(validation, isLoss ? 0 : choice.smooth)];
  const second = place.axis === "bytes" || choice.isRecorded ? [] : drawn(insured, isLoss ? 0 : choice.smooth).map(asOwnSchedule);
  const isMean = !choice.isEach && new Set(trials.map((each) => each.arm)).size < trials.length;
  const values = [...trained, ...validated, ...second].flatMap((each) => each.y);
  const isLog = choice.isLog && values.every((value) => value === null || value > 0); // then nothing of 0 or below is drawn
  const known = [...training, ...validation].flatMap((each) => each.values).concat(stages.map((stage) => stage.forecast));
  const least = known.reduce((low, value) => (value > 0 && value < low ? value : low), Infinity);
  const around = { stages, place, lines: trained, floor: isLog ? least : -Infinity };
  const spans = searches(searched, place);
  const paused = (each) => pausedIn(each, spans.filter((span) => span.trial_id === each.trial_id));
  const hatched = spans.filter((span) => span.trial_id === stages[0]?.trial_id);
  return {
    traces: [...(isLoss ? fans(around) : []),
      ...(isMean ? meanLines(trained, [validated, kind], place) : [...lines(trained.map(paused), "training", place), ...lines(validated.map(paused), kind, place)]),
      ...secondLines(second, kind, place),
      ...(isLoss ? rollBacks(around) : []), ...(choice.isRecorded ? [] : bests(trials, [validation, second], place, choice.metric)),
      ...hatch(hatched)],
    layout: { height: 420, margin: ALIGNED, shapes: shades(stages, place), uirevision: [place.axis, place.unit, choice.isLogAxis, choice.isLog, choice.metric].join(),
      xaxis: { ...place.xaxis(choice.isLogAxis), title: { text: isLoss ? `${place.title}<br>thin: training, bold: validation` : place.title } },
      ...(hatched.length && { yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true } }),
      yaxis: { title: { text: isLoss ? LOSS : title }, ...(choice.isLog ? logAxis(values, isLoss ? String : number) : {}) } },
    label: labelOf(trials, validation, title),
    columns: [["trial", (row) => row.label, "name"], figures("clock", (row) => row.seconds, duration),
      figures("step", (row) => row.step, String),
      [title, (row) => (row.value === null ? "diverged" : loss(row.value)), "number", (row) => row.value]],
    rows: [...validation, ...second].flatMap(({ label, steps, seconds, values: measured }) =>
      measured.map((value, at) => ({ label, value, step: steps[at], seconds: seconds[at] }))),
  };
}

function labelOf(trials, validation, title) {
  const now = validation.flatMap((each) => {
    const value = each.values.findLast((one) => one !== null);
    return value === undefined ? [] : [`${each.label} ${title} now ${loss(value)}`];
  });
  const best = trials.filter((each) => each.outcome === "completed" && (each.averaged || each.exported_step !== null))
    .map((each) => (each.averaged ? averageOf(each.label, stepOf(each)) : `best weights of ${each.label} after ${each.exported_step} steps`));
  return [...now, ...best].join("; ") || "no points yet";
}

const stepOf = (trial) => trial.exported_step ?? trial.step; // of the exported weights
const averageOf = (label, step) => `an average of the weights of ${label} up to step ${step}`;

function lines(series, name, { unit }) {
  const isTraining = name === "training";
  return joined(series, lookedAlike, ["sizes"]).map(({ first, sizes, ...line }) => ({
    type: "scatter", mode: isTraining ? "lines" : marked(line.x), ...line, opacity: isTraining ? 0.4 : 1,
    ...named(first, series), showlegend: !isTraining, marker: { size: sizes },
    line: isTraining ? { color: colour(first.arm_index), width: 1 } : look(first, 2.2, first.seed_index),
    hovertemplate: `%{text} ${name}: %{y:.4~g}<br>%{x:.4~g} ${unit}<extra></extra>`,
  }));
}

function secondLines(series, kind, { unit }) {
  return joined(series, ({ arm }) => arm).map(({ first, ...line }) => ({
    type: "scatter", mode: marked(line.x), ...line, name: first.arm, legendgroup: first.arm, marker: { size: MARK },
    line: { ...look(first, 1.5), dash: "dash" }, hovertemplate: `%{text} ${kind}: %{y:.4~g}<br>%{x:.4~g} ${unit}<extra></extra>`,
  }));
}

const seeds = (count) => `${count} ${count === 1 ? "seed" : "seeds"}`;

// An arm's seeds as their mean, with ± 1 standard deviation around it.
export function meanLines(trained, [validated, kind], { unit }) {
  const arms = [...new Map([...trained, ...validated].map((each) => [each.arm, each])).values()];
  return arms.flatMap((arm) => [[trained, "training"], [validated, kind]].flatMap(([series, name]) => {
    const own = series.filter((each) => each.arm === arm.arm);
    const found = own.length ? meanOf(own) : null;
    if (!found) return [];
    const isBold = name !== "training";
    const most = Math.max(...found.counts);
    const upTo = Math.min(...found.counts) < most ? "up to " : "";
    const base = { type: "scatter", mode: "lines", legendgroup: arm.arm };
    return [
      { ...base, x: [...found.x, ...found.x.toReversed()], y: [...found.upper, ...found.lower.toReversed()], showlegend: false,
        line: { width: 0 }, fill: "toself", fillcolor: tint(colour(arm.arm_index), isBold ? 0.22 : 0.1), hoverinfo: "skip" },
      { ...base, x: found.x, y: found.mean, name: `${arm.arm}, mean of ${upTo}${seeds(most)} ± 1 std`, showlegend: isBold, text: found.counts.map(seeds),
        line: isBold ? look(arm, 2.2) : { color: colour(arm.arm_index), width: 1 }, opacity: isBold ? 1 : 0.5,
        hovertemplate: `${arm.arm} ${name}, mean of %{text}: %{y:.4~g}<br>%{x:.4~g} ${unit}<extra></extra>` },
    ];
  }));
}

// The cost of each search on the axis, before its own first step, and if that began with the steps of a probe, from their end
// on, too. Committed steps count no searches. Steps that were taken back lie before the search, too, and are no part of it.
export function searches(stages, place) {
  if (place.axis === "steps") return [];
  return stages.filter((stage) => stage.search_seconds > 0 && stage.num_steps !== 0).flatMap((stage) => {
    const { trial_id: trial, first_step: first, promoted } = stage;
    const cost = (place.axis === "bytes" ? stage.search_bytes : stage.search_seconds) / place.per;
    const kept = promoted ? stage.probes.find((probe) => probe.probe_id === promoted)?.num_steps : 0;
    const parts = (kept ? [first, first + kept] : [first])
      .map((step) => ({ trial_id: trial, step, from: step ? place.to(trial, step) : 0, to: place.from(trial, step) }))
      .map((part) => ({ ...part, from: Math.max(part.from, part.to - cost) }));
    const whole = parts.reduce((sum, { from, to }) => sum + (to - from), 0);
    return parts.filter(({ from, to }) => to - from > STEP * whole);
  });
}

// A line with a gap at each search: the loss stands still there, at what it was by then. The ends of a gap have no mark.
export function pausedIn(line, spans) {
  const [x, y, sizes] = [[], [], []];
  const add = (...point) => [x, y, sizes].forEach((values, at) => values.push(point[at]));
  const valueAt = between(line.steps, line.y);
  let next = 0;
  line.x.forEach((place, at) => {
    for (; next < spans.length && spans[next].from < place; next++) {
      const { from, to, step } = spans[next];
      const isInside = at > 0 && to <= place && line.y[at] !== null && line.y[at - 1] !== null;
      if (isInside) [[from, valueAt(step), 0], [null, null, 0], [to, valueAt(step), 0]].forEach((point) => add(...point));
    }
    add(place, line.y[at], MARK);
  });
  return { ...line, x, y, sizes };
}

// Searches as hatched areas, on an axis of their own that no zoom moves.
function hatch(spans) {
  if (!spans.length) return [];
  return [{ type: "scatter", mode: "lines", name: "searching", yaxis: "y2", hoverinfo: "skip", line: { width: 0 }, fill: "toself",
    fillpattern: { shape: "/", size: 7, solidity: 0.2, fgcolor: "#808080" },
    x: spans.flatMap(({ from, to }) => [from, from, to, to, null]), y: spans.flatMap(() => [0, 1, 1, 0, null]) }];
}

// Every second stage, as one shape, since hundreds would be slow.
function shades(stages, place) {
  const spans = stages.filter((stage) => stage.stage % 2 && stage.num_steps)
    .map((stage) => [place.from(stage.trial_id, stage.first_step), place.to(stage.trial_id, stage.first_step + stage.num_steps)])
    .filter(([from, to]) => from !== null && to !== null);
  if (!spans.length) return [];
  return [{ type: "path", yref: "paper", layer: "below", line: { width: 0 }, fillcolor: "rgba(128,128,128,0.13)",
    path: spans.map(([from, to]) => `M${from},0V1H${to}V0Z`).join("") }];
}

const lossAt = (lines, trial, step) => {
  const line = lines.find((each) => each.trial_id === trial);
  return line ? between(line.steps, line.y)(step) : null;
};

// From the loss at the start of a stage to the forecast of its end, ± 2 standard deviations.
function fans({ stages, place, lines: trained, floor }) {
  const [x, y, middleX, middleY, text] = [[], [], [], [], []];
  for (const stage of stages) {
    if (stage.forecast === null || stage.forecast_std === null || !stage.num_steps) continue;
    const [from, to] = [place.from(stage.trial_id, stage.first_step), place.to(stage.trial_id, stage.first_step + stage.num_steps)];
    const start = lossAt(trained, stage.trial_id, stage.first_step);
    if (from === null || to === null || start === null) continue;
    const [low, high] = [-2, 2].map((width) => Math.max(floor, stage.forecast + width * stage.forecast_std));
    x.push(from, to, to, from, null);
    y.push(start, high, low, start, null);
    middleX.push(from, to, null);
    middleY.push(start, Math.max(floor, stage.forecast), null);
    text.push("", `stage ${stage.stage}: forecast ${loss(stage.forecast)} ± ${number(stage.forecast_std, 2)}, came to ${loss(stage.loss)}`, "");
  }
  if (!x.length) return [];
  const group = { type: "scatter", mode: "lines", legendgroup: "forecast" };
  return [
    { ...group, x, y, name: "forecast ± 2 std", fill: "toself", fillcolor: "rgba(128,128,128,0.25)", line: { width: 0 }, hoverinfo: "skip" },
    { ...group, x: middleX, y: middleY, text, name: "forecast", showlegend: false, line: { color: "#808080", width: 1, dash: "dot" },
      hovertemplate: "%{text}<extra></extra>" },
  ];
}

function rollBacks({ stages, place, lines: trained }) {
  const back = stages.filter((stage) => stage.num_steps === 0);
  if (!back.length) return [];
  return [{ type: "scatter", mode: "markers", name: "rolled back", marker: { symbol: "triangle-left", size: 12, color: "#c2395b" },
    x: back.map((stage) => place.from(stage.trial_id, stage.first_step)),
    y: back.map((stage) => lossAt(trained, stage.trial_id, stage.first_step)),
    text: back.map((stage) => rolledBack(stage, stages)), hovertemplate: "%{text}<extra></extra>" }];
}

// The state whose weights are kept, on the line that they are of; for a running trial, the best evaluation so far.
function bests(trials, [validation, second], place, metric) {
  const valueOf = (trial) => (metric === LOSS ? trial.validation_loss : trial.validation_metrics[metric] ?? null);
  const isHigh = trials.some((trial) => trial.metric_directions[metric] === "max");
  const soFar = `${isHigh ? "highest" : "lowest"} so far`;
  const marks = trials.flatMap((trial) => {
    const end = valueOf(trial);
    if (trial.outcome === "completed" && end !== null) {
      const line = trial.line === "insurance" ? second.find((each) => each.trial_id === trial.trial_id) : null;
      const step = line ? trial.exported_step ?? line.steps.at(-1) : stepOf(trial);
      const { label } = line ?? trial;
      const text = trial.averaged ? averageOf(label, step) : `the weights of ${label}: step ${step}`;
      const x = line ? between(line.steps, line.x)(step) : place.at(trial.trial_id, step);
      return line === undefined ? [] : [{ trial, x, value: end, symbol: "star", text: `${text}, ${loss(end)}` }];
    }
    const series = validation.find((each) => each.trial_id === trial.trial_id);
    const known = series?.values.filter((value) => value !== null) ?? [];
    if (trial.outcome || !known.length) return [];
    const value = (isHigh ? Math.max : Math.min)(...known);
    const x = place.at(trial.trial_id, series.steps[series.values.indexOf(value)]);
    return [{ trial, x, value, symbol: "star-open", text: `${trial.label}: ${soFar}, ${loss(value)}` }];
  });
  if (!marks.length) return [];
  const isAny = marks.some((mark) => mark.symbol === "star");
  return [{ type: "scatter", mode: "markers", name: isAny ? "best weights" : soFar, x: marks.map((mark) => mark.x),
    y: marks.map((mark) => mark.value), text: marks.map((mark) => mark.text), hovertemplate: "%{text}<extra></extra>",
    marker: { size: 13, symbol: marks.map((mark) => mark.symbol), color: marks.map((mark) => colour(mark.trial.arm_index)), line: { width: 1, color: "#808080" } } }];
}
