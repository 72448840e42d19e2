// The probes of a search under way: the loss of each over its learning rate.

import { figures, loss, number } from "../units.js";
import { logAxis } from "./look.js";

// A probe that diverged has no loss: it stands where the highest one is.
export function searchChart(probes, { ink, paper }) {
  const losses = probes.map((probe) => probe.loss).filter((value) => value !== null);
  const top = losses.length ? Math.max(...losses) : 1;
  const marks = (name, symbol, found) => ({ type: "scatter", mode: "markers", name, x: found.map((probe) => probe.learning_rate), y: found.map((probe) => probe.loss ?? top),
    marker: { symbol, size: 9, color: ink, line: { color: paper, width: 1.5 } }, hovertemplate: "%{text}<extra></extra>",
    text: found.map((probe) => `${number(probe.learning_rate)}: ${probe.loss === null ? "diverged" : `loss ${loss(probe.loss)}`}`) });
  return {
    traces: [marks("probes", "circle", probes.filter((probe) => probe.loss !== null)), marks("diverged", "x", probes.filter((probe) => probe.loss === null))]
      .filter(({ x }) => x.length),
    layout: { height: 300, xaxis: { title: { text: "learning rate" }, ...logAxis(probes.map((probe) => probe.learning_rate), number) },
      yaxis: { title: { text: "loss of the probe" }, ...logAxis(losses, String) } },
    label: losses.length ? `the lowest loss so far is ${loss(Math.min(...losses))}` : "no probe has a loss yet",
    columns: [figures("learning rate", (row) => row.learning_rate, number),
      ["loss", (row) => (row.loss === null ? "diverged" : loss(row.loss)), "number", (row) => row.loss], ["status", (row) => row.status.replace("_", " "), ""]],
    rows: probes,
  };
}
