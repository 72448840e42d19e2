// Why values were chosen: a card per stage of one trial, with what its surrogate believed and what came true.

import * as api from "../../api.js";
import { panel } from "../../charts/panel.js";
import { posteriorChart } from "../../charts/posterior.js";
import { element, empty, patch, whenChanged } from "../../dom.js";
import { besides, level, loss, number, share, signed, spread } from "../../units.js";

const GAIN = "Expected gain: further fall of the log loss than in the first probe";

// `update` takes what the page holds; posteriors are large, and fetched for the trial that is looked at when it decides.
export function decisions(id) {
  const choice = element("select", { id: "decided-trial", onchange: () => show().catch(failed) });
  const list = element("div", { class: "cards" });
  const sum = element("p", { class: "fact" });
  const body = element("section", { class: "panel wide" },
    element("div", { class: "panel-head" }, element("h2", {}, "Decisions"),
      element("label", { for: "decided-trial" }, "trial ", choice)), list, sum);
  const cards = new Map();
  let held = { trials: [], stages: [], isTraining: false };
  let posteriors = { of: "", found: new Map() };

  const failed = (error) => patch(list, empty(error.message));

  // Trials: labelled, with what their level is called, and their calibration.
  async function update(trials, stages, isTraining) {
    held = { trials: trials.filter((trial) => stages.some((stage) => stage.trial_id === trial.trial_id)), stages, isTraining };
    const chosen = choice.value;
    patch(choice, ...held.trials.map((trial) => element("option", { value: trial.trial_id, key: trial.trial_id }, trial.label)));
    if (held.trials.some((trial) => trial.trial_id === chosen)) choice.value = chosen;
    await show();
  }

  async function show() {
    const trial = held.trials.find((each) => each.trial_id === choice.value);
    body.hidden = !trial;
    if (!trial) return;
    const stages = held.stages.filter((stage) => stage.trial_id === trial.trial_id);
    await fetchPosteriors(trial.trial_id, stages);
    if (choice.value !== trial.trial_id) return; // another one was chosen meanwhile
    sum.textContent = calibrationText(trial.calibration);
    patch(list, ...stages.map((stage) => cardOf(stage).body));
    const draw = (stage) => cardOf(stage).draw(stage, posteriors.found.get(stage.stage), trial.level_name, held.isTraining);
    await Promise.all(stages.map(draw));
  }

  async function fetchPosteriors(trial, stages) {
    const of = JSON.stringify([trial, ...stages.map((stage) => [stage.stage, stage.reason])]);
    if (of === posteriors.of) return;
    const found = await api.cards(id, trial);
    posteriors = { of, found: new Map(found.map((stage) => [stage.stage, stage.posterior])) };
  }

  function cardOf(stage) {
    const name = `${stage.trial_id} ${stage.stage}`;
    if (!cards.has(name)) cards.set(name, card(name));
    return cards.get(name);
  }

  return { body, update };
}

function card(name) {
  const head = element("div", {});
  const chart = panel(GAIN, "bare");
  const foot = element("ul", { class: "facts" });
  const body = element("article", { class: "card", key: name }, head, chart.body, foot);

  const draw = whenChanged((stage, posterior, levelName, isTraining) => {
    const { learning_rate, values } = stage;
    patch(head,
      element("h3", {}, `Stage ${stage.stage}: ${valuesText({ learning_rate, level: stage.level, ...values }, levelName)}`),
      element("p", { class: "reason" }, stage.reason),
      ...refusedTexts(stage.refused, levelName).map((text) => element("p", { class: "quiet" }, `Not tried: ${text}`)));
    patch(foot, ...facts(stage, isTraining).map(([name, value]) =>
      element("li", { key: name }, element("span", { class: "quiet" }, `${name} `), element("b", {}, value))));
    chart.body.hidden = !stage.probes.length;
    if (stage.probes.length) return chart.draw((theme) => posteriorChart({ ...stage, posterior }, levelName, theme), `stage ${stage.stage}`);
  });

  return { body, draw };
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

// One text for each reason, with all that was refused for it.
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
