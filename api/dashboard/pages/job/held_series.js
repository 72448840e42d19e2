// Series that a snapshot leaves out: each is fetched whole once, and then only its new points.

import * as api from "../../api.js";
import { inTurn } from "../../dom.js";
import { isTooLong, joined, MAX_POINTS, pointsOf } from "../../live/snapshot.js";

const ONE_BY_ONE = 64; // trials; more are asked for together with all others, each with fewer points

// A series of these trials, which may be a part of the job's. One that does not report it has none.
export async function seriesOf(id, name, trials, numTrials, steps = {}) {
  if (trials.length === numTrials || trials.length > ONE_BY_ONE) return api.series(id, name, { max_points: pointsOf(numTrials), ...steps });
  const found = trials.map(({ trial_id: trial }) => api.series(id, name, { trial, max_points: MAX_POINTS, ...steps }).catch(unlessUnknown));
  return (await Promise.all(found)).flat();
}

function unlessUnknown(error) {
  if (error.status !== 404) throw error;
  return [];
}

// Returns a function that gives a series by name, for the page's current rows, of so many trials: one per row, in the same
// order. The same rows give the same promise; a failed fetch is repeated. After a rollback, start again with a new function.
export function heldSeries(id) {
  const byName = new Map();
  return (name, rows, numTrials = rows.length) => {
    if (!byName.has(name)) byName.set(name, followed(id, name));
    return byName.get(name)(rows, numTrials);
  };
}

function followed(id, name) {
  const held = new Map(); // trial => { row, series }: the series as it was when the trial's row was this object
  let [wanted, most, found] = [[], 0, null];

  const look = inTurn(async () => {
    const [rows, numTrials] = [wanted, most];
    const due = rows.filter((row) => held.get(row.trial_id)?.row !== row); // a trial without a change keeps its row
    const fresh = due.filter((row) => !held.has(row.trial_id));
    const answers = await Promise.all([seriesOf(id, name, fresh, numTrials), ...due.filter((row) => held.has(row.trial_id)).map(newOf)]);
    const series = new Map(answers.flat().map((each) => [each.trial_id, each]));
    for (const row of due) if (series.has(row.trial_id)) held.set(row.trial_id, { row, series: series.get(row.trial_id) });
    return rows.flatMap((row) => held.get(row.trial_id)?.series ?? []);
  });

  // Fetches the last step again, since its value may have changed.
  async function newOf({ trial_id: trial }) {
    const before = held.get(trial).series;
    const isWhole = isTooLong({ series: [before] });
    const [added] = await api.series(id, name, { trial, max_points: MAX_POINTS, first_step: isWhole ? null : before.steps.at(-1) });
    return isWhole ? added : joined(before, added);
  }

  return (rows, numTrials) => {
    if (found && rows === wanted) return found;
    [wanted, most] = [rows, numTrials];
    const asked = found = look();
    asked.catch(() => found === asked && (found = null));
    return asked;
  };
}
