// The controller's beliefs at a decision.

import { median } from "../statistics.js";
import { besides, figures, level, loss, number, spread } from "../units.js";
import { COLOURS, logAxis } from "./look.js";

// A stage's posterior gain: a line with a band over the learning rate, a map over two axes, or if options competed, a lane
// per option. `show` chooses the quantity: "mean", "std", or "improvement".
export function posteriorChart(stage, levelName, theme, show = "mean") {
  const probes = gained(stage.probes);
  const gains = probes.flatMap((probe) => (probe.gain === null || probe.isCoarse ? [] : [probe.gain]));
  const best = gains.length ? `the best gained ${number(Math.max(...gains))}` : "none could be judged";
  const isMap = stage.posterior?.axes.length === 2;
  const draw = new Set(probes.map(optionOf)).size > 1 ? posteriorLanes : isMap ? posteriorMap : posteriorLine;
  const others = probes.some((probe) => besides(probe.values) !== "");
  return {
    ...draw(stage, probes, levelName, theme, show),
    label: `${probes.length} probes, ${best}; learning rate ${number(stage.learning_rate)} was chosen`,
    columns: [figures("learning rate", (row) => row.learning_rate, number),
      [levelName, (row) => level(row.level, levelName), "number", (row) => row.level],
      ...(others ? [["besides", (row) => besides(row.values), ""]] : []),
      figures("steps", (row) => row.num_steps, number), ["origin", (row) => row.origin, ""],
      ["loss", (row) => (row.loss === null ? "diverged" : loss(row.loss)), "number", (row) => row.loss],
      ["forecast", (row) => spread(row.forecast, row.forecast_std, loss, (std) => number(std, 2)), "number", (row) => row.forecast],
      figures("gain", (row) => row.gain, number), ["status", (row) => row.status.replace("_", " "), ""]],
    rows: probes,
  };
}

// Probes with their gain. A wide search compares its short coarse probes with each other only, and so its longer finalists:
// each has the first finite one of its kind as its zero. That of the finalists is the surrogate's zero, too.
export function gained(probes) {
  const hasFinalists = probes.some((probe) => probe.origin !== COARSE && probe.reward !== null);
  const isCoarse = (probe) => hasFinalists && probe.origin === COARSE;
  const [zero, zeroOfCoarse] = [false, true].map((is) => probes.find((probe) => probe.reward !== null && isCoarse(probe) === is)?.reward);
  return probes.map((probe) => ({ ...probe, isCoarse: isCoarse(probe),
    gain: probe.reward === null ? null : probe.reward - (isCoarse(probe) ? zeroOfCoarse : zero) }));
}

const COARSE = "wide"; // the origin of coarse probes
const optionOf = ({ values }) => values.option ?? null;
const RATE = { title: { text: "learning rate" } };
const CHOSEN = "chosen";
const SPREADS = 4; // of the gains below the best, as the axis has room for
const SHOWN = { mean: "gain", std: "std of the gain", improvement: "expected improvement" };

// The expected improvement of a further probe at each point over the best mean, under the surrogate's normal beliefs.
export function expectedImprovement({ mean, std }) {
  const best = Math.max(...mean);
  return mean.map((value, at) => {
    if (std[at] <= 0) return 0;
    const z = (value - best) / std[at];
    return std[at] * (z * below(z) + Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI));
  });
}

// The normal distribution by Abramowitz and Stegun's formula 7.1.26, exact to seven digits.
function below(z) {
  const t = 1 / (1 + (0.3275911 * Math.abs(z)) / Math.SQRT2);
  const tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const error = 1 - tail * Math.exp((-z * z) / 2);
  return 0.5 * (1 + Math.sign(z) * error);
}

const valuesOf = (posterior, show) => ({ mean: () => posterior.mean, std: () => posterior.std, improvement: () => expectedImprovement(posterior) })[show]();

function posteriorLine(stage, probes, _, theme, show) {
  const { axes: [axis], mean, std } = stage.posterior ?? { axes: [{ coordinates: [] }], mean: [], std: [] };
  const rates = axis.coordinates;
  const edge = (sign) => mean.map((value, at) => value + sign * 2 * std[at]);
  const line = (y, more) => ({ type: "scatter", mode: "lines", x: rates, y, hoverinfo: "skip", showlegend: false, ...more });
  const [floor, top] = gainsInSight(probes, [...edge(-1), ...edge(1)]);
  const margin = 0.08 * (top - floor);
  const isOther = show !== "mean" && rates.length > 0;
  const other = isOther ? valuesOf(stage.posterior, show) : [];
  return {
    traces: [line(edge(-1), { line: { width: 0 } }),
      line(edge(1), { line: { width: 0 }, fill: "tonexty", fillcolor: "rgba(47,111,208,0.18)" }),
      line(mean, { line: { color: COLOURS[0], width: 2.2 }, name: "posterior ± 2 std", showlegend: rates.length > 0, hoverinfo: "x+y" }),
      line([floor, top], { mode: "lines+markers+text", x: [stage.learning_rate, stage.learning_rate], name: CHOSEN, showlegend: true,
        text: ["", number(stage.learning_rate)], textposition: "top center", textfont: { color: COLOURS[1] },
        marker: { size: 5, color: COLOURS[1] }, line: { color: COLOURS[1], width: 1.5, dash: "dash" } }),
      ...(isOther ? [line(other, { yaxis: "y2", line: { color: COLOURS[3], width: 1.5, dash: "dot" }, name: SHOWN[show], showlegend: true, hoverinfo: "x+y" })] : []),
      ...probeTraces(probes.filter((probe) => !isBelow(probe, floor)), (probe) => probe.gain ?? floor, theme),
      ...belowTraces(probes.filter((probe) => isBelow(probe, floor)), floor, theme)],
    layout: { height: 300, xaxis: { ...RATE, ...logAxis([stage.learning_rate, ...rates, ...ratesOf(probes)], number) },
      yaxis: { title: { text: "gain" }, exponentformat: "power", range: [floor - margin, top + 2 * margin] },
      ...(isOther && { yaxis2: { title: { text: SHOWN[show] }, overlaying: "y", side: "right", exponentformat: "power", rangemode: "tozero", showgrid: false } }) },
  };
}

// The ends of the axis: so near to the best gain that one bad probe flattens nothing.
function gainsInSight(probes, edges) {
  const gains = probes.flatMap((probe) => (probe.gain === null ? [] : [probe.gain]));
  const seen = [0, ...gains, ...edges];
  const [low, high] = [Math.min(...seen), Math.max(...seen)];
  if (low === high) return [-1, 1];
  const best = Math.max(0, ...gains);
  const room = SPREADS * median(gains.map((gain) => best - gain));
  return room > 0 ? [Math.max(low, best - room), Math.min(high, best + room)] : [low, high];
}

const isBelow = ({ gain }, floor) => gain !== null && gain < floor;

// Probes below the axis stand on its floor, each with its gain.
function belowTraces(probes, floor, { ink, paper }) {
  if (!probes.length) return [];
  return [{ type: "scatter", mode: "markers+text", name: "below the axis", x: ratesOf(probes), y: probes.map(() => floor),
    text: probes.map((probe) => number(probe.gain)), textposition: "top center", textfont: { size: 10 },
    marker: { symbol: "triangle-down", size: 10, color: ink, line: { color: paper, width: 1.5 } },
    hovertext: probes.map((probe) => `${probeText(probe)}, gain ${number(probe.gain)}`), hoverinfo: "text" }];
}

function posteriorMap(stage, probes, levelName, theme, show) {
  const { axes: [rates, second] } = stage.posterior;
  const mean = valuesOf(stage.posterior, show);
  const columns = second.coordinates.length;
  const rows = second.coordinates.map((_, row) => rates.coordinates.map((_, column) => mean[column * columns + row]));
  const isLevel = second.name === "level";
  const name = isLevel ? levelName : second.name.replaceAll("_", " ");
  const other = (each) => (isLevel ? each.level : each.values[second.name]);
  const write = (value, digits) => level(value, isLevel ? levelName : null, digits);
  const heat = { type: "heatmap", x: rates.coordinates, y: second.coordinates, z: rows, colorscale: "Blues", reversescale: true,
    colorbar: { title: { text: SHOWN[show], side: "right" }, thickness: 12, exponentformat: "power" },
    hovertemplate: `learning rate %{x:.3g}, ${name} %{y:.3g}: ${SHOWN[show]} %{z:.3g}<extra></extra>` };
  const seconds = [...second.coordinates, ...[stage, ...probes].map(other)];
  return {
    traces: [heat, ...probeTraces(probes, other, theme), chosenTrace(stage, other(stage), theme, `${number(stage.learning_rate)}, ${write(other(stage))}`)],
    layout: { height: 300, xaxis: { ...RATE, ...logAxis([stage.learning_rate, ...rates.coordinates, ...ratesOf(probes)], number) },
      yaxis: { title: { text: name }, ...(second.name === "nesterov" ? {} : logAxis(seconds, write)) } },
  };
}

// The surrogate's line belongs to the chosen option only, so this shows the probes: the best of each option, with its gain.
function posteriorLanes(stage, probes, _, theme) {
  const lanes = [...new Set(probes.map(optionOf))];
  const best = new Map(lanes.map((lane) => [lane, Math.max(...probes.filter((each) => optionOf(each) === lane && !each.isCoarse).map((each) => each.gain ?? -Infinity))]));
  const [judged, ...others] = probeTraces(probes, optionOf, theme);
  const text = judged.y.map((lane, at) => (judged.customdata[at] === best.get(lane) ? number(best.get(lane), 2) : ""));
  return {
    traces: [{ ...judged, mode: "markers+text", text, textposition: "top center", textfont: { size: 10 } }, ...others, chosenTrace(stage, optionOf(stage), theme, number(stage.learning_rate))],
    layout: { height: 140 + 50 * lanes.length, xaxis: { ...RATE, ...logAxis([stage.learning_rate, ...ratesOf(probes)], number) },
      yaxis: { type: "category", categoryorder: "array", categoryarray: lanes.toReversed(), range: [-0.5, lanes.length - 0.3] } },
  };
}

const ratesOf = (probes) => probes.map((probe) => probe.learning_rate);
const probeText = (probe) => `${number(probe.learning_rate)}: loss ${loss(probe.loss)} after ${number(probe.num_steps)} steps, ${probe.origin}`;

const chosenTrace = (stage, y, theme, text) => ({ type: "scatter", mode: "markers+text", name: CHOSEN, x: [stage.learning_rate], y: [y],
  text: [text], textposition: "bottom center", textfont: { color: COLOURS[1] },
  marker: { symbol: "star", size: 15, color: COLOURS[1], line: { color: theme.paper, width: 1 } } });

// Marks have an edge in a contrasting colour, so that they show on light and dark panels and on a map.
function probeTraces(probes, y, { ink, paper }) {
  const trace = (name, symbol, [fill, edge], found) => ({ type: "scatter", mode: "markers", name, x: ratesOf(found), y: found.map(y),
    marker: { symbol, size: 9, color: fill, line: { color: edge, width: 1.5 } },
    customdata: found.map((probe) => probe.gain),
    hovertext: found.map(probeText), hoverinfo: "text" });
  const [judged, unjudged] = [probes.filter((probe) => probe.gain !== null), probes.filter((probe) => probe.gain === null)];
  return [
    trace("probes", "circle", [ink, paper], judged.filter((probe) => !probe.isCoarse)),
    trace("coarse probes", "diamond", [paper, ink], judged.filter((probe) => probe.isCoarse)),
    trace("diverged", "x", [ink, paper], unjudged.filter((probe) => probe.status === "diverged")),
    trace("not judged", "circle", [paper, ink], unjudged.filter((probe) => probe.status !== "diverged")),
  ].filter((each, at) => at === 0 || each.x.length);
}
