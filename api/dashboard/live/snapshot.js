// The data of a job's page: one snapshot, with each change merged into it.

// Points per series, and of all series. A page that stays open fetches a new thinned snapshot before it holds twice as many.
export const MAX_POINTS = 2000;
const MOST_POINTS = 200_000; // as the service limits a snapshot

// Unchanged parts stay the same objects, so that readers can compare by identity.
export function merged(before, change) {
  if (change.whole) return change;
  const trials = replaced(before.trials, change.trials, (trial) => trial.trial_id);
  const order = new Map(trials.map((trial, at) => [trial.trial_id, at]));
  return {
    ...before,
    cursor: change.cursor,
    job: change.job ?? before.job,
    report: change.report ?? before.report,
    trials,
    schedules: replaced(before.schedules, change.schedules, (schedule) => schedule.trial_id),
    stages: replaced(before.stages, change.stages, (stage) => `${stage.trial_id} ${stage.stage}`,
      (one, other) => order.get(one.trial_id) - order.get(other.trial_id) || one.stage - other.stage),
    series: longer(before.series, change.series),
  };
}

export const isTooLong = (held) => held.series.some((series) => series.steps.length > 2 * MAX_POINTS)
  || held.series.reduce((sum, series) => sum + series.steps.length, 0) > 2 * MOST_POINTS;

// The points per series of a metric of all trials: as many as a snapshot has.
export const pointsOf = (numTrials) => Math.min(MAX_POINTS, Math.floor(MOST_POINTS / (2 * numTrials)));

function replaced(before, changed, keyOf, compare = null) {
  if (!changed.length) return before;
  const found = new Map(before.map((each) => [keyOf(each), each]));
  for (const each of changed) found.set(keyOf(each), each);
  return compare ? [...found.values()].sort(compare) : [...found.values()];
}

function longer(before, changed) {
  if (!changed.length) return before;
  const added = new Map(changed.map((series) => [nameOf(series), series]));
  const known = new Set(before.map(nameOf));
  return [...before.map((series) => joined(series, added.get(nameOf(series)))),
    ...changed.filter((series) => !known.has(nameOf(series)))];
}

const nameOf = (series) => `${series.name} ${series.trial_id}`;

// A series extended by `added`. That has every point from its first step on, so it replaces the held points from there on.
export function joined(before, added) {
  if (!added?.steps.length) return before;
  const from = before.steps.findIndex((step) => step >= added.steps[0]);
  const kept = from < 0 ? before.steps.length : from;
  const both = (field) => [...before[field].slice(0, kept), ...added[field]];
  return { ...before, steps: both("steps"), seconds: both("seconds"), values: both("values"),
    num_points: before.num_points - (before.steps.length - kept) + added.num_points };
}
