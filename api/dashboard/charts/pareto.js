// The cost of a metric in bytes and in seconds.

import { duration, figures, loss, size, sizeAxis, timeAxis } from "../units.js";
import { colour, logAxis } from "./look.js";

// The points that no other one beats in both, cheapest first; of equal points only the first. A higher value is better if `isHigh`.
export function front(points, cost, isHigh = false) {
  const behind = (one, other) => (isHigh ? other.value - one.value : one.value - other.value);
  const kept = [];
  for (const point of points.toSorted((one, other) => cost(one) - cost(other) || behind(one, other))) {
    if (!kept.length || behind(point, kept.at(-1)) < 0) kept.push(point);
  }
  return kept;
}

const COSTS = [["bytes", "x", sizeAxis, size], ["seconds", "x2", timeAxis, duration]];

// Trials: {label, arm_index, value, bytes, seconds, isOver}. Running trials are hollow, and not on the front. With
// `isToTarget`, `seconds` are those until the target, null where it was not reached.
export function paretoChart(trials, { metric, isHigh, isToTarget = false }) {
  const known = trials.filter((each) => each.value !== null);
  const over = known.filter((each) => each.isOver);
  const sides = COSTS.map(([field, axis, ticks, write]) => {
    const isThere = (each) => each[field] !== null;
    const { unit, per } = ticks(Math.max(0, ...known.map((each) => each[field])));
    const best = front(over.filter(isThere), (each) => each[field], isHigh);
    return { field, axis, unit, best, traces: [
      { type: "scatter", mode: "lines", name: "front", x: best.map((each) => each[field] / per), y: best.map((each) => each.value), xaxis: axis,
        line: { shape: "hv", color: "#8a8f98", width: 1.5, dash: "dot" }, legendgroup: "front", showlegend: axis === "x", hoverinfo: "skip" },
      ...known.filter(isThere).map((each) => ({ type: "scatter", mode: "markers", name: each.label, legendgroup: each.label, xaxis: axis, showlegend: axis === "x",
        x: [each[field] / per], y: [each.value], text: [write(each[field])], hovertemplate: `${each.label}: ${metric} %{y:.4~g}, %{text}<extra></extra>`,
        marker: { size: 11, color: colour(each.arm_index), symbol: each.isOver ? "circle" : "circle-open", line: { width: 2, color: colour(each.arm_index) } } }))] };
  });
  const on = (each) => sides.filter((side) => side.best.includes(each)).map((side) => side.field).join(" and ");
  return {
    traces: sides.flatMap((side) => side.traces),
    layout: { height: 400, yaxis: { title: { text: `validation ${metric}` }, ...(metric === "loss" ? logAxis(known.map((each) => each.value), String) : {}) },
      xaxis: { title: { text: `sent, ${sides[0].unit}` }, domain: [0, 0.46], rangemode: "tozero" },
      xaxis2: { title: { text: `clock${isToTarget ? " until the target" : ""}, ${sides[1].unit}` }, domain: [0.54, 1], rangemode: "tozero" } },
    label: sides.map((side) => `cheapest in ${side.field} for their ${metric}: ${side.best.map((each) => each.label).join(", ") || "none yet"}`).join("; "),
    columns: [["trial", (row) => row.label, "name"], figures(`validation ${metric}`, (row) => row.value, loss), figures("sent", (row) => row.bytes, size),
      figures(isToTarget ? "to target" : "training", (row) => row.seconds, duration), ["on the front of", (row) => row.front || "–", ""]],
    rows: known.map((each) => ({ label: each.label, value: each.value, bytes: each.bytes, seconds: each.seconds, front: on(each) })),
  };
}
