// A sweep over a job's fields: the ranking of its samples and arms, their values, and their measurements.

import { panel } from "../../charts/panel.js";
import { parametersChart, sweepChart, valuesText, writeCost } from "../../charts/sweep.js";
import { element, patch, table, whenChanged } from "../../dom.js";
import { figures, loss, share } from "../../units.js";

const SHOWN = 20; // of the ranking; the chart's data table has all

export function sweep() {
  const ranking = element("section", { class: "panel wide", id: "sweep", hidden: "" });
  const [parameters, chart] = [panel("Parameters", "wide"), panel("Samples", "wide")];
  parameters.body.hidden = chart.body.hidden = true;

  const drawTable = whenChanged((found) => patch(ranking, element("h2", {}, "Ranking"), rankingTable(found)));

  async function update(found, { names }) {
    ranking.hidden = parameters.body.hidden = chart.body.hidden = !found;
    if (!found) return;
    drawTable(found);
    await drawCharts(found, names);
  }

  const drawCharts = whenChanged((found, names) => Promise.all([parameters.draw(() => parametersChart(found)), chart.draw(() => sweepChart(found, names))]));

  return { bodies: [ranking, parameters.body, chart.body], update };
}

function rankingTable(found) {
  const rungs = found.rungs.map((rung) => `${rung.num_kept} of ${rung.num_reached} went on at ${share(rung.share)}`).join(", ");
  const saved = found.rungs.length ? `; ${rungs}; ${share(found.saved_share)} of all budgets saved` : "";
  const more = found.ranking.length > SHOWN ? `; the best ${SHOWN} of ${found.ranking.length}` : "";
  const costs = found.cost ? [figures(found.cost, (each) => each.cost, writeCost(found.cost)),
    ["on the front", (each) => (each.on_front ? "yes" : "–"), ""]] : [];
  return table(`By ${found.metric}${found.cost ? ` and ${found.cost}` : ""}, those that got further first${saved}${more}`, [
    figures("place", (each) => each.place, String),
    ["trial", (each) => each.label, "name"],
    ["state", (each) => each.status, ""],
    figures("of its budget", (each) => each.share, share),
    figures(found.metric, (each) => each.value, loss),
    ...costs,
    ["values", valuesText, ""],
  ], found.ranking.slice(0, SHOWN), { key: (each) => each.trial_id });
}
