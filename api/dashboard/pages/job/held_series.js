// Series that a snapshot leaves out, as the page holds them: each is fetched once, and from then on what is new of it.

import * as api from "../../api.js";
import { inTurn } from "../../dom.js";
import { isTooLong, joined, MAX_POINTS } from "../../live/snapshot.js";

// Returns what has a series by its name, for the rows of trials that the page holds now: one of each trial, in their order.
// For the same rows it is the same promise; what failed is fetched again. Where steps were taken back, begin with another.
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

  // The last step comes again: its value may be another one by now.
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
