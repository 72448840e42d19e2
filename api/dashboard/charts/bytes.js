// The sent bytes, and those of dense training.

import { figures, size, sizeAxis } from "../units.js";
import { barAxis, COLOURS, tall } from "./look.js";

// The bytes that one worker sent, next to those that the same steps would have sent without compression.
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
    layout: { barmode: "group", height: tall(trials),
      xaxis: { title: { text: `${unit} sent by one worker` }, rangemode: "tozero" },
      yaxis: barAxis(trials) },
    label: trials.map(({ label, bill }) => `${label} sent ${size(bill.bytes_sent)}, dense ${size(bill.bytes_dense)}`).join("; "),
    columns: [["trial", (row) => row.label, "name"], figures("sent", (row) => row.bill.bytes_sent, size),
      figures("of it searching", (row) => row.bill.bytes_search, size),
      figures("dense", (row) => row.bill.bytes_dense, size)],
    rows: trials,
  };
}
