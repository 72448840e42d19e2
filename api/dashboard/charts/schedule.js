// What was learned: the rate and the density of each committed step.

import { number, share } from "../units.js";
import { entry, logAxis, look } from "./look.js";

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
