// What the samples of a sweep measured: by their place, or by their cost with the front of those that ended.

import { duration, loss, number, share, size, sizeAxis, timeAxis } from "../units.js";
import { colour, logAxis } from "./look.js";

const DEFAULT_SAMPLES = 16;
const ENDED = ["completed", "diverged"];

export const sampleNames = (spec) =>
  Object.keys(spec.params ?? {}).length ? Array.from({ length: spec.sweep?.samples ?? DEFAULT_SAMPLES }, (_, at) => `sample-${at}`) : [];

export const writeCost = (unit) => (unit === "seconds" ? duration : size);

const written = (value) => (typeof value === "number" ? number(value, 4) : typeof value === "string" ? value : JSON.stringify(value));

// What a sample sets, in words; of an arm, and of a sample that is not drawn yet, that.
export function valuesText({ sample }) {
  if (sample === null) return "as the arm says";
  if (sample.values === null) return "not drawn yet: it learns from the others";
  return Object.entries(sample.values).map(([path, value]) => `${path} ${written(value)}`).join(", ");
}

export function sweepChart(found, names) {
  const measured = found.ranking.filter((each) => each.value !== null);
  const { unit, per } = found.cost === null ? { unit: "", per: 1 }
    : (found.cost === "seconds" ? timeAxis : sizeAxis)(Math.max(0, ...measured.map((each) => each.cost)));
  const across = (each) => (found.cost === null ? each.place : each.cost / per);
  const front = found.cost === null ? [] : measured.filter((each) => each.on_front).toSorted((one, other) => one.cost - other.cost);
  const points = measured.map((each) => {
    const shade = colour(names.indexOf(each.arm));
    return { type: "scatter", mode: "markers", name: each.arm, showlegend: false, x: [across(each)], y: [each.value],
      hovertemplate: `${each.arm}, ${each.status} at ${share(each.share)}: ${found.metric} %{y:.4~g}<br>${valuesText(each)}<extra></extra>`,
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
      + (front.length ? `; on the front: ${front.map((each) => each.arm).join(", ")}` : ""),
    columns: [["place", (row) => String(row.place), "number"], ["trial", (row) => row.arm, "name"], ["state", (row) => row.status, ""],
      ["of its budget", (row) => share(row.share), "number"], [found.metric, (row) => loss(row.value), "number"],
      ...(found.cost === null ? [] : [[found.cost, (row) => writeCost(found.cost)(row.cost), "number"]]), ["values", valuesText, ""]],
    rows: found.ranking,
  };
}
