// Series that a snapshot leaves out: each is fetched whole once, and then only its new points.

import * as api from "../../api.js";
import { inTurn } from "../../dom.js";
import { isTooLong, joined, MAX_POINTS } from "../../live/snapshot.js";

// Returns a function that gives a series by name, for the page's current rows: one per trial, in the same order. The same
// rows give the same promise; a failed fetch is repeated. After a rollback, start again with a new function.
export function heldSeries(id) {
  const byName = new Map();
  return (name, rows) => {
    if (!byName.has(name)) byName.set(name, followed(id, name));
    return byName.get(name)(rows);
  };
}

function followed(id, name) {
  const held = new Map(); // trial => { row, series }: the series as it was when the trial's row was this object
  let [wanted, found] = [[], null];

  const look = inTurn(async () => {
    const rows = wanted;
    const due = rows.filter((row) => held.get(row.trial_id)?.row !== row); // a trial without a change keeps its row
    const answers = held.size ? await Promise.all(due.map(newOf)) : await api.series(id, name, { max_points: MAX_POINTS });
    const series = new Map(answers.map((each) => [each.trial_id, each]));
    for (const row of due) if (series.has(row.trial_id)) held.set(row.trial_id, { row, series: series.get(row.trial_id) });
    return rows.flatMap((row) => held.get(row.trial_id)?.series ?? []);
  });

  // Fetches the last step again, since its value may have changed.
  async function newOf({ trial_id: trial }) {
    const before = held.get(trial)?.series;
    const isWhole = !before || isTooLong({ series: [before] });
    const [added] = await api.series(id, name, { trial, max_points: MAX_POINTS, first_step: isWhole ? null : before.steps.at(-1) });
    return isWhole ? added : joined(before, added);
  }

  return (rows) => {
    if (found && rows === wanted) return found;
    wanted = rows;
    const asked = found = look();
    asked.catch(() => found === asked && (found = null));
    return asked;
  };
}
