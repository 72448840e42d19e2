// The measurements of a sweep's samples: over their values, over their ranks, or over their cost, with the front of those
// that ended; in the order of the samples, over one parameter, and how much each parameter tells about them.

import { duration, figures, loss, number, share, size, sizeAxis, timeAxis } from "../units.js";
import { importances } from "./importance.js";
import { barAxis, colour, COLOURS, logAxis, shortened, tall, tint } from "./look.js";
import { parallelChart } from "./parallel.js";

const DEFAULT_SAMPLES = 16;
const ENDED = ["completed", "diverged"];

const SAMPLE = "sample-";

export const sampleNames = (spec) =>
  Object.keys(spec.params ?? {}).length ? Array.from({ length: spec.sweep?.samples ?? DEFAULT_SAMPLES }, (_, at) => `${SAMPLE}${at}`) : [];

// The samples that have measured the metric, in their order. `isWhole`: with the whole budget, so that they compare.
const measuredSamples = ({ ranking }) => ranking.filter((each) => each.sample?.values && each.value !== null)
  .map((each) => ({ ...each, values: each.sample.values, number: Number(each.arm.slice(SAMPLE.length)), isWhole: ENDED.includes(each.status) }))
  .sort((one, other) => one.number - other.number);

const markerOf = (samples) => ({ size: 8, color: colour(0), line: { width: 2, color: colour(0) }, symbol: samples.map(({ isWhole }) => (isWhole ? "circle" : "circle-open")) });
const textsOf = (samples, metric) => samples.map((each) => `${each.label}, ${each.status} at ${share(each.share)}: ${metric} ${loss(each.value)}<br>${valuesText(each)}`);

// The best value so far of samples with their whole budget, in the order of the samples.
export function bestSoFarChart(found) {
  const samples = measuredSamples(found);
  const best = found.direction === "max" ? Math.max : Math.min;
  let held = null;
  const rows = samples.map((each) => ({ ...each, best: (held = each.isWhole ? best(held ?? each.value, each.value) : held) }));
  const known = rows.filter((row) => row.best !== null);
  return {
    traces: [
      { type: "scatter", mode: "markers", name: "samples", x: rows.map((row) => row.number), y: rows.map((row) => row.value), text: textsOf(rows, found.metric),
        hovertemplate: "%{text}<extra></extra>", opacity: 0.5, marker: markerOf(rows) },
      { type: "scatter", mode: "lines", name: "best so far", x: known.map((row) => row.number), y: known.map((row) => row.best),
        line: { shape: "hv", color: COLOURS[1], width: 2 }, hovertemplate: `best ${found.metric} up to sample %{x}: %{y:.4~g}<extra></extra>` }],
    layout: { height: 320, xaxis: { title: { text: "sample" }, rangemode: "tozero" }, yaxis: { title: { text: found.metric }, ...logAxis(rows.map((row) => row.value), String) } },
    label: known.length ? `the best ${found.metric} is ${loss(held)} after ${known.length} samples` : "no sample has had its whole budget yet",
    columns: [figures("sample", (row) => row.number, String), ["state", (row) => row.status, ""], figures(found.metric, (row) => row.value, loss), figures("best so far", (row) => row.best, loss)],
    rows,
  };
}

// Of samples with their whole budget.
export const importancesOf = (found) => importances(measuredSamples(found).filter(({ isWhole }) => isWhole));

export function importanceChart(found) {
  const rows = importancesOf(found).map((each) => ({ ...each, label: each.path }));
  const known = rows.filter((row) => row.importance !== null);
  return {
    traces: [{ type: "bar", orientation: "h", y: known.map((row) => row.path), x: known.map((row) => row.importance), text: known.map((row) => row.measure), textposition: "none",
      marker: { color: known.map((row) => COLOURS[row.measure === "share of variance" ? 1 : 0]) }, hovertemplate: "%{y}: %{text} %{x:.2~g}<extra></extra>" }],
    layout: { height: Math.max(320, tall(known)), xaxis: { title: { text: "rank correlation of numbers, share of variance of choices" }, range: [0, 1] }, yaxis: barAxis(known),
      ...(known.length ? {} : { annotations: [{ text: "too few samples have had their whole budget", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }] }) },
    label: known.map((row) => `${row.path}: ${row.measure} ${number(row.importance, 2)}`).join("; ") || "too few samples have had their whole budget",
    columns: [["parameter", (row) => row.path, "name"], ["measure", (row) => row.measure, ""], figures("importance", (row) => row.importance, (value) => number(value, 2)), figures("samples", (row) => row.count, String)],
    rows,
  };
}

// The metric over the values of one parameter.
export function parameterChart(found, path) {
  const rows = measuredSamples(found).filter(({ values }) => path in values).map((each) => ({ ...each, at: each.values[path] }));
  const isNumber = rows.every(({ at }) => typeof at === "number");
  const shorts = isNumber ? null : shortChoices(rows.map(({ at }) => at));
  const numbers = rows.map(({ at }) => at);
  const isWide = isNumber && Math.min(...numbers) > 0 && Math.max(...numbers) >= 10 * Math.min(...numbers);
  return {
    traces: [{ type: "scatter", mode: "markers", x: rows.map(({ at }) => (isNumber ? at : shorts.get(written(at)))), y: rows.map((row) => row.value),
      text: textsOf(rows, found.metric), hovertemplate: "%{text}<extra></extra>", marker: markerOf(rows) }],
    layout: { height: 320, uirevision: path, yaxis: { title: { text: found.metric }, ...logAxis(rows.map((row) => row.value), String) },
      xaxis: { title: { text: path }, ...(isNumber ? {} : { type: "category", categoryorder: "category ascending" }), ...(isWide ? logAxis(numbers, number) : {}) } },
    label: `${rows.length} samples; filled ones have their whole budget`,
    columns: [["trial", (row) => row.label, "name"], isNumber ? figures(path, (row) => row.at, written) : [path, (row) => written(row.at), ""], figures(found.metric, (row) => row.value, loss),
      ["state", (row) => row.status, ""]],
    rows,
  };
}

export const writeCost = (unit) => (unit === "seconds" ? duration : size);

const written = (value) => (typeof value === "number" ? number(value, 4) : typeof value === "string" ? value : JSON.stringify(value));

// A sample's values in words; for an arm or a sample not drawn yet, that it is one.
export function valuesText({ sample }) {
  if (sample === null) return "as the arm says";
  if (sample.values === null) return "not drawn yet: it learns from the others";
  return Object.entries(sample.values).map(([path, value]) => `${path} ${written(value)}`).join(", ");
}

// Each sample as a line over its values. A stronger colour is a better rank; the best are on top.
export function parametersChart(found) {
  const measured = found.ranking.filter((each) => each.value !== null).toReversed();
  const plain = (value) => (typeof value === "number" ? value : written(value));
  const rows = measured.map(({ label, sample, value }, at) => ({ label, arm: label, is_first_seed: false, value, shade: tint(colour(0), 0.3 + (0.7 * (at + 1)) / measured.length),
    values: Object.fromEntries(Object.entries(sample?.values ?? {}).map(([path, each]) => [path, plain(each)])) }));
  const drawn = measured.flatMap(({ sample }) => sample?.values ?? []);
  const chosen = [...new Set(drawn.flatMap(Object.keys))].filter((path) => drawn.some((each) => typeof each[path] !== "number"));
  const shorts = new Map(chosen.map((path) => [path, shortChoices(drawn.map((each) => each[path]))]));
  return parallelChart(rows, { before: [], after: [[found.metric, "value"]], nameOf: (path) => path, noun: "trials", none: "nothing is measured yet",
    shortOf: (path, text) => shorts.get(path)?.get(text) ?? shortened(text) });
}

// The short label of each choice on an axis: for objects, as few of the differing fields as tell them apart. Equal labels
// are numbered.
export function shortChoices(values) {
  const choices = [...new Map(values.map((each) => [written(each), each]))].sort(([one], [other]) => (one < other ? -1 : 1));
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const objects = choices.map(([, value]) => value).filter(isObject);
  const fields = [...new Set(["kind", ...objects.flatMap(Object.keys)])].filter((field) => new Set(objects.map((each) => written(each[field]))).size > 1);
  const said = (value, some) => some.filter((field) => field in value)
    .map((field) => (some[0] === "kind" ? "" : `${field} `) + written(value[field])).join(", ");
  const isTold = (some) => new Set(objects.map((each) => said(each, some))).size === objects.length;
  const enough = fields.slice(0, 1 + fields.findIndex((_, at) => isTold(fields.slice(0, at + 1))));
  const short = choices.map(([text, value]) => [text, shortened((isObject(value) && said(value, enough)) || text)]);
  const isTwice = (label) => short.filter(([, other]) => other === label).length > 1;
  return new Map(short.map(([text, label], at) => [text, isTwice(label) ? `${at + 1}: ${label}` : label]));
}

export function sweepChart(found, names) {
  const measured = found.ranking.filter((each) => each.value !== null);
  const { unit, per } = found.cost === null ? { unit: "", per: 1 }
    : (found.cost === "seconds" ? timeAxis : sizeAxis)(Math.max(0, ...measured.map((each) => each.cost)));
  const across = (each) => (found.cost === null ? each.place : each.cost / per);
  const front = found.cost === null ? [] : measured.filter((each) => each.on_front).toSorted((one, other) => one.cost - other.cost);
  const shades = measured.map((each) => colour(names.indexOf(each.arm)));
  const points = { type: "scatter", mode: "markers", name: "trials", showlegend: false, x: measured.map(across), y: measured.map((each) => each.value),
    text: textsOf(measured, found.metric), hovertemplate: "%{text}<extra></extra>", marker: { size: measured.map((each) => (each.sample ? 9 : 13)), color: shades,
      line: { width: 2, color: shades }, symbol: measured.map((each) => (each.sample ? "circle" : "diamond") + (ENDED.includes(each.status) ? "" : "-open")) } };
  const line = { type: "scatter", mode: "lines", name: "front", x: front.map(across), y: front.map((each) => each.value), hoverinfo: "skip",
    showlegend: false, line: { shape: "hv", color: "#8a8f98", width: 1.5, dash: "dot" } };
  return {
    traces: [...(front.length > 1 ? [line] : []), points],
    layout: { height: 320, xaxis: { title: { text: found.cost === null ? "place" : `${found.cost}, ${unit}` }, rangemode: "tozero" },
      yaxis: { title: { text: found.metric }, ...logAxis(measured.map((each) => each.value), String) } },
    label: `${measured.length} of ${found.ranking.length} trials have measured ${found.metric}; filled ones have their whole budget, diamonds are arms`
      + (front.length ? `; on the front: ${front.map((each) => each.label).join(", ")}` : ""),
    columns: [figures("place", (row) => row.place, String), ["trial", (row) => row.label, "name"], ["state", (row) => row.status, ""],
      figures("of its budget", (row) => row.share, share), figures(found.metric, (row) => row.value, loss),
      ...(found.cost === null ? [] : [figures(found.cost, (row) => row.cost, writeCost(found.cost))]), ["values", valuesText, ""]],
    rows: found.ranking,
  };
}
