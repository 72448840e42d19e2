// Curves and schedules of several jobs in one chart, over steps, seconds or bytes.

import { duration, figures, loss, number, share, size, sizeAxis, timeAxis } from "../units.js";
import { colour, lastRate, logAxis, look, marked } from "./look.js";
import { LOSS, meanLines } from "./loss.js";

// The axes: a line's positions along each, and its format.
export const AXES = {
  steps: { along: (line) => line.steps, axis: () => ({ unit: "", per: 1 }), title: "committed steps" },
  seconds: { along: (line) => line.seconds, axis: timeAxis, title: "training clock" },
  bytes: { along: (line) => line.steps.map(bytesAt(line.trial)), axis: sizeAxis, title: "sent by one worker" },
};

// A trial's sent bytes at a step: known at the ends of stages, and interpolated linearly by steps in between.
export function bytesAt({ step, bill, stages }) {
  const known = [[0, 0]];
  for (const stage of stages) {
    const [, sent] = known.at(-1);
    if (stage.bill === null || !stage.num_steps) continue;
    const begun = Math.min(sent + (stage.search_bytes ?? 0), stage.bill.bytes_sent);
    known.push([stage.first_step, begun], [stage.first_step + stage.num_steps, stage.bill.bytes_sent]);
  }
  if (step > known.at(-1)[0]) known.push([step, Math.max(bill.bytes_sent, known.at(-1)[1])]);
  return (asked) => {
    const after = known.findIndex(([at]) => at >= asked);
    if (after < 0) return known.at(-1)[1];
    if (after === 0) return 0;
    const [[from, low], [to, high]] = [known[after - 1], known[after]];
    return to === from ? high : low + ((high - low) * (asked - from)) / (to - from);
  };
}

// An exponential moving average with a window in steps, and the minimum and maximum within each window: points are thinned
// with their extremes kept, so a plain line would show only the extremes.
export function smoothed(steps, values, window) {
  const middle = [];
  let [mean, weight, before] = [0, 0, steps[0] ?? 0];
  values.forEach((value, at) => {
    const stays = window ? Math.exp(-Math.max(1, steps[at] - before) / window) : 0;
    before = steps[at];
    if (value !== null) [mean, weight] = [stays * mean + (1 - stays) * value, stays * weight + 1 - stays];
    middle.push(value === null ? null : mean / weight);
  });
  return middle;
}

export function bands(x, values, count) {
  const size = Math.max(1, Math.ceil(values.length / count));
  const found = [];
  for (let from = 0; from < values.length; from += size) {
    const known = values.slice(from, from + size).filter((value) => value !== null);
    if (known.length) found.push({ x: x[Math.min(values.length - 1, from + Math.floor(size / 2))], low: Math.min(...known), high: Math.max(...known) });
  }
  return found;
}

// A seed of an arm has a legend entry of its own.
const entry = ({ label }, showlegend) => ({ name: label, legendgroup: label, showlegend });

const NUM_BANDS = 150;
const NUM_SMOOTH = 400; // points of an average, which has no extremes to keep; the last one is always there

function middleOf(x, { steps, values }, window) {
  const y = smoothed(steps, values, window);
  const each = window ? Math.max(1, Math.floor(y.length / NUM_SMOOTH)) : 1;
  const isKept = (_, at) => at % each === 0 || at === y.length - 1;
  return { x: x.filter(isKept), y: y.filter(isKept) };
}

// `smoothing` is the window as a share of a line's steps; 0 draws every point. Training lines are thin with a band,
// evaluations are bold. A metric other than the loss has no training lines, so its evaluations are smoothed. Seeds of an arm
// are their mean, or with `isEach` a line each.
export function overlaidCurves(training, validation, { axis, smoothing, metric = LOSS, isEach = false }) {
  const isLoss = metric === LOSS;
  const { along, axis: ticks, title } = AXES[axis];
  const placed = (lines) => lines.filter((line) => line.values.length).map((line) => ({ ...line, x: along(line) }));
  const [trained, evaluated] = [placed(training), placed(validation)];
  const { unit, per } = ticks(Math.max(0, ...[...trained, ...evaluated].map((line) => line.x.at(-1))));
  const hover = (line, name) => ({ hovertemplate: `${line.label} ${name}: %{y:.4~g}<br>%{x:.4~g} ${unit}<extra></extra>` });
  const scaled = (x) => x.map((value) => value / per);
  const isAlone = (line) => isEach || [trained, evaluated].every((lines) => lines.filter(({ arm }) => arm === line.arm).length < 2);
  const band = (line) => {
    const edges = bands(scaled(line.x), line.values, NUM_BANDS);
    return { type: "scatter", mode: "lines", x: [...edges, ...edges.toReversed()].map((edge) => edge.x), fill: "toself", line: { width: 0 },
      y: [...edges.map((edge) => edge.high), ...edges.toReversed().map((edge) => edge.low)], fillcolor: colour(line.arm_index),
      opacity: 0.15, hoverinfo: "skip", ...entry(line, false) };
  };
  const middle = (line, part) => middleOf(scaled(line.x), line, part * (line.steps.at(-1) - line.steps[0]));
  const ofEvaluations = isLoss ? 0 : smoothing;
  const thin = (line) => ({ type: "scatter", mode: "lines", opacity: 0.6, line: { color: colour(line.arm_index), width: 1 },
    ...middle(line, smoothing), ...hover(line, "training"), ...entry(line, false) });
  const bold = (line) => ({ type: "scatter", mode: marked(line.x), ...middle(line, ofEvaluations), line: look(line, 2.2, line.seed_index), marker: { size: 5 },
    ...hover(line, "validation"), ...entry(line, true) });
  const [[trainedAlone, evaluatedAlone], [trainedSeeds, evaluatedSeeds]] = [isAlone, (line) => !isAlone(line)].map((isOne) => [trained, evaluated].map((lines) => lines.filter(isOne)));
  const averaged = (lines, part) => lines.map((line) => ({ ...line, ...middle(line, part) }));
  const ends = evaluated.map((line) => [line.label, line.values.findLast((value) => value !== null)]).filter(([, end]) => end !== undefined);
  return {
    traces: [...(smoothing ? (isLoss ? trainedAlone : evaluatedAlone).map(band) : []), ...trainedAlone.map(thin), ...evaluatedAlone.map(bold),
      ...meanLines(averaged(trainedSeeds, smoothing), [averaged(evaluatedSeeds, ofEvaluations), "validation"], { unit })],
    layout: { height: 460, xaxis: { title: { text: `${title}${unit && `, ${unit}`}${isLoss ? "<br>thin: training, bold: validation" : ""}` }, rangemode: "tozero" },
      yaxis: { title: { text: isLoss ? LOSS : `validation ${metric}` }, ...(isLoss ? logAxis([...trained, ...evaluated].flatMap((line) => line.values), String) : {}) },
      uirevision: [axis, unit, metric].join() },
    label: ends.map(([label, end]) => `${label} validation ${metric} now ${loss(end)}`).join("; ") || "no points yet",
    columns: [["trial", (row) => row.label, "name"], figures("step", (row) => row.step, String),
      figures("clock", (row) => row.seconds, duration), figures("sent", (row) => row.bytes, size),
      [`validation ${metric}`, (row) => (row.value === null ? "diverged" : loss(row.value)), "number", (row) => row.value]],
    rows: evaluated.flatMap((line) => {
      const sent = bytesAt(line.trial);
      return line.values.map((value, at) => ({ label: line.label, step: line.steps[at], seconds: line.seconds[at],
        bytes: Math.round(sent(line.steps[at])), value }));
    }),
  };
}

// Learning rates above, and densities, if any, below, over committed steps.
export function overlaidSchedules(schedules) {
  const shown = schedules.filter((each) => each.entries.length);
  const sparse = shown.filter((each) => each.entries.some(({ density }) => density !== null));
  const line = (each, field, more) => ({
    type: "scatter", mode: "lines", line: look(each, 2.2, each.seed_index), ...more, hovertemplate: `${each.label}: %{y:.4~g}<br>step %{x}<extra></extra>`,
    x: each.entries.flatMap(({ step, num_steps }) => [step, step + num_steps]),
    y: each.entries.flatMap((entry) => [entry[field], endOf(entry, field)]),
  });
  const values = (found, field) => found.flatMap((each) => each.entries.flatMap((entry) => [entry[field], endOf(entry, field)]));
  return {
    traces: [...shown.map((each) => line(each, "learning_rate", entry(each, true))),
      ...sparse.map((each) => line(each, "density", { yaxis: "y2", ...entry(each, false) }))],
    layout: { xaxis: { title: { text: "committed steps" }, rangemode: "tozero", anchor: sparse.length ? "y2" : "y" },
      yaxis: { title: { text: "learning rate" }, domain: [sparse.length ? 0.56 : 0, 1], ...logAxis(values(shown, "learning_rate"), number) },
      ...(sparse.length && { yaxis2: { title: { text: "density" }, domain: [0, 0.44], ...logAxis(values(sparse, "density"), share) } }) },
    label: shown.map((each) => `${each.label} now learning rate ${number(each.entries.at(-1).learning_rate)}`).join("; ") || "no stage is decided yet",
    columns: [["trial", (row) => row.label, "name"], figures("step", (row) => row.step, String), figures("steps", (row) => row.num_steps, String),
      figures("learning rate", (row) => row.learning_rate, number), ["density", (row) => (row.density === null ? "dense" : share(row.density)), "number", (row) => row.density]],
    rows: shown.flatMap((each) => each.entries.map((entry) => ({ label: each.label, ...entry }))),
  };
}

const endOf = (entry, field) => (field === "learning_rate" ? lastRate(entry) : entry[field]);
