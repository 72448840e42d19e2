// Traffic: bytes by purpose, rates, and the share of a step spent waiting for it.

import { duration, figures, number, share, size, sizeAxis, timeAxis } from "../units.js";
import { barAxis, COLOURS, entry, joined, logAxis, look, tall } from "./look.js";

const PURPOSES = {
  gradient: "gradients", parameters: "averages of parameters", state: "state", padding: "padding", control: "control",
  repair: "repairs, outside of the budget", insurance: "own schedule, outside of the budget",
};

// Bytes by purpose, from each worker's ledger.
export function purposesOf({ bytes_by_purpose: sent, bytes_recovery: repair, bytes_insurance: insurance }) {
  return Object.fromEntries(Object.entries({ ...sent, repair, insurance }).filter(([, bytes]) => bytes > 0));
}

export function purposeChart(trials) {
  const rows = trials.map((trial) => ({ ...trial, purposes: purposesOf(trial.bill) }));
  const { unit, per } = sizeAxis(Math.max(0, ...rows.map((row) => Object.values(row.purposes).reduce((sum, bytes) => sum + bytes, 0))));
  const names = Object.keys(PURPOSES).filter((name) => rows.some((row) => row.purposes[name]));
  return {
    traces: names.map((name, at) => ({ type: "bar", orientation: "h", name: PURPOSES[name], y: rows.map((row) => row.label), x: rows.map((row) => (row.purposes[name] ?? 0) / per),
      text: rows.map((row) => size(row.purposes[name] ?? 0)), textposition: "none", hovertemplate: `%{y}, ${PURPOSES[name]}: %{text}<extra></extra>`,
      marker: { color: COLOURS[at % COLOURS.length], pattern: { shape: ["", "/", ".", "x"][at % 4] } } })),
    layout: { barmode: "stack", height: tall(trials), legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" }, xaxis: { title: { text: `${unit} sent by one worker` }, rangemode: "tozero" }, yaxis: barAxis(trials) },
    label: rows.map((row) => `${row.label}: ${names.filter((name) => row.purposes[name]).map((name) => `${PURPOSES[name]} ${size(row.purposes[name])}`).join(", ") || "nothing"}`).join("; "),
    columns: [["trial", (row) => row.label, "name"], ...names.map((name) => figures(PURPOSES[name], (row) => row.purposes[name] ?? 0, size))],
    rows,
  };
}

// Bytes per second between two reports, over all probes and training in between.
export function rates({ seconds, values }) {
  const found = { from: [], to: [], rate: [] };
  for (let at = 1; at < seconds.length; at++) {
    const took = seconds[at] - seconds[at - 1];
    if (took <= 0) continue;
    found.from.push(seconds[at - 1]);
    found.to.push(seconds[at]);
    found.rate.push((values[at] - values[at - 1]) / took);
  }
  return found;
}

// `sent` are series of bytes; `link` is the job's, whose capacity is known if it is emulated.
export function rateChart(sent, link, clock) {
  const rows = sent.filter((each) => each.values.length > 1).map((each) => ({ ...each, ...rates(each) }));
  const capacity = link.mode === "emulate" ? (link.mbps * 1e6) / 8 : null;
  const { unit, per } = sizeAxis(Math.max(capacity ?? 0, ...rows.map((row) => Math.max(0, ...row.rate))));
  const end = Math.max(0, ...rows.map((row) => row.to.at(-1) ?? 0));
  const mean = (row) => (row.values.at(-1) - row.values[0]) / (row.seconds.at(-1) - row.seconds[0]);
  return {
    traces: [...joined(rows.map((row) => ({ ...row, x: [...row.from, row.to.at(-1)].map((each) => each / clock.per), y: [...row.rate, row.rate.at(-1)].map((each) => each / per) })),
      (row) => row.arm).map(({ first, ...line }) => ({ type: "scatter", mode: "lines", ...line, line: { color: look(first, 1).color, width: 1.4, shape: "hv" },
      name: first.arm, legendgroup: first.arm, hovertemplate: `%{text}: %{y:.3~g} ${unit}/s<br>%{x:.4~g} ${clock.unit}<extra></extra>` })),
      ...(capacity === null ? [] : [{ type: "scatter", mode: "lines", x: [0, end / clock.per], y: [capacity / per, capacity / per], name: `capacity of the link, ${size(capacity)}/s`,
        line: { color: "#c2395b", width: 1.5, dash: "dash" }, hoverinfo: "skip" }])],
    layout: { height: 320, uirevision: [clock.unit, unit].join(), ...(rows.length ? {} : { annotations: [{ text: "no bytes were reported yet", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }] }),
      xaxis: { title: { text: `training clock, ${clock.unit}` }, rangemode: "tozero" }, yaxis: { title: { text: `${unit}/s sent by one worker` }, rangemode: "tozero" } },
    label: rows.map((row) => `${row.label} sent ${size(mean(row))}/s on average${capacity === null ? "" : `, ${share(mean(row) / capacity)} of the link`}`).join("; ") || "no bytes were reported yet",
    columns: [["trial", (row) => row.label, "name"], figures("from", (row) => row.begins, duration), figures("to", (row) => row.ends, duration),
      figures("sent a second", (row) => row.each, size), ...(capacity === null ? [] : [figures("of the link", (row) => row.each / capacity, share)])],
    rows: rows.flatMap((row) => row.rate.map((each, at) => ({ label: row.label, each, begins: row.from[at], ends: row.to[at] }))),
  };
}

// The time of a step: computing and waiting; next to it the exchange's own time, part of which the backward pass hides.
export function stepTimeChart(trials) {
  const rows = trials.filter(({ bill }) => bill.steps_timed > 0);
  const perStep = (row, name) => row.bill[`seconds_${name}`] / row.bill.steps_timed;
  const bar = (name, label, group, fill, shape = "", base = null) => ({
    type: "bar", orientation: "h", name: label, y: rows.map((row) => row.label), x: rows.map((row) => 1000 * perStep(row, name)), offsetgroup: group,
    ...(base && { base: rows.map((row) => 1000 * perStep(row, base)) }), marker: { color: fill, pattern: { shape } },
    text: rows.map((row) => duration(perStep(row, name))), textposition: "none", hovertemplate: `%{y}, ${label}: %{text}<extra></extra>`,
  });
  return {
    traces: [bar("compute", "computed", "0", COLOURS[2]), bar("exposed", "waited for the exchange", "0", COLOURS[5], "", "compute"),
      bar("compress", "the exchange's own work", "1", COLOURS[3], "/"), bar("wire", "on the wire", "1", COLOURS[0], "/", "compress")],
    layout: { barmode: "group", height: tall(rows), xaxis: { title: { text: "ms a step, mean over workers" }, rangemode: "tozero" }, yaxis: barAxis(rows) },
    label: rows.map((row) => `a step of ${row.label} computed ${duration(perStep(row, "compute"))} and waited ${duration(perStep(row, "exposed"))}`).join("; "),
    columns: [["trial", (row) => row.label, "name"], figures("steps timed", (row) => row.bill.steps_timed, String),
      figures("computed", (row) => perStep(row, "compute"), duration), figures("waited", (row) => perStep(row, "exposed"), duration),
      figures("waited, share", (row) => row.bill.seconds_exposed / (row.bill.seconds_exposed + row.bill.seconds_compute), share),
      figures("exchange's work", (row) => perStep(row, "compress"), duration), figures("on the wire", (row) => perStep(row, "wire"), duration),
      figures("hidden behind backward", (row) => hiddenShare(row.bill), share)],
    rows,
  };
}

// What the training clock of each trial went to.
const CLOCK = {
  "training and the rest": (bill) => Math.max(0, bill.seconds_training - bill.seconds_search - bill.seconds_evaluation - bill.seconds_checkpoint),
  searching: (bill) => bill.seconds_search,
  evaluating: (bill) => bill.seconds_evaluation,
  "writing checkpoints": (bill) => bill.seconds_checkpoint,
};

export function clockChart(trials) {
  const { unit, per } = timeAxis(Math.max(0, ...trials.map(({ bill }) => bill.seconds_training)));
  const parts = Object.entries(CLOCK).filter(([, of]) => trials.some(({ bill }) => of(bill) > 0));
  return {
    traces: parts.map(([name, of], at) => ({ type: "bar", orientation: "h", name, y: trials.map(({ label }) => label), x: trials.map(({ bill }) => of(bill) / per),
      text: trials.map(({ bill }) => duration(of(bill))), textposition: "none", hovertemplate: `%{y}, ${name}: %{text}<extra></extra>`,
      marker: { color: COLOURS[at % COLOURS.length], pattern: { shape: ["", "/", ".", "x"][at % 4] } } })),
    layout: { barmode: "stack", height: tall(trials), legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" },
      xaxis: { title: { text: `training clock, ${unit}` }, rangemode: "tozero" }, yaxis: barAxis(trials) },
    label: trials.map(({ label, bill }) => `${label}: ${parts.map(([name, of]) => `${name} ${duration(of(bill))}`).join(", ")}`).join("; "),
    columns: [["trial", (row) => row.label, "name"], ...parts.map(([name, of]) => figures(name, ({ bill }) => of(bill), duration)),
      figures("training clock", ({ bill }) => bill.seconds_training, duration)],
    rows: trials,
  };
}

// The share of the exchange's time during which no training waited.
export function hiddenShare({ seconds_wire: wire, seconds_compress: compress, seconds_exposed: exposed }) {
  const whole = wire + compress;
  return whole > 0 ? Math.max(0, 1 - exposed / whole) : null;
}

// Chosen and measured densities, a point per stage; stages of arms without a density are left out.
export function densityChart(stages) {
  const rows = stages.filter((stage) => stage.level_name === "density" && stage.level !== null && stage.density !== null);
  const arms = [...new Map(rows.map((stage) => [stage.trial_id, stage]))].map(([, stage]) => stage);
  const ends = rows.flatMap((stage) => [stage.level, stage.density]);
  return {
    traces: [{ type: "scatter", mode: "lines", x: [Math.min(...ends), Math.max(...ends)], y: [Math.min(...ends), Math.max(...ends)], name: "as planned",
      line: { color: "#808080", dash: "dot", width: 1 }, hoverinfo: "skip" },
    ...arms.map((arm) => {
      const own = rows.filter((stage) => stage.trial_id === arm.trial_id);
      return { type: "scatter", mode: "markers", ...entry(arm, true), marker: { size: 9, color: look(arm, 1).color },
        x: own.map((stage) => stage.level), y: own.map((stage) => stage.density), text: own.map((stage) => `${stage.label}, stage ${stage.stage}: planned ${share(stage.level)}, measured ${share(stage.density)}`),
        hovertemplate: "%{text}<extra></extra>" };
    })],
    layout: { height: 320, xaxis: { title: { text: "density that was planned" }, ...logAxis(ends, share) },
      yaxis: { title: { text: "density that was measured" }, ...logAxis(ends, share) } },
    label: `${rows.length} stages; measured over planned: ${number(rows.reduce((sum, stage) => sum + stage.density / stage.level, 0) / rows.length, 3)} on average`,
    columns: [["trial", (row) => row.label, "name"], figures("stage", (row) => row.stage, String), figures("planned", (row) => row.level, share),
      figures("measured", (row) => row.density, share), figures("measured over planned", (row) => row.density / row.level, number)],
    rows,
  };
}
