// The loss, by the training clock.

import { duration, loss, timeAxis } from "../units.js";
import { colour, entry, logAxis, look } from "./look.js";

// Loss over the training clock: steps thin, validation bold.
export function lossChart(training, validation) {
  const last = (values) => values.findLast((value) => value !== null);
  const { unit, per } = timeAxis(Math.max(0, ...[...training, ...validation].map((each) => each.seconds.at(-1) ?? 0)));
  const lines = (series, name, width, opacity, mode) => series.filter((each) => each.values.length).map((each) => ({
    type: "scatter", mode, x: each.seconds.map((value) => value / per), y: each.values, opacity, ...entry(each, mode !== "lines"),
    line: mode === "lines" ? { color: colour(each.arm_index), width } : look(each, width), marker: { size: 5 },
    hovertemplate: `${each.label} ${name}: %{y:.4f}<br>%{x:.4~g} ${unit}<extra></extra>`,
  }));
  const ends = validation.filter((each) => last(each.values) !== undefined);
  return {
    traces: [...lines(training, "training", 1, 0.35, "lines"), ...lines(validation, "validation", 2.2, 1, "lines+markers")],
    layout: { xaxis: { title: { text: `training clock, ${unit}<br>thin: training, bold: validation` }, rangemode: "tozero" },
      yaxis: { title: { text: "loss" }, ...logAxis([...training, ...validation].flatMap((each) => each.values), String) } },
    label: ends.map((each) => `${each.label} validation loss now ${loss(last(each.values))}`).join("; ") || "no points yet",
    columns: [["trial", (row) => row.label, "name"], ["clock", (row) => duration(row.seconds), "number"],
      ["step", (row) => String(row.step), "number"],
      ["validation loss", (row) => (row.value === null ? "diverged" : loss(row.value)), "number"]],
    rows: validation.flatMap(({ label, steps, seconds, values }) =>
      values.map((value, at) => ({ label, value, step: steps[at], seconds: seconds[at] }))),
  };
}
