// The only file that knows plotly: data in, a chart out, with the same data as a table beside it.

import { element, empty, patch, table } from "./dom.js";
import { besides, duration, level, loss, number, share, size, sizeAxis, spread, timeAxis } from "./units.js";

const COLOURS = ["#2f6fd0", "#d1661c", "#2a8f56", "#a24bb8", "#b8860b", "#c2395b", "#0f8b8d", "#6b6f76"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };

let library = null;

function load() {
  library ??= new Promise((resolve, reject) => {
    const source = document.querySelector('meta[name="plotly"]').content;
    document.head.append(element("script", { src: source, id: "plotly" }));
    const script = document.getElementById("plotly");
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("The chart library did not load; load the page again."));
  });
  return library;
}

const colour = (index) => COLOURS[index % COLOURS.length];
const dash = (index) => DASHES[index % DASHES.length];

// Charts that are in sight, or nearly; the others are drawn when they come there.
const inSight = new Map(); // chart => its `paint`
const painters = new WeakMap();
const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) inSight.set(target, painters.get(target));
    else inSight.delete(target);
    inSight.get(target)?.();
  }
}, { rootMargin: "300px" });
const isDark = matchMedia("(prefers-color-scheme: dark)");
isDark.addEventListener("change", () => inSight.forEach((paint) => paint()));

// A panel with a chart and its table. `draw` takes what makes the figure for a theme, and keeps the reader's zoom.
export function panel(title, kind = "") {
  const chart = element("div", { class: "chart", role: "img", "aria-label": title });
  const data = element("div", { hidden: "" });
  const toggle = element("button", { type: "button", "aria-expanded": "false", onclick: flip }, "data table");
  const heading = element("h2", {}, title);
  const body = element("section", { class: `panel ${kind}` }, element("div", { class: "panel-head" }, heading, toggle), chart, data);
  let make = null;
  let drawn = {};

  function flip() {
    data.hidden = !data.hidden;
    toggle.setAttribute("aria-expanded", String(!data.hidden));
    if (make) tell(make(theme()));
  }

  function tell({ label, columns, rows }) {
    chart.setAttribute("aria-label", `${title}: ${label}`);
    if (!data.hidden) patch(data, table(label, columns, rows));
  }

  // `about` tells this panel's button from those of others with the same title.
  async function draw(given, about = title) {
    make = given;
    toggle.setAttribute("aria-label", `data table: ${about}`);
    tell(make(theme()));
    if (inSight.has(chart)) await paint();
  }

  async function paint() {
    if (!make || (drawn.make === make && drawn.dark === isDark.matches)) return;
    drawn = { make, dark: isDark.matches };
    const { traces, layout } = make(theme());
    chart.style.height = layout.height ? `${layout.height}px` : "";
    try {
      await (await load()).react(chart, traces, themed(layout), CONFIG);
    } catch (error) {
      patch(chart, empty(error.message));
    }
  }

  painters.set(chart, paint);
  sight.observe(chart);
  return { body, draw };
}

const themes = new Map(); // by whether it is dark: to ask for a style has the browser compute all of them

function theme() {
  if (!themes.has(isDark.matches)) {
    const style = getComputedStyle(document.body);
    const panels = getComputedStyle(document.querySelector("header"));
    themes.set(isDark.matches, { ink: style.color, paper: panels.backgroundColor, line: panels.borderBottomColor, family: style.fontFamily });
  }
  return themes.get(isDark.matches);
}

function themed(layout) {
  const { ink, line, family } = theme();
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const axes = Object.fromEntries(
    Object.entries(layout).filter(([name]) => /^[xy]axis/.test(name)).map(([name, own]) => [name, { ...axis, ...own }]),
  );
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, family, size: 12 },
    margin: { l: 60, r: 15, t: 10, b: 45 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, // above: below is the axis, however tall
    uirevision: "keep",
    ...layout,
    ...axes,
  };
}

// Ticks as fine as the range asks for, written out: plotly's own crowd a low axis with bare digits.
function logAxis(values, write) {
  let [least, most] = [Infinity, 0];
  for (const value of values) if (value > 0) [least, most] = [Math.min(least, value), Math.max(most, value)];
  if (!most) return { type: "log" };
  const [low, high] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
  const decades = Math.log10(most / least);
  const isNarrow = decades > 0.1 && decades <= 0.7;
  const leads = decades > 2 ? [1] : isNarrow ? [1, 1.5, 2, 3, 4, 5, 6, 8] : [1, 2, 5];
  const powers = Array.from({ length: high - low + 1 }, (_, at) => low + at);
  const tickvals = powers.flatMap((power) => leads.map((lead) => Number(`${lead}e${power}`)));
  const [middle, margin] = [Math.log10(least * most) / 2, 10 ** (0.06 * decades)];
  const around = decades <= 0.1 ? { range: [middle - 0.5, middle + 0.5] } // else no tick may be in sight
    : { autorangeoptions: { include: [least / margin, most * margin] } }; // else a line lies on the edge
  return { type: "log", tickvals, ticktext: tickvals.map((value) => write(value)), ...around };
}

// One colour and one entry of the legend per arm; its seeds are lines of the same look, told apart by pointing at them.
const look = (each, width) => ({ color: colour(each.arm_index), width, dash: dash(each.arm_index) });
const entry = (each, shown) => ({ name: each.arm, legendgroup: each.arm, showlegend: shown && each.is_first_seed });

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

// Learning rate above and density, if any trial has one, below, over committed steps; dotted lines where stages begin.
// What the commit took over of its search's best probe is thin: that probe's rate fell, the schedule's goes on behind it.
export function scheduleChart(schedules, stages) {
  const shown = schedules.filter((each) => each.entries.length);
  const sparse = shown.filter((each) => each.entries.some((entry) => entry.density !== null));
  const values = (found, field) => found.flatMap((each) => each.entries.flatMap((entry) => [entry[field], endOf(entry, field)]));
  const begins = stages.filter((stage) => stage.trial_id === shown[0]?.trial_id && stage.stage > 0);
  const rules = { type: "path", path: begins.map((stage) => `M${stage.first_step},0V1`).join(""), yref: "paper", opacity: 0.5,
    line: { color: "#888", width: 1, dash: "dot" } }; // in one: hundreds of shapes are slow
  const rates = shown.flatMap((each) => {
    const { own, probed } = parted(each, stages);
    return [scheduleTrace(each, own, "learning_rate", { yaxis: "y", ...entry(each, true) }),
      ...(probed.length ? [scheduleTrace(each, probed, "learning_rate", { yaxis: "y", ...entry(each, false), opacity: 0.6,
        line: { ...look(each, 1), dash: "dot" } }, " in the probe that was kept")] : [])];
  });
  return {
    traces: [...rates, ...sparse.map((each) => scheduleTrace(each, each.entries, "density", { yaxis: "y2", ...entry(each, false) }))],
    layout: { xaxis: { title: { text: "committed steps" }, rangemode: "tozero", anchor: sparse.length ? "y2" : "y" },
      yaxis: { title: { text: "learning rate" }, domain: [sparse.length ? 0.56 : 0, 1], ...logAxis(values(shown, "learning_rate"), number) },
      ...(sparse.length && { yaxis2: { title: { text: "density" }, domain: [0, 0.44], ...logAxis(values(sparse, "density"), share) } }),
      shapes: begins.length ? [rules] : [] },
    label: shown.map((each) => `${each.label} now learning rate ${number(each.entries.at(-1).learning_rate)}`).join("; ")
      || "no stage is decided yet",
    columns: [["trial", (row) => row.label, "name"], ["step", (row) => String(row.step), "number"],
      ["steps", (row) => String(row.num_steps), "number"],
      ["learning rate", (row) => number(row.learning_rate), "number"],
      ["at its end", (row) => number(row.final_learning_rate ?? row.learning_rate), "number"],
      ["density", (row) => (row.density === null ? "dense" : share(row.density)), "number"],
      ["threshold", (row) => number(row.threshold), "number"]],
    rows: shown.flatMap((each) => each.entries.map((entry) => ({ label: each.label, ...entry }))),
  };
}

const endOf = (entry, field) => (field === "learning_rate" ? entry.final_learning_rate ?? entry[field] : entry[field]);

function scheduleTrace(each, entries, field, more, where = "") {
  const isGap = (entry, at) => at > 0 && entries[at - 1].step + entries[at - 1].num_steps < entry.step;
  return {
    type: "scatter", mode: "lines", line: look(each, 2.2),
    x: entries.flatMap((entry, at) => [...(isGap(entry, at) ? [null] : []), entry.step, entry.step + entry.num_steps]),
    y: entries.flatMap((entry, at) => [...(isGap(entry, at) ? [null] : []), entry[field], endOf(entry, field)]),
    hovertemplate: `${each.label}${where}: %{y:.4~g}<br>step %{x}<extra></extra>`, ...more,
  };
}

// A schedule's entries apart from those that were a probe's before they were the commit's.
function parted({ trial_id, entries }, stages) {
  const kept = stages.filter((stage) => stage.trial_id === trial_id && stage.promoted !== null).map((stage) => {
    const probe = stage.probes.find((each) => each.probe_id === stage.promoted);
    return [stage.first_step, stage.first_step + (probe?.num_steps ?? 0)];
  });
  const isProbed = ({ step, num_steps }) => kept.some(([from, to]) => step >= from && step + num_steps <= to);
  return { own: entries.filter((entry) => !isProbed(entry)), probed: entries.filter(isProbed) };
}

const short = (label) => (label.length > 26 ? `${label.slice(0, 17)}…${label.slice(-8)}` : label);

// What one worker sent, beside what the same steps would have sent without compression.
export function bytesChart(trials) {
  const { unit, per } = sizeAxis(Math.max(...trials.flatMap(({ bill }) => [bill.bytes_sent, bill.bytes_dense])));
  const labels = trials.map((each) => each.label);
  const bar = (name, value, fill) => ({
    type: "bar", orientation: "h", name, y: labels, x: trials.map((each) => value(each.bill) / per),
    text: trials.map((each) => size(value(each.bill))), textposition: "none",
    marker: { color: fill, pattern: { shape: name === "dense" ? "/" : "" } }, offsetgroup: name === "dense" ? "1" : "0",
    hovertemplate: "%{y}, " + name + ": %{text}<extra></extra>",
  });
  const search = bar("sent while searching", (bill) => bill.bytes_search, COLOURS[1]);
  return {
    traces: [bar("sent while training", (bill) => bill.bytes_sent - bill.bytes_search, COLOURS[0]),
      { ...search, base: trials.map(({ bill }) => (bill.bytes_sent - bill.bytes_search) / per) },
      bar("dense", (bill) => bill.bytes_dense, "#8a8f98")],
    layout: { barmode: "group", height: Math.max(340, 110 + 32 * trials.length),
      xaxis: { title: { text: `${unit} sent by one worker` }, rangemode: "tozero" },
      yaxis: { type: "category", autorange: "reversed", tickvals: labels, ticktext: labels.map(short) } },
    label: trials.map(({ label, bill }) => `${label} sent ${size(bill.bytes_sent)}, dense ${size(bill.bytes_dense)}`).join("; "),
    columns: [["trial", (row) => row.label, "name"], ["sent", (row) => size(row.bill.bytes_sent), "number"],
      ["of it searching", (row) => size(row.bill.bytes_search), "number"],
      ["dense", (row) => size(row.bill.bytes_dense), "number"]],
    rows: trials,
  };
}

// What a stage's surrogate said of the gain: a line with its band over the learning rate, a map of two axes, or where
// options competed a lane for each of them.
export function posteriorChart(stage, levelName, theme) {
  const origin = stage.probes.find((probe) => probe.reward !== null)?.reward ?? 0;
  const probes = stage.probes.map((probe) => ({ ...probe, gain: probe.reward === null ? null : probe.reward - origin }));
  const gains = probes.map((probe) => probe.gain).filter((gain) => gain !== null);
  const best = gains.length ? `the best gained ${number(Math.max(...gains))}` : "none could be judged";
  const isMap = stage.posterior?.axes.length === 2;
  const draw = new Set(probes.map(optionOf)).size > 1 ? posteriorLanes : isMap ? posteriorMap : posteriorLine;
  const others = probes.some((probe) => besides(probe.values) !== "");
  return {
    ...draw(stage, probes, levelName, theme),
    label: `${probes.length} probes, ${best}; learning rate ${number(stage.learning_rate)} was chosen`,
    columns: [["learning rate", (row) => number(row.learning_rate), "number"],
      [levelName, (row) => level(row.level, levelName), "number"],
      ...(others ? [["besides", (row) => besides(row.values), ""]] : []),
      ["loss", (row) => (row.loss === null ? "diverged" : loss(row.loss)), "number"],
      ["forecast", (row) => spread(row.forecast, row.forecast_std, loss, (std) => number(std, 2)), "number"],
      ["gain", (row) => number(row.gain), "number"], ["status", (row) => row.status.replace("_", " "), ""]],
    rows: probes,
  };
}

const optionOf = ({ values }) => values.option ?? values.optimizer ?? null;
const RATE = { title: { text: "learning rate" } };
const CHOSEN = "chosen";
const GAIN = { title: { text: "gain", side: "right" }, thickness: 12, exponentformat: "power" };

function posteriorLine(stage, probes, _, theme) {
  const { axes: [axis], mean, std } = stage.posterior ?? { axes: [{ coordinates: [] }], mean: [], std: [] };
  const rates = axis.coordinates;
  const edge = (sign) => mean.map((value, at) => value + sign * 2 * std[at]);
  const line = (y, more) => ({ type: "scatter", mode: "lines", x: rates, y, hoverinfo: "skip", showlegend: false, ...more });
  const seen = [...edge(-1), ...edge(1), ...probes.map((probe) => probe.gain ?? 0)];
  const [floor, top] = seen.some((gain) => gain !== 0) ? [Math.min(...seen), Math.max(...seen)] : [-1, 1];
  return {
    traces: [line(edge(-1), { line: { width: 0 } }),
      line(edge(1), { line: { width: 0 }, fill: "tonexty", fillcolor: "rgba(47,111,208,0.18)" }),
      line(mean, { line: { color: COLOURS[0], width: 2.2 }, name: "posterior ± 2 std", showlegend: rates.length > 0, hoverinfo: "x+y" }),
      line([floor, top], { mode: "lines+markers", x: [stage.learning_rate, stage.learning_rate], name: CHOSEN, showlegend: true,
        marker: { size: 5, color: COLOURS[1] }, line: { color: COLOURS[1], width: 1.5, dash: "dash" } }),
      ...probeTraces(probes, (probe) => probe.gain ?? floor, theme)],
    layout: { height: 300, xaxis: { ...RATE, ...logAxis([stage.learning_rate, ...rates, ...ratesOf(probes)], number) },
      yaxis: { title: { text: "gain" }, exponentformat: "power" } },
  };
}

function posteriorMap(stage, probes, levelName, theme) {
  const { axes: [rates, second], mean } = stage.posterior;
  const columns = second.coordinates.length;
  const rows = second.coordinates.map((_, row) => rates.coordinates.map((_, column) => mean[column * columns + row]));
  const isLevel = second.name === "level";
  const name = isLevel ? levelName : second.name.replaceAll("_", " ");
  const other = (each) => (isLevel ? each.level : each.values[second.name]);
  const write = (value) => level(value, isLevel ? levelName : null);
  const heat = { type: "heatmap", x: rates.coordinates, y: second.coordinates, z: rows, colorscale: "Blues", reversescale: true,
    colorbar: GAIN, hovertemplate: `learning rate %{x:.3g}, ${name} %{y:.3g}: gain %{z:.3g}<extra></extra>` };
  const seconds = [...second.coordinates, ...[stage, ...probes].map(other)];
  return {
    traces: [heat, ...probeTraces(probes, other, theme), chosenTrace(stage, other(stage), theme)],
    layout: { height: 300, xaxis: { ...RATE, ...logAxis([stage.learning_rate, ...rates.coordinates, ...ratesOf(probes)], number) },
      yaxis: { title: { text: name }, ...(second.name === "nesterov" ? {} : logAxis(seconds, write)) } },
  };
}

// The surrogate's line is of the chosen option alone: here are the probes, the best of each option with its gain.
function posteriorLanes(stage, probes, _, theme) {
  const lanes = [...new Set(probes.map(optionOf))];
  const best = new Map(lanes.map((lane) => [lane, Math.max(...probes.filter((each) => optionOf(each) === lane).map((each) => each.gain ?? -Infinity))]));
  const [judged, ...others] = probeTraces(probes, optionOf, theme);
  const text = judged.y.map((lane, at) => (judged.customdata[at] === best.get(lane) ? number(best.get(lane), 2) : ""));
  return {
    traces: [{ ...judged, mode: "markers+text", text, textposition: "top center", textfont: { size: 10 } }, ...others, chosenTrace(stage, optionOf(stage), theme)],
    layout: { height: 140 + 50 * lanes.length, xaxis: { ...RATE, ...logAxis([stage.learning_rate, ...ratesOf(probes)], number) },
      yaxis: { type: "category", categoryorder: "array", categoryarray: lanes.toReversed(), range: [-0.5, lanes.length - 0.3] } },
  };
}

const ratesOf = (probes) => probes.map((probe) => probe.learning_rate);

const chosenTrace = (stage, y, theme) => ({ type: "scatter", mode: "markers", name: CHOSEN, x: [stage.learning_rate], y: [y],
  marker: { symbol: "star", size: 15, color: COLOURS[1], line: { color: theme.paper, width: 1 } } });

// Marks have an edge in the other colour: they are seen on the panel, on a dark one, and on a map.
function probeTraces(probes, y, { ink, paper }) {
  const trace = (name, symbol, [fill, edge], found) => ({ type: "scatter", mode: "markers", name, x: ratesOf(found), y: found.map(y),
    marker: { symbol, size: 9, color: fill, line: { color: edge, width: 1.5 } },
    customdata: found.map((probe) => probe.gain),
    hovertext: found.map((probe) => `${number(probe.learning_rate)}: loss ${loss(probe.loss)}`), hoverinfo: "text" });
  const unjudged = probes.filter((probe) => probe.gain === null);
  return [
    trace("probes", "circle", [ink, paper], probes.filter((probe) => probe.gain !== null)),
    trace("diverged", "x", [ink, paper], unjudged.filter((probe) => probe.status === "diverged")),
    trace("not judged", "circle", [paper, ink], unjudged.filter((probe) => probe.status !== "diverged")),
  ].filter((each, at) => at === 0 || each.x.length);
}
