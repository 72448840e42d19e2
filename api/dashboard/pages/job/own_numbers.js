// A small chart for each number of its own that a job's model returns in training steps.

import { placing } from "../../charts/axis.js";
import { LOSS, lossChart } from "../../charts/loss.js";
import { panel } from "../../charts/panel.js";
import { element, patch, whenChanged, whenKept } from "../../dom.js";
import { loss } from "../../units.js";
import { keptLooks } from "./curves.js";
import { whenSeen } from "./sight.js";
import { rangeOf } from "./summary.js";

const OWN = /^own_/;
const HEIGHT = 260;

// `fetchSeries` and `fetchNames` are as for the curves, whose choices hold here, too.
export function ownNumbers({ held: choice }, fetchSeries, fetchNames) {
  const list = element("div", { class: "cards" });
  const body = element("section", { class: "panel wide", id: "own-numbers", hidden: "" }, element("h2", {}, "Own numbers"), list);
  const cards = new Map(); // by name
  const placed = whenKept((axis, series) => placing(axis, series.filter((each) => each.name === LOSS), []));
  let given = { trials: [], series: [] };

  async function update(known) {
    given = known;
    const names = (await fetchNames(known.trials).catch(() => [...cards.keys()])).filter((name) => OWN.test(name));
    body.hidden = !names.length;
    for (const name of names) if (!cards.has(name)) cards.set(name, card(name, () => draw(name)));
    patch(list, ...names.map((name) => cards.get(name).body));
    return show();
  }

  const show = () => Promise.all([...cards.values()].map(({ look }) => look()));

  async function draw(name) {
    const { trials, series: losses } = given;
    const found = await fetchSeries(name);
    if (given.series !== losses) return; // newer ones were asked for meanwhile
    const how = { metric: name, isRecorded: true, smooth: choice.smooth, isLog: choice.logm, isLogAxis: choice.logx, isEach: choice.seeds === "each" };
    await cards.get(name).draw(trials, found, placed(choice.x === "steps" ? "steps" : "seconds", losses), JSON.stringify(how));
  }

  return { body, update, show };
}

function card(name, fetchAndDraw) {
  const chart = panel(name, "bare");
  const body = element("article", { class: "card", key: name }, chart.body);
  const looks = keptLooks();
  const look = whenSeen(body, () => fetchAndDraw().catch(() => {})); // it is drawn with the next points

  const draw = whenChanged((trials, series, place, how) => {
    const validation = looks(series, trials);
    patch(chart.heading, `${name}${nowText(validation)}`);
    return chart.draw(() => {
      const figure = lossChart({ training: [], validation, trials, stages: [], place, choice: JSON.parse(how) });
      return { ...figure, layout: { ...figure.layout, height: HEIGHT } };
    });
  });

  return { body, look, draw };
}

// The newest value, or those of the trials from the least to the largest.
function nowText(series) {
  const values = series.map((each) => each.values.findLast((value) => value !== null)).filter((value) => value !== undefined);
  return values.length ? `, now ${rangeOf(values, loss)}` : "";
}
