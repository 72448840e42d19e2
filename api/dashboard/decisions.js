// Why values were chosen: a card per stage of one trial, with what its surrogate believed and what came true.

import * as api from "./api.js";
import { panel, posteriorChart } from "./charts.js";
import { besides, element, empty, loss, number, share } from "./dom.js";

// `update` fetches the cards of the trial that is looked at, and only when one of its stages has changed.
export function decisions(id) {
  const choice = element("select", { id: "decided-trial", onchange: () => show().catch(failed) });
  const list = element("div", { class: "cards" });
  const sum = element("p", { class: "fact" });
  const body = element("section", { class: "panel wide" },
    element("div", { class: "panel-head" }, element("h2", {}, "Decisions"),
      element("label", { for: "decided-trial" }, "trial ", choice)), list, sum);
  const cards = new Map();
  let known = [];
  let shown = "";

  function failed(error) {
    shown = "";
    list.replaceChildren(empty(error.message));
  }

  // Trials: labelled, with their stages in short, what their level is called, and their calibration.
  async function update(trials) {
    known = trials.filter((trial) => trial.stages.length);
    const names = known.map((trial) => trial.trial_id);
    if (names.join() !== [...choice.options].map((option) => option.value).join()) {
      const before = choice.value;
      choice.replaceChildren(...known.map((trial) => element("option", { value: trial.trial_id }, trial.label)));
      choice.value = names.includes(before) ? before : names[0] ?? "";
    }
    await show();
  }

  async function show() {
    const trial = known.find((each) => each.trial_id === choice.value);
    body.hidden = !trial;
    if (!trial) return;
    const state = JSON.stringify([trial.trial_id, trial.calibration, trial.stages.map((stage) => [stage.reason, stage.closed])]);
    if (state === shown) return;
    const found = await api.cards(id, trial.trial_id);
    if (choice.value !== trial.trial_id) return; // another one was chosen meanwhile
    shown = state;
    sum.textContent = calibrationText(trial.calibration);
    list.replaceChildren(...found.map((stage) => cardOf(stage).body));
    for (const stage of found) await cardOf(stage).draw(stage, trial.level_name);
  }

  function cardOf(stage) {
    const name = `${stage.trial_id} ${stage.stage}`;
    if (!cards.has(name)) cards.set(name, card());
    return cards.get(name);
  }

  return { body, update };
}

function card() {
  const head = element("div", {});
  const chart = panel("Expected gain: further fall of the log loss than in the first probe", "bare");
  const foot = element("ul", { class: "facts" });
  const body = element("article", { class: "card" }, head, chart.body, foot);

  async function draw(stage, level) {
    const { learning_rate, values } = stage;
    head.replaceChildren(
      element("h3", {}, `Stage ${stage.stage}: ${valuesText({ learning_rate, level: stage.level, ...values }, level)}`),
      element("p", { class: "reason" }, stage.reason),
      ...refusedTexts(stage.refused, level).map((text) => element("p", { class: "quiet" }, `Not tried: ${text}`)));
    foot.replaceChildren(...facts(stage).map(([name, value]) =>
      element("li", {}, element("span", { class: "quiet" }, `${name} `), element("b", {}, value))));
    chart.body.hidden = !stage.probes.length;
    if (stage.probes.length) await chart.draw(posteriorChart(stage, level));
  }

  return { body, draw };
}

function facts(stage) {
  const spread = stage.z_score === null ? "" : ` (${signed(stage.z_score.toFixed(1))} std)`;
  const came = stage.closed ? loss(stage.loss) + spread : "the commit runs";
  const cap = stage.tax.cap_share === null ? "" : `, ${share(stage.tax.cap_share)} of its cap`;
  return [
    ["probes", stage.probes.length ? String(stage.probes.length) : "none"],
    ["of earlier stages", stage.num_earlier ? String(stage.num_earlier) : null],
    ["forecast", stage.forecast === null ? null : `${loss(stage.forecast)} ± ${number(stage.forecast_std, 2)}`],
    ["came to", came],
    ["forecast weight", stage.forecast_weight === null ? null : number(stage.forecast_weight, 2)],
    ["searching so far", stage.tax.budget_share ? `${share(stage.tax.budget_share)} of the budget${cap}` : null],
  ].filter(([, value]) => value !== null);
}

function valuesText(values, name) {
  const level = values.level === null ? "" : `${name} ${name === "density" ? share(values.level) : number(values.level)}`;
  return [`learning rate ${number(values.learning_rate)}`, level, besides(values)].filter((each) => each !== "").join(", ");
}

// One text for each reason, with all that was refused for it.
function refusedTexts(refused, name) {
  return [...new Set(refused.map(({ reason }) => reason))].map((reason) => {
    const tried = refused.filter((refusal) => refusal.reason === reason);
    return `${tried.map(({ values }) => valuesText(values, name)).join("; ")}: ${reason}`;
  });
}

const signed = (text) => (text.startsWith("-") ? text.replace("-", "−") : `+${text}`);
const percent = (value) => `${Math.round(100 * value)} %`;

function calibrationText(found) {
  if (!found.num_outcomes) return "No forecast has come to its end yet.";
  return `Of ${found.num_outcomes} forecasts ${percent(found.within_1_std)} came true within 1 std (of good ones 68 %), `
    + `${percent(found.within_2_std)} within 2 std (95 %); on average ${signed(found.mean_z.toFixed(1))} std off.`;
}
