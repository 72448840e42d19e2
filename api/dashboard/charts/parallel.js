// Chosen values by stage or by sample: one axis per value, one line per row. Drawn with plain lines, because plotly's own
// parallel coordinates need WebGL, which a machine without a display lacks, and are missing in its SVG.

import { figures, number, share } from "../units.js";
import { colour, entry, grouped, shortened } from "./look.js";

const MOST_NAMES = 6; // of one axis that are written beside it

// The height of each value on its axis; `null` if there is none. Numbers spanning a decade get a logarithmic scale.
export function scale(values, write = number) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const names = known.some((value) => typeof value !== "number") ? [...new Set(known.map(String))].sort() : null;
  if (names) return { at: (value) => (names.length < 2 ? 0.5 : names.indexOf(String(value)) / (names.length - 1)), ends: [names[0], names.at(-1)],
    between: names.length > MOST_NAMES ? [] : names.slice(1, -1) };
  const [least, most] = [Math.min(...known), Math.max(...known)];
  const turn = least > 0 && most / least >= 10 ? Math.log : (value) => value;
  return { at: (value) => (most === least ? 0.5 : (turn(value) - turn(least)) / (turn(most) - turn(least))), ends: [write(least), write(most)], between: [] };
}

const STAGES = { before: [], after: [["loss at its end", "loss"]], nameOf: (name) => name.replaceAll("_", " "), noun: "stages",
  none: "no stage is decided yet", shortOf: (_, text) => shortened(text) };

// Rows: {label, arm, arm_index, is_first_seed, values}, with the fields of the axes [name, field] before and after the
// values. A row's `shade`, if any, is its colour. An axis of names is labelled with `shortOf` each name.
export function parallelChart(rows, { before, after, nameOf, noun, none, shortOf } = STAGES) {
  const names = [...new Set(rows.flatMap((each) => Object.entries(each.values).filter(([, value]) => value !== null).map(([name]) => name)))];
  const stated = (fields) => fields.map(([name, field]) => [name, (row) => row[field]]);
  const all = [...stated(before), ...names.map((name) => [nameOf(name), (row) => row.values[name] ?? null]), ...stated(after)];
  const axes = all.filter(([, of]) => rows.some((row) => of(row) !== null));
  const places = axes.map((_, at) => at);
  const writeOf = (name) => (name === "density" ? share : number);
  const scales = axes.map(([name, of]) => scale(rows.map(of), writeOf(name)));
  const height = (row, at) => {
    const value = axes[at][1](row);
    return value === null ? null : scales[at].at(value);
  };
  const write = (name) => (value) => (typeof value === "number" ? writeOf(name)(value) : value ?? "–");
  const told = (row) => axes.map(([name, of]) => `${name} ${write(name)(of(row))}`).join(", ");
  const lines = [...grouped(rows, (row) => row.label).values()].map((own) => ({
    type: "scatter", mode: "lines+markers", line: { color: own[0].shade ?? colour(own[0].arm_index), width: 1.3 }, marker: { size: 5 }, opacity: 0.65,
    x: own.flatMap(() => [...places, null]), y: own.flatMap((row) => [...places.map((at) => height(row, at)), null]),
    text: own.flatMap((row) => [...axes.map(() => `${row.label}: ${told(row)}`), null]), hovertemplate: "%{text}<extra></extra>", ...entry(own[0], true),
  }));
  const ends = axes.flatMap(([name], at) => [
    ...scales[at].ends.map((text, side) => ({ x: at, y: side ? 1.06 : -0.06, text: shortOf(name, String(text)), showarrow: false })),
    ...scales[at].between.map((text) => ({ x: at, y: scales[at].at(text), text: shortOf(name, text), showarrow: false, xanchor: "left", xshift: 6 })),
  ]);
  return {
    traces: lines,
    layout: { height: 400, hovermode: "closest", annotations: rows.length ? ends : [],
      xaxis: { tickvals: places, ticktext: axes.map(([name]) => name), zeroline: false, range: [-0.4, axes.length - 0.6] },
      yaxis: { visible: false, range: [-0.12, 1.12] } },
    label: rows.length ? `${rows.length} ${noun}; ${axes.map(([name], at) => `${name} from ${scales[at].ends.join(" to ")}`).join(", ")}` : none,
    columns: [["trial", (row) => row.label, "name"], ...axes.map(([name, of]) => figures(name, of, write(name)))],
    rows: rows.map((row) => {
      const fields = (given) => given.map(([, field]) => [field, row[field]]);
      return Object.fromEntries([["label", row.label], ...fields(before), ["values", row.values], ...fields(after)]);
    }),
  };
}
