// Calibration: each stage's forecast against its result.

import { figures, loss, number, share, signed, spread } from "../units.js";
import { colour, logAxis } from "./look.js";

// `stages` with the label and colour of their trial.
export function calibrationChart(stages) {
  const judged = stages.filter((stage) => stage.closed && stage.loss !== null && stage.forecast !== null && stage.forecast_std !== null);
  const isLog = judged.every((stage) => stage.loss > 0 && stage.forecast > 0); // then a bar ends above 0
  const below = ({ forecast, forecast_std }, width) => (isLog ? Math.min(width * forecast_std, 0.9 * forecast) : width * forecast_std);
  const ends = judged.flatMap((stage) => [stage.loss, stage.forecast - below(stage, 2), stage.forecast + 2 * stage.forecast_std]);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const arms = [...new Map(judged.map((stage) => [stage.arm, stage.arm_index]))];
  const bars = (own, width, thickness) => ({ type: "data", symmetric: false, thickness, width: 0,
    array: own.map((stage) => width * stage.forecast_std), arrayminus: own.map((stage) => below(stage, width)) });
  const within = (width) => judged.filter((stage) => Math.abs(stage.z_score) <= width).length / judged.length;
  return {
    traces: [...(judged.length ? [{ type: "scatter", mode: "lines", x: [low, high], y: [low, high], name: "as forecast", line: { color: "#808080", dash: "dot", width: 1 }, hoverinfo: "skip" }] : []),
      ...arms.flatMap(([arm, index]) => {
        const own = judged.filter((stage) => stage.arm === arm);
        const base = { type: "scatter", mode: "markers", x: own.map((stage) => stage.forecast), y: own.map((stage) => stage.loss), legendgroup: arm };
        return [
          { ...base, showlegend: false, hoverinfo: "skip", marker: { size: 0.1, color: colour(index) }, error_x: bars(own, 2, 1) },
          { ...base, name: `${arm}, ± 1 and 2 std`, marker: { size: 8, color: colour(index) }, error_x: bars(own, 1, 3),
            text: own.map((stage) => `${stage.label}, stage ${stage.stage}: forecast ${spread(stage.forecast, stage.forecast_std, loss, (std) => number(std, 2))}, came to ${loss(stage.loss)} (${signed(stage.z_score ?? 0)} std)`),
            hovertemplate: "%{text}<extra></extra>" },
        ];
      })],
    layout: { height: 360, xaxis: { title: { text: "loss that was forecast" }, ...logAxis(ends, String) }, yaxis: { title: { text: "loss that came" }, ...logAxis(ends, String) } },
    label: judged.length ? `${judged.length} forecasts; ${share(within(1))} came within 1 std, of good ones 68 %; ${share(within(2))} within 2 std, of good ones 95 %`
      : "no forecast has come to its end yet",
    columns: [["trial", (row) => row.label, "name"], figures("stage", (row) => row.stage, String),
      ["forecast", (row) => spread(row.forecast, row.forecast_std, loss, (std) => number(std, 2)), "number", (row) => row.forecast],
      figures("came to", (row) => row.loss, loss), ["off by", (row) => (row.z_score === null ? "–" : `${signed(row.z_score)} std`), "number", (row) => row.z_score]],
    rows: judged,
  };
}
