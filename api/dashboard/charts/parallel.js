// What was chosen, stage by stage: one axis for each value, one line for each stage. Drawn with plain lines: plotly's own
// parallel coordinates need WebGL, which a machine without a display lacks, and are missing in its SVG.

import { number } from "../units.js";
import { colour, entry } from "./look.js";

// How far up its axis each value is; `null` where there is none. Numbers that span a decade are on a logarithmic scale.
export function scale(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const names = known.some((value) => typeof value !== "number") ? [...new Set(known.map(String))].sort() : null;
  if (names) return { at: (value) => (names.length < 2 ? 0.5 : names.indexOf(String(value)) / (names.length - 1)), ends: [names[0], names.at(-1)] };
  const [least, most] = [Math.min(...known), Math.max(...known)];
  const turn = least > 0 && most / least >= 10 ? Math.log : (value) => value;
  return { at: (value) => (most === least ? 0.5 : (turn(value) - turn(least)) / (turn(most) - turn(least))), ends: [number(least), number(most)] };
}

// Stages: {label, arm, arm_index, is_first_seed, stage, values, loss}.
export function parallelChart(stages) {
  const names = [...new Set(stages.flatMap((each) => Object.entries(each.values).filter(([, value]) => value !== null).map(([name]) => name)))];
  const all = [["stage", (row) => row.stage], ...names.map((name) => [name.replaceAll("_", " "), (row) => row.values[name] ?? null]),
    ["loss at its end", (row) => row.loss]];
  const axes = all.filter(([, of]) => stages.some((row) => of(row) !== null));
  const places = axes.map((_, at) => at);
  const scales = axes.map(([, of]) => scale(stages.map(of)));
  const height = (row, at) => {
    const value = axes[at][1](row);
    return value === null ? null : scales[at].at(value);
  };
  const write = (value) => (typeof value === "number" ? number(value) : value ?? "–");
  const told = (row) => axes.map(([name, of]) => `${name} ${write(of(row))}`).join(", ");
  const lines = [...Map.groupBy(stages, (row) => row.label).values()].map((rows) => ({
    type: "scatter", mode: "lines+markers", line: { color: colour(rows[0].arm_index), width: 1.3 }, marker: { size: 5 }, opacity: 0.65,
    x: rows.flatMap(() => [...places, null]), y: rows.flatMap((row) => [...places.map((at) => height(row, at)), null]),
    text: rows.flatMap((row) => [...axes.map(() => `${row.label}: ${told(row)}`), null]), hovertemplate: "%{text}<extra></extra>", ...entry(rows[0], true),
  }));
  const ends = axes.flatMap((_, at) => scales[at].ends.map((text, side) => ({ x: at, y: side ? 1.06 : -0.06, text: String(text), showarrow: false })));
  return {
    traces: lines,
    layout: { height: 400, hovermode: "closest", annotations: stages.length ? ends : [],
      xaxis: { tickvals: places, ticktext: axes.map(([name]) => name), zeroline: false, range: [-0.3, axes.length - 0.7] },
      yaxis: { visible: false, range: [-0.12, 1.12] } },
    label: stages.length ? `${stages.length} stages; ${axes.map(([name], at) => `${name} from ${scales[at].ends.join(" to ")}`).join(", ")}` : "no stage is decided yet",
    columns: [["trial", (row) => row.label, "name"], ...axes.map(([name, of]) => [name, (row) => write(of(row)), "number"])],
    rows: stages.map(({ label, stage, values, loss: end }) => ({ label, stage, values, loss: end })),
  };
}
