// The trials that a job's charts draw. A sweep may have hundreds of samples: a line for each would hide the few that matter.

import { element, patch } from "../../dom.js";

const FEW = 24; // samples: so many are always drawn
const MOST_ROWS = 48; // of charts with a row for each trial
const ALL = "all";
const NUMBERS = ["12", "48"];

// The reader's choices: how many of the best samples, and the names of others.
export const DRAWN = { samples: NUMBERS[0], also: "" };

export const namesIn = (text) => text.split(/[\s,]+/).filter(Boolean);

// The arms, the best samples, those that train now, and those that the reader names. `ranking` is the sweep's, best first.
// Returns the trials to draw, those with a row where each trial has one, and the samples by why they are drawn.
export function drawnTrials(trials, ranking, { samples, also }, isTraining) {
  const ranked = ranking.filter((each) => each.sample !== null);
  const why = { samples: ranked.length, best: ranked.length, training: 0, named: [] };
  if (ranked.length <= FEW || samples === ALL) return { lines: trials, rows: samples === ALL ? trials : trials.slice(0, MOST_ROWS), why };
  const most = Number(samples) || Number(NUMBERS[0]);
  const known = new Map(trials.map((trial) => [trial.trial_id, trial]));
  const best = new Set(ranked.filter((each) => each.value !== null).slice(0, most).map((each) => each.trial_id));
  const isOn = ({ outcome, backend }) => outcome === null && backend !== null;
  const training = new Set(ranked.map((each) => each.trial_id).filter((id) => isTraining && !best.has(id) && isOn(known.get(id))).slice(0, most));
  const isSample = new Set(ranked.map((each) => each.trial_id));
  const isNamed = ({ arm }) => namesIn(also).includes(arm);
  const lines = trials.filter((trial) => !isSample.has(trial.trial_id) || best.has(trial.trial_id) || training.has(trial.trial_id) || isNamed(trial));
  const named = lines.filter((trial) => isSample.has(trial.trial_id) && !best.has(trial.trial_id) && !training.has(trial.trial_id)).map((trial) => trial.arm);
  return { lines, rows: lines.slice(0, MOST_ROWS), why: { samples: ranked.length, best: best.size, training: training.size, named } };
}

// Says what the charts leave out, and lets the reader choose others. Hidden where they leave out nothing.
export function drawnChoice({ held: choice, choose }) {
  const body = element("section", { class: "panel wide", id: "drawn", "aria-label": "Trials in the charts", hidden: "" });

  function update(trials, { lines, rows, why }, names) {
    body.hidden = why.samples <= FEW && rows.length === trials.length;
    if (body.hidden) return;
    patch(body, element("p", { class: "fact" }, drawnText(trials, { lines, rows, why })), why.samples <= FEW ? null : toolsOf(names));
  }

  function toolsOf(names) {
    const numbers = [...NUMBERS.map((most) => [most, `the best ${most}`]), [ALL, "all"]];
    const number = element("select", { onchange: ({ currentTarget }) => choose("samples", currentTarget.value) },
      ...numbers.map(([value, text]) => element("option", { value, key: value, selected: value === choice.samples ? "" : null }, text)));
    const also = element("input", { list: "sample-names", value: choice.also, placeholder: "sample-7", autocomplete: "off", spellcheck: "false",
      onchange: ({ currentTarget }) => choose("also", namesIn(currentTarget.value).join(",")) });
    return element("div", { class: "tools" }, element("label", { key: "samples" }, "samples ", number), element("label", { key: "also" }, "and also ", also),
      element("datalist", { id: "sample-names", key: "names" }, ...names.map((name) => element("option", { value: name, key: name }))));
  }

  return { body, update };
}

export function drawnText(trials, { lines, rows, why }) {
  const isWhole = lines.length === trials.length;
  const arms = lines.length - why.best - why.training - why.named.length;
  const parts = [arms ? `${arms} ${arms === 1 ? "run of an arm" : "runs of arms"}` : "", `the best ${why.best} of ${why.samples} samples`,
    why.training ? `${why.training} more that ${why.training === 1 ? "trains" : "train"} now` : "", ...why.named].filter((part) => part !== "");
  const list = parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}` : parts[0];
  const drawn = isWhole ? `The charts below draw all ${trials.length} trials.` : `The charts below draw ${list}.`;
  const first = rows.length < lines.length ? ` Bars and the timeline have the first ${rows.length}.` : "";
  return `${drawn}${first} The tables have all.`;
}
