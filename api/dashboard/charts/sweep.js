// The measurements of a sweep's samples: over their values, over their ranks, or over their cost, with the front of those
// that ended.

import { duration, figures, loss, number, share, size, sizeAxis, timeAxis } from "../units.js";
import { colour, logAxis, shortened, tint } from "./look.js";
import { parallelChart } from "./parallel.js";

const DEFAULT_SAMPLES = 16;
const ENDED = ["completed", "diverged"];

export const sampleNames = (spec) =>
  Object.keys(spec.params ?? {}).length ? Array.from({ length: spec.sweep?.samples ?? DEFAULT_SAMPLES }, (_, at) => `sample-${at}`) : [];

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
  const points = measured.map((each) => {
    const shade = colour(names.indexOf(each.arm));
    return { type: "scatter", mode: "markers", name: each.label, showlegend: false, x: [across(each)], y: [each.value],
      hovertemplate: `${each.label}, ${each.status} at ${share(each.share)}: ${found.metric} %{y:.4~g}<br>${valuesText(each)}<extra></extra>`,
      marker: { size: each.sample ? 9 : 13, color: shade, line: { width: 2, color: shade },
        symbol: (each.sample ? "circle" : "diamond") + (ENDED.includes(each.status) ? "" : "-open") } };
  });
  const line = { type: "scatter", mode: "lines", name: "front", x: front.map(across), y: front.map((each) => each.value), hoverinfo: "skip",
    showlegend: false, line: { shape: "hv", color: "#8a8f98", width: 1.5, dash: "dot" } };
  return {
    traces: [...(front.length > 1 ? [line] : []), ...points],
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
