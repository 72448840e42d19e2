// A sweep over a job's fields: the ranking of its samples and arms, their values, their measurements, and which of the
// parameters mattered.

import { panel } from "../../charts/panel.js";
import { bestSoFarChart, importanceChart, importancesOf, parameterChart, parametersChart, sweepChart, valuesText, writeCost } from "../../charts/sweep.js";
import { element, patch, table, whenChanged } from "../../dom.js";
import { figures, loss, share } from "../../units.js";
import { sampleClone } from "./controls.js";

const SHOWN = 20; // of the ranking; the chart's data table has all

// `choice` holds the parameter that the reader has chosen; "": the most important one.
export function sweep({ held: choice, choose }) {
  const ranking = element("section", { class: "panel wide", id: "sweep", hidden: "" });
  const [parameters, chart] = [panel("Parameters", "wide"), panel("Samples", "wide")];
  const [best, importance] = [panel("Best so far"), panel("Importance of parameters")];
  const tools = element("div", { class: "tools" });
  const single = panel("One parameter", "wide", { tools });
  const charts = [parameters, chart, importance, best, single];
  for (const { body } of charts) body.hidden = true;
  let given = null;

  const drawTable = whenChanged((found, source) => patch(ranking, element("h2", {}, "Ranking"), rankingTable(found, source)));

  // `source` is the id of the job, where the reader may clone its samples; else null.
  async function update(found, { names }, source) {
    ranking.hidden = !found;
    for (const { body } of charts) body.hidden = !found;
    given = found;
    if (!found) return;
    drawTable(found, source);
    await Promise.all([drawCharts(found, names), show()]);
  }

  const drawCharts = whenChanged((found, names) => Promise.all([parameters.draw(() => parametersChart(found)), chart.draw(() => sweepChart(found, names)),
    best.draw(() => bestSoFarChart(found)), importance.draw(() => importanceChart(found))]));

  // The metric over the chosen parameter.
  async function show() {
    if (!given) return;
    const paths = importancesOf(given).map(({ path }) => path);
    const all = paths.length ? paths : [...new Set(given.ranking.flatMap(({ sample }) => Object.keys(sample?.values ?? {})))];
    const path = all.includes(choice.param) ? choice.param : all[0];
    single.body.hidden = path === undefined;
    if (path === undefined) return;
    patch(tools, element("label", { key: "param" }, "parameter ", element("select", { onchange: ({ currentTarget }) => choose("param", currentTarget.value) },
      ...all.map((each) => element("option", { value: each, key: each, selected: each === path ? "" : null }, each)))));
    await drawSingle(given, path);
  }

  const drawSingle = whenChanged((found, path) => single.draw(() => parameterChart(found, path)));

  return { bodies: [ranking, ...charts.map(({ body }) => body)], update, show };
}

function rankingTable(found, source) {
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
    ...(source ? [["clone", (each) => (each.sample?.values ? sampleClone(source, each) : "–"), "online"]] : []),
  ], found.ranking.slice(0, SHOWN), { key: (each) => each.trial_id });
}
