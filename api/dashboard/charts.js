// The only file that knows plotly: data in, a chart out, with the same data as a table beside it.

import { element, table } from "./dom.js";

const COLOURS = ["#2f6fd0", "#d1661c", "#2a8f56", "#a24bb8", "#b8860b", "#c2395b", "#0f8b8d", "#6b6f76"];
const DASHES = ["solid", "dash", "dot", "dashdot"];

let library = null;

function load() {
  library ??= new Promise((resolve, reject) => {
    const source = document.querySelector('meta[name="plotly"]').content;
    document.head.append(element("script", {
      src: source,
      onload: () => resolve(window.Plotly),
      onerror: () => reject(new Error("the chart library did not load")),
    }));
  });
  return library;
}

export const colour = (index) => COLOURS[index % COLOURS.length];
export const dash = (index) => DASHES[index % DASHES.length];

// A panel with a chart and its table; `draw` updates both and keeps the reader's zoom.
export function panel(title, kind = "") {
  const chart = element("div", { class: "chart", role: "img", "aria-label": title });
  const data = element("div", { hidden: "" });
  const toggle = element("button", { type: "button", "aria-expanded": "false", onclick: flip }, "data table");
  const body = element("section", { class: `panel ${kind}` },
    element("div", { class: "panel-head" }, element("h2", {}, title), toggle), chart, data);
  let drawn = "";

  function flip() {
    data.hidden = !data.hidden;
    toggle.setAttribute("aria-expanded", String(!data.hidden));
  }

  async function draw({ traces, layout, label, columns, rows }) {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const state = JSON.stringify([traces, layout, dark]);
    if (state === drawn) return;
    drawn = state;
    chart.style.height = layout.height ? `${layout.height}px` : "";
    chart.setAttribute("aria-label", `${title}: ${label}`);
    data.replaceChildren(table(label, columns, rows));
    const plotly = await load();
    await plotly.react(chart, traces, themed(layout), { responsive: true, displaylogo: false, displayModeBar: false });
  }

  return { body, draw };
}

function themed(layout) {
  const style = getComputedStyle(document.body);
  const line = getComputedStyle(document.querySelector("header")).borderBottomColor;
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const axes = Object.fromEntries(
    Object.entries(layout).filter(([name]) => /^[xy]axis/.test(name)).map(([name, own]) => [name, { ...axis, ...own }]),
  );
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: style.color, family: style.fontFamily, size: 12 },
    margin: { l: 60, r: 15, t: 10, b: 45 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, // above: below is the axis, however tall
    uirevision: "keep",
    ...layout,
    ...axes,
  };
}

// Ticks as fine as the range asks for, written out: plotly's own crowd a low axis with bare digits.
function logAxis(values, write) {
  const known = values.filter((value) => value > 0);
  if (!known.length) return { type: "log" };
  const [low, high] = [Math.floor(Math.log10(Math.min(...known))), Math.ceil(Math.log10(Math.max(...known)))];
  const decades = Math.log10(Math.max(...known) / Math.min(...known));
  const isNarrow = decades > 0.1 && decades <= 0.7;
  const leads = decades > 2 ? [1] : isNarrow ? [1, 1.5, 2, 3, 4, 5, 6, 8] : [1, 2, 5];
  const powers = Array.from({ length: high - low + 1 }, (_, at) => low + at);
  const tickvals = powers.flatMap((power) => leads.map((lead) => Number(`${lead}e${power}`)));
  const middle = (Math.log10(Math.max(...known)) + Math.log10(Math.min(...known))) / 2;
  const around = decades <= 0.1 ? { range: [middle - 0.5, middle + 0.5] } : {}; // else no tick may be in sight
  return { type: "log", tickvals, ticktext: tickvals.map(write), ...around };
}

// One colour and one entry of the legend per arm; its seeds are lines of the same look, told apart by pointing at them.
const look = (each, width) => ({ color: colour(each.arm_index), width, dash: dash(each.arm_index) });
const entry = (each, shown) => ({ name: each.arm, legendgroup: each.arm, showlegend: shown && each.is_first_seed });

// Loss over the training clock: steps thin, validation bold.
export function lossChart(training, validation) {
  const lines = (series, name, width, opacity, mode) => series.filter((each) => each.values.length).map((each) => ({
    type: "scatter", mode, x: each.seconds, y: each.values, opacity, ...entry(each, mode !== "lines"),
    line: mode === "lines" ? { color: colour(each.arm_index), width } : look(each, width), marker: { size: 5 },
    hovertemplate: `${each.label} ${name}: %{y:.4f}<br>%{x:.1f} s<extra></extra>`,
  }));
  const last = (each) => each.values.findLast((value) => value !== null);
  const known = validation.filter((each) => last(each) !== undefined);
  return {
    traces: [...lines(training, "training", 1, 0.35, "lines"), ...lines(validation, "validation", 2.2, 1, "lines+markers")],
    layout: { xaxis: { title: { text: "training clock, s (thin: training, bold: validation)" }, rangemode: "tozero" },
      yaxis: { title: { text: "loss" }, ...logAxis([...training, ...validation].flatMap((each) => each.values), String) } },
    label: known.map((each) => `${each.label} validation loss now ${last(each).toFixed(4)}`).join("; ") || "no points yet",
    columns: [["trial", (row) => row[0], ""], ["seconds", (row) => row[1].toFixed(1), "number"],
      ["step", (row) => String(row[2]), "number"], ["validation loss", (row) => row[3]?.toFixed(4) ?? "diverged", "number"]],
    rows: validation.flatMap((each) => each.values.map((value, at) => [each.label, each.seconds[at], each.steps[at], value])),
  };
}

// Learning rate above, density below, over committed steps; dotted lines where stages begin.
export function scheduleChart(schedules, boundaries) {
  const steps = (entries, field) => ({
    x: entries.flatMap((entry) => [entry.step, entry.step + entry.num_steps]),
    y: entries.flatMap((entry) => [entry[field], field === "learning_rate" ? entry.final_learning_rate ?? entry[field] : entry[field]]),
  });
  const trace = (each, field, axis) => ({
    type: "scatter", mode: "lines", ...steps(each.entries, field), yaxis: axis, ...entry(each, axis === "y"),
    line: look(each, 2.2),
    hovertemplate: `${each.label}: %{y:.4g}<br>step %{x}<extra></extra>`,
  });
  const sparse = schedules.filter((each) => each.entries.some((entry) => entry.density !== null));
  const shown = schedules.filter((each) => each.entries.length);
  const values = (found, field) => found.flatMap((each) => each.entries.map((entry) => entry[field]));
  const rule = (step) => ({ type: "line", x0: step, x1: step, y0: 0, y1: 1, yref: "paper", opacity: 0.5,
    line: { color: "#888", width: 1, dash: "dot" } });
  return {
    traces: [...shown.map((each) => trace(each, "learning_rate", "y")), ...sparse.map((each) => trace(each, "density", "y2"))],
    layout: { xaxis: { title: { text: "committed steps" }, rangemode: "tozero", anchor: "y2" },
      yaxis: { title: { text: "learning rate" }, domain: [0.56, 1], ...logAxis(values(shown, "learning_rate"), String) },
      yaxis2: { title: { text: "density" }, domain: [0, 0.44],
        ...logAxis(values(sparse, "density"), (value) => `${Number((100 * value).toPrecision(3))}%`) },
      shapes: boundaries.map(rule) },
    label: shown.map((each) => `${each.label} now learning rate ${each.entries.at(-1).learning_rate.toPrecision(3)}`).join("; ")
      || "no stage is decided yet",
    columns: [["trial", (row) => row.label, ""], ["step", (row) => String(row.step), "number"],
      ["steps", (row) => String(row.num_steps), "number"],
      ["learning rate", (row) => row.learning_rate.toPrecision(3), "number"],
      ["density", (row) => row.density?.toPrecision(3) ?? "dense", "number"],
      ["threshold", (row) => row.threshold?.toPrecision(3) ?? "–", "number"]],
    rows: schedules.flatMap((each) => each.entries.map((entry) => ({ label: each.label, ...entry }))),
  };
}

const short = (label) => (label.length > 26 ? `${label.slice(0, 17)}…${label.slice(-8)}` : label);

// What one worker sent, beside what the same steps would have sent without compression.
export function bytesChart(trials) {
  const megabytes = (value) => value / 1e6;
  const labels = trials.map((each) => each.label);
  const bar = (name, value, fill) => ({
    type: "bar", orientation: "h", name, y: labels, x: trials.map((each) => megabytes(value(each.bill))),
    marker: { color: fill, pattern: { shape: name === "dense" ? "/" : "" } }, offsetgroup: name === "dense" ? "1" : "0",
    hovertemplate: `%{y}, ${name}: %{x:.2f} MB<extra></extra>`,
  });
  const search = bar("sent while searching", (bill) => bill.bytes_search, COLOURS[1]);
  return {
    traces: [bar("sent while training", (bill) => bill.bytes_sent - bill.bytes_search, COLOURS[0]),
      { ...search, base: trials.map((each) => megabytes(each.bill.bytes_sent - each.bill.bytes_search)) },
      bar("dense", (bill) => bill.bytes_dense, "#8a8f98")],
    layout: { barmode: "group", height: Math.max(340, 110 + 32 * trials.length),
      xaxis: { title: { text: "MB sent by one worker" }, rangemode: "tozero" },
      yaxis: { type: "category", autorange: "reversed", tickvals: labels, ticktext: labels.map(short) } },
    label: trials.map((each) => `${each.label} sent ${megabytes(each.bill.bytes_sent).toFixed(1)} MB, dense `
      + `${megabytes(each.bill.bytes_dense).toFixed(1)} MB`).join("; "),
    columns: [["trial", (row) => row.label, ""], ["sent, MB", (row) => megabytes(row.bill.bytes_sent).toFixed(2), "number"],
      ["of it searching, MB", (row) => megabytes(row.bill.bytes_search).toFixed(2), "number"],
      ["dense, MB", (row) => megabytes(row.bill.bytes_dense).toFixed(2), "number"]],
    rows: trials,
  };
}

// What a stage's surrogate said of the gain: a line with its band over the learning rate, or a map of two axes.
export function posteriorChart(stage, level) {
  const origin = stage.probes.find((probe) => probe.reward !== null)?.reward ?? 0;
  const probes = stage.probes.map((probe) => ({ ...probe, gain: probe.reward === null ? null : probe.reward - origin }));
  const drawn = stage.posterior?.axes.length === 2 ? posteriorMap(stage, probes, level) : posteriorLine(stage, probes);
  const gains = probes.map((probe) => probe.gain).filter((gain) => gain !== null);
  const best = gains.length ? `the best gained ${Math.max(...gains).toPrecision(3)}` : "none could be judged";
  return {
    ...drawn,
    label: `${probes.length} probes, ${best}; learning rate ${stage.learning_rate.toPrecision(3)} was chosen`,
    columns: [["learning rate", (row) => row.learning_rate.toPrecision(3), "number"],
      [level, (row) => row.level?.toPrecision(3) ?? "–", "number"],
      ["loss", (row) => row.loss?.toFixed(4) ?? "diverged", "number"],
      ["forecast", (row) => (row.forecast === null ? "–" : `${row.forecast.toFixed(4)} ± ${row.forecast_std.toPrecision(2)}`), "number"],
      ["gain", (row) => row.gain?.toPrecision(3) ?? "–", "number"], ["status", (row) => row.status.replace("_", " "), ""]],
    rows: probes,
  };
}

function posteriorLine(stage, probes) {
  const { axes: [axis], mean, std } = stage.posterior ?? { axes: [{ coordinates: [] }], mean: [], std: [] };
  const rates = axis.coordinates;
  const edge = (sign) => mean.map((value, at) => value + sign * 2 * std[at]);
  const line = (y, more) => ({ type: "scatter", mode: "lines", x: rates, y, hoverinfo: "skip", showlegend: false, ...more });
  const chosen = { color: COLOURS[1], width: 1.5, dash: "dash" };
  const floor = Math.min(...mean, ...probes.map((probe) => probe.gain ?? 0));
  return {
    traces: [line(edge(-1), { line: { width: 0 } }),
      line(edge(1), { line: { width: 0 }, fill: "tonexty", fillcolor: "rgba(47,111,208,0.18)" }),
      line(mean, { line: { color: COLOURS[0], width: 2.2 }, name: "posterior ± 2 std", showlegend: rates.length > 0, hoverinfo: "x+y" }),
      ...probeTraces(probes, (probe) => probe.gain ?? floor),
      line([null], { x: [null], line: chosen, name: "chosen", showlegend: true })],
    layout: { height: 300, xaxis: { title: { text: "learning rate" }, ...logAxis([...rates, ...probes.map((each) => each.learning_rate)], String) },
      yaxis: { title: { text: "gain" }, exponentformat: "power" },
      shapes: [{ type: "line", x0: stage.learning_rate, x1: stage.learning_rate, y0: 0, y1: 1, yref: "paper", line: chosen }] },
  };
}

function posteriorMap(stage, probes, level) {
  const { axes: [rates, second], mean } = stage.posterior;
  const size = second.coordinates.length;
  const rows = second.coordinates.map((_, row) => rates.coordinates.map((_, column) => mean[column * size + row]));
  const name = second.name === "level" ? level : second.name.replaceAll("_", " ");
  const other = (each) => (second.name === "level" ? each.level : each.values[second.name]);
  const chosen = { type: "scatter", mode: "markers", name: "chosen", x: [stage.learning_rate], y: [other(stage)],
    marker: { symbol: "star", size: 14, color: COLOURS[1], line: { color: "#fff", width: 1 } } };
  const heat = { type: "heatmap", x: rates.coordinates, y: second.coordinates, z: rows, colorscale: "Blues", reversescale: true,
    colorbar: { title: { text: "gain", side: "right" }, thickness: 12, exponentformat: "power" },
    hovertemplate: `learning rate %{x:.3g}, ${name} %{y:.3g}: gain %{z:.3g}<extra></extra>` };
  return {
    traces: [heat, ...probeTraces(probes, other), chosen],
    layout: { height: 300, xaxis: { title: { text: "learning rate" }, ...logAxis(rates.coordinates, String) },
      yaxis: { title: { text: name }, ...(second.name === "nesterov" ? {} : logAxis(second.coordinates, String)) } },
  };
}

function probeTraces(probes, y) {
  const trace = (name, found, symbol) => ({ type: "scatter", mode: "markers", name, x: found.map((probe) => probe.learning_rate),
    y: found.map(y), marker: { symbol, size: 9, color: "#1b1f26", line: { color: "#fff", width: 1.5 } },
    text: found.map((probe) => `loss ${probe.loss?.toFixed(4) ?? "–"}`), hovertemplate: "%{x:.3g}: %{text}<extra></extra>" });
  const unjudged = probes.filter((probe) => probe.gain === null);
  const kinds = [["diverged", unjudged.filter((probe) => probe.status === "diverged"), "x"],
    ["not judged", unjudged.filter((probe) => probe.status !== "diverged"), "circle-open"]];
  return [trace("probes", probes.filter((probe) => probe.gain !== null), "circle"),
    ...kinds.filter(([, found]) => found.length).map((kind) => trace(...kind))];
}
