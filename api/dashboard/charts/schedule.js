// The learned schedule: rate, density and other changed values at each committed step.

import { duration, figures, number, share } from "../units.js";
import { ALIGNED, asOwnSchedule, joined, lastRate, logAxis, look, lookedAlike, named } from "./look.js";

const SEARCH = 0.02; // of the axis, that no commit took
const TAIL = "after the exported step";
const GAP = 0.12; // between two rows, as a share of the height

// A row for the learning rate, one for the density if any trial has one, and one for each value that changed; dotted lines
// where stages begin. Steps that a commit took over from the best probe are thin: the rate of a probe decays.
// A schedule ends with the exported state; what was trained after it is faint. Of two lines it is that of the kept one, and
// the user's own has no stages.
export function scheduleChart(schedules, stages, place, { trials = [], isLogAxis = false } = {}) {
  const shown = schedules.filter((each) => each.entries.length).map((each) => (isOwn(each) ? asOwnSchedule(each) : each));
  const searched = new Set(shown.filter((each) => !isOwn(each)).map((each) => each.trial_id));
  const decided = stages.filter((stage) => searched.has(stage.trial_id));
  const begins = decided.filter((stage) => stage.trial_id === shown[0]?.trial_id && stage.stage > 0);
  const rules = { type: "path", path: begins.map((stage) => `M${place.from(stage.trial_id, stage.first_step)},0V1`).join(""), yref: "paper",
    opacity: 0.5, line: { color: "#888", width: 1, dash: "dot" } }; // in one: hundreds of shapes are slow
  const rows = [{ name: "learning rate", of: (item) => item.learning_rate, end: lastRate, write: number },
    ...densityRow(shown), ...variedRows(shown)];
  const tails = shown.filter((each) => !isOwn(each)).map((each) => tailOf(each, decided, trials, place)).filter((each) => each.x.length);
  const names = rows.map((_, at) => (at ? `y${at + 1}` : "y"));
  const height = (1 - GAP * (rows.length - 1)) / rows.length;
  const axes = rows.map((row, at) => [`yaxis${at ? at + 1 : ""}`, {
    title: { text: row.name }, domain: [tidy(1 - at * (height + GAP) - height), tidy(1 - at * (height + GAP))], ...axisOf(row, shown, at ? [] : tails),
  }]);
  return {
    traces: rows.flatMap((row, at) => rowTraces(shown, row, { stages: decided, place, yaxis: names[at], isFirst: !at }))
      .concat(lineTraces(tails, { place, yaxis: "y", entry: TAIL, opacity: 0.6, isThin: true, where: ` ${TAIL}` })),
    layout: { height: 200 + 140 * rows.length, margin: ALIGNED, shapes: begins.length ? [rules] : [], uirevision: [place.axis, place.unit].join(),
      xaxis: { ...place.xaxis(isLogAxis), anchor: names.at(-1) }, ...Object.fromEntries(axes) },
    label: shown.map((each) => `${each.label} now learning rate ${number(each.entries.at(-1).learning_rate)}`).join("; ")
      || "no stage is decided yet",
    columns: [["trial", (row) => row.label, "name"], figures("step", (row) => row.step, String),
      figures("clock", (row) => row.begins, duration),
      figures("steps", (row) => row.num_steps, String),
      figures("learning rate", (row) => row.learning_rate, number),
      figures("at its end", lastRate, number),
      ["density", (row) => (row.density === null ? "dense" : share(row.density)), "number", (row) => row.density],
      figures("threshold", (row) => row.threshold, number),
      ...variedRows(shown).map((row) => [row.name, (item) => row.write(row.of(item) ?? null), ""])]
      .filter(([name]) => name !== "clock" || place.clock),
    rows: shown.flatMap((each) => each.entries.map((item) => ({ label: each.label, begins: place.clock?.(each.trial_id, item.step), ...item }))),
  };
}

const isOwn = ({ line }) => line === "insurance";
const tidy = (value) => Math.round(value * 1e6) / 1e6;

// The measured density, and where a density was chosen, the planned one.
function densityRow(shown) {
  const isSparse = shown.some((each) => each.entries.some((item) => item.density !== null));
  return isSparse ? [{ name: "density", of: (item) => item.density, planned: (item) => item.level, write: share }] : [];
}

function variedRows(shown) {
  const found = new Map();
  for (const each of shown) {
    for (const { values } of each.entries) for (const [name, value] of Object.entries(values)) found.set(name, (found.get(name) ?? new Set()).add(value));
  }
  return [...found].filter(([, taken]) => taken.size > 1).map(([name, taken]) => ({
    name: name.replaceAll("_", " "), of: (item) => item.values[name] ?? null,
    isCategory: [...taken].some((value) => typeof value !== "number"), write: (value, digits) => (typeof value === "number" ? number(value, digits) : String(value ?? "–")),
  }));
}

function axisOf(row, shown, tails) {
  const ends = shown.flatMap((each) => each.entries.flatMap((item) => [row.of(item), (row.end ?? row.of)(item)])).concat(tails.flatMap(({ y }) => y));
  return row.isCategory ? { type: "category" } : logAxis(ends, row.write);
}

// Planned values are dotted, and so are steps taken over from a probe.
function rowTraces(shown, row, { stages, place, yaxis, isFirst }) {
  const parts = shown.map((each) => ({ each, ...(isFirst ? parted(each, stages) : { own: each.entries, probed: [] }) }));
  const lines = (entriesOf, of, end) => parts.map(({ each, ...kinds }) => scheduleLine(each, entriesOf(kinds, each), { of, end, place }));
  const dotted = { opacity: 0.7, isThin: true };
  const planned = row.planned ? lines(({ own }, each) => (each.level_name === "density" ? own.filter((item) => item.level !== null) : []), row.planned, row.planned) : [];
  return [
    ...lineTraces(lines(({ own }) => own, row.of, row.end ?? row.of), { place, yaxis, entry: isFirst ? "" : null, opacity: 1, where: "" }),
    ...lineTraces(lines(({ probed }) => probed, row.of, row.end ?? row.of), { place, yaxis, ...dotted, where: " in the probe that was kept" }),
    ...lineTraces(planned, { place, yaxis, ...dotted, where: " planned" }),
  ];
}

// From the exported state to the end of the run: the rates with which stages began, and the last one. A rate may fall to 0,
// which a logarithmic axis cannot show.
function tailOf(each, stages, trials, place) {
  const trial = trials.find((one) => one.trial_id === each.trial_id);
  const last = each.entries.at(-1);
  const exported = last.step + last.num_steps;
  if (!trial?.outcome || trial.step <= exported) return { ...each, x: [], y: [] };
  const later = stages.filter((stage) => stage.trial_id === each.trial_id && stage.num_steps && stage.first_step > exported);
  const points = [[exported, lastRate(last)], ...later.map((stage) => [stage.first_step, stage.learning_rate]), [trial.step, trial.learning_rate]]
    .filter(([, rate]) => rate > 0);
  return { ...each, x: points.map(([step]) => place.to(each.trial_id, step)), y: points.map(([, value]) => value) };
}

// `entry`: the legend's one entry of all these lines; "": one for each look; null: none.
function lineTraces(lines, { place, yaxis, entry = null, opacity, isThin = false, where }) {
  const drawn = lines.filter((line) => line.x.length);
  return joined(drawn, lookedAlike).map(({ first, ...line }, at) => ({
    type: "scatter", mode: "lines", ...line, yaxis, opacity, ...named(first, drawn), ...(entry && { name: entry, legendgroup: entry }),
    showlegend: entry === "" || (entry !== null && at === 0),
    line: isThin ? { ...look(first, 1), dash: "dot" } : look(first, 2.2, first.seed_index),
    hovertemplate: `%{text}${where}: %{y${typeof line.y[0] === "string" ? "" : ":.4~g"}}<br>%{x:.4~g} ${place.unit}<extra></extra>`,
  }));
}

function scheduleLine(each, entries, { of, end, place }) {
  const endOf = (item) => place.to(each.trial_id, item.step + item.num_steps);
  const last = entries.length ? endOf(entries.at(-1)) : 0;
  const isGap = (item, at) => at > 0 && (entries[at - 1].step + entries[at - 1].num_steps < item.step
    || place.from(each.trial_id, item.step) - endOf(entries[at - 1]) > SEARCH * last); // a search lies between them
  const spread = (make) => entries.flatMap((item, at) => [...(isGap(item, at) ? [null] : []), ...make(item)]);
  return { ...each, x: spread((item) => [place.from(each.trial_id, item.step), endOf(item)]), y: spread((item) => [of(item), end(item)]) };
}

// The entries of a schedule without those taken over from a probe.
function parted({ trial_id, entries }, stages) {
  const kept = stages.filter((stage) => stage.trial_id === trial_id && stage.promoted !== null).map((stage) => {
    const probe = stage.probes.find((each) => each.probe_id === stage.promoted);
    return [stage.first_step, stage.first_step + (probe?.num_steps ?? 0)];
  });
  const isProbed = ({ step, num_steps }) => kept.some(([from, to]) => step >= from && step + num_steps <= to);
  return { own: entries.filter((item) => !isProbed(item)), probed: entries.filter(isProbed) };
}
