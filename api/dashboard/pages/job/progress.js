// Each trial's progress, its current values, and its remaining time.

import { element, table } from "../../dom.js";
import { besides, duration, level, number, share, size } from "../../units.js";

const UNITS = { seconds: duration, steps: (steps) => `${Math.round(steps)} steps`, bytes: size };

// The used share of a trial's budget: the largest over its caps, and the remaining time on the training clock. Both count
// all training, including probes and rolled-back steps.
export function progressOf(trial, budget) {
  const { bill } = trial;
  const used = {
    seconds: Math.max(trial.seconds, bill.seconds_training),
    steps: trial.step + bill.steps_search + bill.steps_taken_back,
    bytes: bill.bytes_sent,
  };
  const caps = Object.entries(budget).filter(([, cap]) => cap !== null);
  const shares = caps.map(([unit, cap]) => ({ unit, cap, used: used[unit], share: Math.min(1, used[unit] / cap) }));
  const first = shares.reduce((most, each) => (each.share > most.share ? each : most));
  if (trial.outcome === "completed" && !trial.isPruned && !trial.stopped_by) return { ...first, share: 1, left: 0 };
  if (trial.outcome !== null) return { ...first, left: 0 };
  if (first.unit === "seconds") return { ...first, left: Math.max(0, first.cap - first.used) };
  return { ...first, left: first.share > 0 && used.seconds > 0 ? (used.seconds * (1 - first.share)) / first.share : null };
}

// Steps of a search that is not decided yet.
export function openSearchSteps(trial, stages) {
  const decided = stages.filter((stage) => stage.trial_id === trial.trial_id).reduce((sum, stage) => sum + stage.search_steps, 0);
  return trial.outcome === null ? Math.max(0, trial.bill.steps_search - decided) : 0;
}

// Shown where a job may continue with fewer workers: as many as it asks for.
export const workersText = ({ count, min }) => `${(min ?? count) < count ? "up to " : ""}${count}`;

// `stop` makes the button that ends a trial early; null: the reader may end none.
export function progressTable(trials, stages, job, phase, stop = null) {
  const workers = `${workersText(job.spec.workers)} ${job.spec.workers.count === 1 ? "worker" : "workers"}`;
  const over = trials.filter((trial) => trial.outcome !== null).length;
  const mayEnd = (trial) => stop !== null && trial.outcome === null && !trial.stopped_by;
  const now = (trial) => [`learning rate ${number(trial.learning_rate)}`, trial.level === null ? "" : `${trial.level_name} ${level(trial.level, trial.level_name)}`,
    besides(latest(stages, trial)?.values ?? {})].filter((text) => text !== "").join(", ");
  return table(`${over} of ${trials.length} trials are over; each has ${workers}; what is left is on the training clock`, [
    ["trial", (trial) => trial.label, "name"],
    ["state", (trial) => phase(trial, openSearchSteps(trial, stages)), ""],
    ["progress", (trial) => bar(trial, progressOf(trial, job.spec.budget)), "bar", (trial) => progressOf(trial, job.spec.budget).share],
    ["left", (trial) => leftText(trial, progressOf(trial, job.spec.budget)), "number", (trial) => progressOf(trial, job.spec.budget).left],
    ["now", (trial) => (trial.learning_rate === null ? "–" : now(trial)), "text"],
    ["on", (trial) => (trial.backend ? `${trial.device}, ${trial.backend}` : "–"), ""],
    ...(trials.some(mayEnd) ? [["action", (trial) => (mayEnd(trial) ? stop(trial) : ""), ""]] : []),
  ], trials, { key: (trial) => trial.trial_id, isStacked: true });
}

const latest = (stages, trial) => stages.findLast((stage) => stage.trial_id === trial.trial_id);

function bar(trial, { unit, cap, used, share: done }) {
  const text = `${UNITS[unit](used)} of ${UNITS[unit](cap)}`;
  return element("span", { class: "progress" },
    element("progress", { max: "1", value: String(done), "aria-label": `${trial.label}: ${share(done)} of its budget` }),
    element("span", {}, `${share(done)} · ${text}`));
}

const leftText = (trial, { left }) => (trial.outcome !== null ? "–" : !trial.backend ? "not begun" : duration(left));
