// The reasons for chosen values: a card per stage of one trial, with its surrogate's predictions and their outcome.

import * as api from "../../api.js";
import { calibrationChart } from "../../charts/calibration.js";
import { panel } from "../../charts/panel.js";
import { posteriorChart } from "../../charts/posterior.js";
import { element, empty, patch, whenChanged } from "../../dom.js";
import { besides, level, loss, number, share, signed, spread } from "../../units.js";
import { searchCard, searches } from "./searching.js";
import { whenSeen } from "./sight.js";

const GAIN = "Expected gain: further fall of the log loss than in the first probe";
const BELIEFS = { mean: "belief", std: "uncertainty", improvement: "expected improvement" };
const AT_ONCE = 12; // cards, until the reader asks for more
const IN_ONE_REQUEST = 50;

// `update` takes the page's data. Posteriors are large, so each is fetched when its card becomes visible.
export function decisions(id, { held: choice, choose }) {
  const picked = element("select", { id: "decided-trial", onchange: ({ currentTarget }) => choose("trial", currentTarget.value) });
  const shown = element("select", { id: "shown-belief", onchange: ({ currentTarget }) => choose("belief", currentTarget.value) },
    ...Object.entries(BELIEFS).map(([value, text]) => element("option", { value, selected: value === choice.belief ? "" : null }, text)));
  const more = element("button", { type: "button", hidden: "", onclick: () => (limit = Infinity, show()) });
  const list = element("div", { class: "cards" });
  const sum = element("p", { class: "fact" });
  const refused = element("p", { class: "refused", role: "alert" });
  const body = element("section", { class: "panel wide", id: "decisions" },
    element("div", { class: "panel-head" }, element("h2", {}, "Decisions"),
      element("div", { class: "tools" }, element("label", { for: "decided-trial" }, "trial ", picked), element("label", { for: "shown-belief" }, "show ", shown))),
    refused, more, list, sum);
  const calibration = panel("Forecasts against what came", "wide");
  const cards = new Map();
  const posteriors = new Map(); // by card and reason: a promise until it is there
  const search = searchCard();
  const hear = searches(id);
  let open = new Map(); // the last search of each trial
  const look = whenSeen(body, () => lookForProbes().catch(() => {})); // without them the card comes with the decision
  let held = { trials: [], stages: [], isTraining: false, searching: new Set() };
  let limit = AT_ONCE;
  let wanted = [];

  // Labelled trials, with the name of their level and their calibration. `searching` has the ids of those that search now.
  async function update(trials, stages, isTraining, searching = new Set()) {
    const isShown = ({ trial_id: trial }) => searching.has(trial) || stages.some((stage) => stage.trial_id === trial);
    held = { trials: trials.filter(isShown), stages, isTraining, searching };
    patch(picked, ...held.trials.map((trial) => element("option", { value: trial.trial_id, key: trial.trial_id }, trial.label)));
    await Promise.all([show(), drawCalibration(stages)]);
    look();
  }

  async function lookForProbes() {
    if (!held.searching.size) return;
    open = new Map(await hear());
    await show();
  }

  const drawCalibration = whenChanged((stages) => {
    calibration.body.hidden = !stages.some((stage) => stage.z_score !== null);
    return calibration.body.hidden ? undefined : calibration.draw(() => calibrationChart(stages));
  });

  async function show() {
    const trial = held.trials.find((each) => each.trial_id === choice.trial) ?? held.trials[0];
    body.hidden = !trial;
    if (!trial) return;
    picked.value = trial.trial_id;
    const stages = held.stages.filter((stage) => stage.trial_id === trial.trial_id);
    const newest = stages.slice(-limit);
    more.hidden = newest.length === stages.length;
    more.textContent = `show the ${stages.length - newest.length} earlier stages`;
    sum.textContent = calibrationText(trial.calibration);
    const under = held.searching.has(trial.trial_id) ? open.get(trial.trial_id) : null;
    const isOpen = under && !stages.some((stage) => stage.stage >= under.stage); // what was decided has a card of its own
    patch(list, ...newest.map((stage) => cardOf(stage).body), isOpen ? search.body : null);
    forget(new Set(newest.map(nameOf)));
    await Promise.all([...newest.map((stage) => cardOf(stage).draw({ ...held, stage, levelName: trial.level_name })), isOpen ? search.draw(under) : null]);
  }

  // A page that stays open all day holds only what it shows.
  function forget(shown) {
    for (const [name, { close }] of cards) if (!shown.has(name)) close(), cards.delete(name);
    for (const key of posteriors.keys()) if (!shown.has(key.split(" ", 2).join(" "))) posteriors.delete(key);
  }

  function cardOf(stage) {
    const name = nameOf(stage);
    if (!cards.has(name)) cards.set(name, card(name, posteriorOf, choice));
    return cards.get(name);
  }

  // Cards that become visible together are fetched together.
  function posteriorOf(stage) {
    const key = `${nameOf(stage)} ${stage.reason}`;
    if (!posteriors.has(key)) {
      posteriors.set(key, new Promise((found, lost) => {
        wanted.push({ stage, found, lost });
        if (wanted.length === 1) queueMicrotask(fetchWanted);
      }));
      posteriors.get(key).catch(() => posteriors.delete(key)); // it is asked for anew
    }
    return posteriors.get(key);
  }

  async function fetchWanted() {
    const asked = wanted.splice(0);
    for (const trial of new Set(asked.map(({ stage }) => stage.trial_id))) {
      const own = asked.filter(({ stage }) => stage.trial_id === trial);
      for (let at = 0; at < own.length; at += IN_ONE_REQUEST) await fetchSome(trial, own.slice(at, at + IN_ONE_REQUEST));
    }
  }

  async function fetchSome(trial, asked) {
    try {
      const found = await api.cards(id, trial, asked.map(({ stage }) => stage.stage));
      const known = new Map(found.map((stage) => [stage.stage, stage.posterior]));
      refused.textContent = "";
      asked.forEach(({ stage, found: give }) => give(known.get(stage.stage) ?? null));
    } catch (error) {
      refused.textContent = error.message;
      asked.forEach(({ lost }) => lost(error));
    }
  }

  return { body, calibration: calibration.body, update, show };
}

const nameOf = (stage) => `${stage.trial_id} ${stage.stage}`;

function card(name, posteriorOf, choice) {
  const head = element("div", {});
  const chart = panel(GAIN, "bare");
  const foot = element("ul", { class: "facts" });
  const body = element("article", { class: "card", key: name }, head, chart.body, foot);
  let given = null;
  const look = whenSeen(body, () => drawChart().catch(() => {}));

  const write = whenChanged((stage, levelName, isTraining) => {
    const { learning_rate, values } = stage;
    patch(head,
      element("h3", {}, `Stage ${stage.stage}: ${valuesText({ learning_rate, level: stage.level, ...values }, levelName)}`),
      element("p", { class: "reason" }, stage.reason),
      ...refusedTexts(stage.refused, levelName).map((text) => element("p", { class: "quiet" }, `Not tried: ${text}`)));
    patch(foot, ...facts(stage, isTraining).map(([fact, value]) =>
      element("li", { key: fact }, element("span", { class: "quiet" }, `${fact} `), element("b", {}, value))));
    chart.body.hidden = !stage.probes.length;
    chart.body.querySelector("button").setAttribute("aria-label", `data table: stage ${stage.stage}`); // one card from another
  });
  const paint = whenChanged((stage, posterior, levelName, belief) =>
    chart.draw((theme) => posteriorChart({ ...stage, posterior }, levelName, theme, belief), `stage ${stage.stage}`));

  async function drawChart() {
    const { stage, levelName } = given;
    if (stage.probes.length) await paint(stage, await posteriorOf(stage), levelName, choice.belief);
  }

  return {
    body,
    draw(next) {
      given = next;
      write(next.stage, next.levelName, next.isTraining);
      return look();
    },
    close: chart.close,
  };
}

function facts(stage, isTraining) {
  const off = stage.z_score === null ? "" : ` (${signed(stage.z_score)} std)`;
  const came = stage.closed ? loss(stage.loss) + off : isTraining ? "the commit runs" : "not finished";
  const cap = stage.tax.cap_share === null ? "" : `, ${share(stage.tax.cap_share)} of its cap`;
  return [
    ["probes", stage.probes.length ? String(stage.probes.length) : "none"],
    ["of earlier stages", stage.num_earlier ? String(stage.num_earlier) : null],
    ["forecast", stage.forecast === null ? null : spread(stage.forecast, stage.forecast_std, loss, (std) => number(std, 2))],
    ["came to", came],
    ["forecast weight", stage.forecast_weight === null ? null : number(stage.forecast_weight, 2)],
    ["searching so far", stage.tax.budget_share ? `${share(stage.tax.budget_share)} of the budget${cap}` : null],
  ].filter(([, value]) => value !== null);
}

function valuesText(values, name) {
  const ofLevel = values.level === null ? "" : `${name} ${level(values.level, name)}`;
  return [`learning rate ${number(values.learning_rate)}`, ofLevel, besides(values)].filter((each) => each !== "").join(", ");
}

// One text per reason, with everything that it refused.
function refusedTexts(refused, name) {
  return [...new Set(refused.map(({ reason }) => reason))].map((reason) => {
    const tried = refused.filter((refusal) => refusal.reason === reason);
    return `${tried.map(({ values }) => valuesText(values, name)).join("; ")}: ${reason}`;
  });
}

function calibrationText(found) {
  if (!found.num_outcomes) return "No forecast has come to its end yet.";
  return `Of ${found.num_outcomes} forecasts ${share(found.within_1_std)} came true within 1 std (of good ones 68 %), `
    + `${share(found.within_2_std)} within 2 std (95 %); on average ${signed(found.mean_z)} std off.`;
}
