// The cost of a loss in bytes and in seconds.

import { duration, figures, loss, size, sizeAxis, timeAxis } from "../units.js";
import { colour, logAxis } from "./look.js";

// The points that no other one beats in both, cheapest first; of equal points only the first.
export function front(points, cost) {
  const kept = [];
  for (const point of points.toSorted((one, other) => cost(one) - cost(other) || one.loss - other.loss)) {
    if (!kept.length || point.loss < kept.at(-1).loss) kept.push(point);
  }
  return kept;
}

const COSTS = [["bytes", "x", sizeAxis, size], ["seconds", "x2", timeAxis, duration]];

// Trials: {label, arm_index, loss, bytes, seconds, isOver}. Running trials are hollow, and not on the front.
export function paretoChart(trials) {
  const known = trials.filter((each) => each.loss !== null);
  const over = known.filter((each) => each.isOver);
  const sides = COSTS.map(([field, axis, ticks, write]) => {
    const { unit, per } = ticks(Math.max(0, ...known.map((each) => each[field])));
    const best = front(over, (each) => each[field]);
    return { field, axis, unit, best, traces: [
      { type: "scatter", mode: "lines", name: "front", x: best.map((each) => each[field] / per), y: best.map((each) => each.loss), xaxis: axis,
        line: { shape: "hv", color: "#8a8f98", width: 1.5, dash: "dot" }, legendgroup: "front", showlegend: axis === "x", hoverinfo: "skip" },
      ...known.map((each) => ({ type: "scatter", mode: "markers", name: each.label, legendgroup: each.label, xaxis: axis, showlegend: axis === "x",
        x: [each[field] / per], y: [each.loss], text: [write(each[field])], hovertemplate: `${each.label}: loss %{y:.4~g}, %{text}<extra></extra>`,
        marker: { size: 11, color: colour(each.arm_index), symbol: each.isOver ? "circle" : "circle-open", line: { width: 2, color: colour(each.arm_index) } } }))] };
  });
  const on = (each) => sides.filter((side) => side.best.includes(each)).map((side) => side.field).join(" and ");
  return {
    traces: sides.flatMap((side) => side.traces),
    layout: { height: 400, yaxis: { title: { text: "validation loss" }, ...logAxis(known.map((each) => each.loss), String) },
      xaxis: { title: { text: `sent, ${sides[0].unit}` }, domain: [0, 0.46], rangemode: "tozero" },
      xaxis2: { title: { text: `clock, ${sides[1].unit}` }, domain: [0.54, 1], rangemode: "tozero" } },
    label: sides.map((side) => `cheapest in ${side.field} for their loss: ${side.best.map((each) => each.label).join(", ") || "none yet"}`).join("; "),
    columns: [["trial", (row) => row.label, "name"], figures("validation loss", (row) => row.loss, loss), figures("sent", (row) => row.bytes, size),
      figures("training", (row) => row.seconds, duration), ["on the front of", (row) => row.front || "–", ""]],
    rows: known.map((each) => ({ label: each.label, loss: each.loss, bytes: each.bytes, seconds: each.seconds, front: on(each) })),
  };
}
