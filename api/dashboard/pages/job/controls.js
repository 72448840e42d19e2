// The verbs of a job as buttons. Verbs that end a job ask first; each acts on the version that was shown.

import * as api from "../../api.js";
import { sampleNames } from "../../charts/sweep.js";
import { question, reason } from "../../dialog.js";
import { element, glossary, patch } from "../../dom.js";
import { isOver, mayChange, PRIORITIES } from "../../states.js";
import { number } from "../../units.js";

const STALE = 412; // the job is no longer as it was shown

const MEANING = {
  pause: "Write a checkpoint and give workers back; the job keeps its place",
  resume: "Go on from the checkpoint",
  stop: "End as if the budget were spent, and keep the result",
  cancel: "End without a result",
  retry: "Go on from the last checkpoint",
  extend: "Go on with a larger budget, further seeds or more samples",
  steer: "Pin or veto values, from the next stage on",
  clone: "Queue a new job: this one with changes",
  edit: "Change its labels, notes and priority",
  archive: "Have lists leave it out",
  unarchive: "Have lists show it again",
  delete: "Remove it with all that it has stored",
};

const STOP = `It ends as if its budget were spent now: evaluated, exported, and succeeded with what it has by then.
  In its first search it has trained nothing yet. Trials that have not begun stay out. A job that waits does this when its turn
  comes. Afterwards it can go on only by "extend".`;
const CANCEL = `It ends without a result. What it trained since its last checkpoint is lost; "retry" goes on from there.
  A job whose extension has not begun keeps its result.`;
const DELETE = "Its metrics, logs, checkpoints and weights are deleted, too. This cannot be undone.";

// `changed` is called when the job is no longer as shown.
export function controls(changed) {
  const buttons = element("div", { class: "buttons" });
  const refused = element("p", { class: "refused", role: "alert" });
  const state = element("p", { class: "visually-hidden", role: "status" });
  const meanings = glossary("what these do");
  const body = element("div", { class: "controls", role: "group", "aria-label": "Actions", tabindex: "-1" },
    buttons, refused, state, meanings.body);
  const asks = { stop: confirmed(STOP), cancel: confirmed(CANCEL), extend: askToExtend, steer: askToSteer, clone: openForm, edit: askToEdit,
    archive: (of) => api.edit(of, { archived: true }), unarchive: (of) => api.edit(of, { archived: false }), delete: confirmed(DELETE, api.remove) };
  let job = null;

  function update(given, me) {
    if (job && job.state !== given.state) state.textContent = `The job is ${given.state}.`;
    job = given;
    const hadFocus = body.contains(document.activeElement);
    const verbs = verbsFor(me, job);
    patch(buttons, ...verbs.map(button), job.unreadable ? null : compareLink(job));
    meanings.update(verbs.map((verb) => [verb, MEANING[verb]]));
    if (hadFocus && !body.contains(document.activeElement)) body.focus(); // the next Tab leads to the first button
  }

  function button(verb) {
    return element("button", { type: "button", key: verb, title: MEANING[verb], class: verb, onclick: () => ask(verb) }, verb);
  }

  async function ask(verb) {
    if (body.hasAttribute("aria-busy")) return; // a second click on the same button
    refused.textContent = "";
    body.setAttribute("aria-busy", "true");
    try {
      await (asks[verb] ?? api.ask)(job, verb);
    } catch (error) {
      refused.textContent = reason(error);
    } finally {
      body.removeAttribute("aria-busy");
    }
    await changed();
    if (document.activeElement === document.body) body.focus(); // the button that had the focus is gone
  }

  return { body, update };
}

const compareLink = ({ id }) => element("a", { key: "compare", class: "verb", href: `/?compare=${encodeURIComponent(id)}`,
  title: "Show it beside other jobs" }, "compare");

export const mayClone = (me) => me.role !== "viewer"; // all others may clone what they see

function verbsFor(me, job) {
  if (!mayClone(me)) return [];
  const others = ["edit", job.archived ? "unarchive" : isOver(job) ? "archive" : null, isOver(job) ? "delete" : null].filter(Boolean);
  const canChange = mayChange(me, job);
  return [...(canChange ? job.verbs : []), ...(job.unreadable ? [] : ["clone"]), ...(canChange ? others : [])];
}

const openForm = (job) => location.assign(`/?clone=${encodeURIComponent(job.id)}`);

const confirmed = (text, act = api.ask) => (job, verb) => question({
  title: `${verb} “${job.name}”?`,
  content: [element("p", {}, text)],
  answers: [{ label: `${verb} the job`, kind: verb, act: () => act(job, verb) }],
});

const STOP_TRIAL = `It ends as if its budget were spent now: evaluated, and exported with what it has by then. In its first search it
  has trained nothing yet. If it has not begun, it is left out. The other trials go on.`;

// Ends one trial of the job early. `changed` is called when the job is no longer as shown.
export const trialStop = (job, trial, changed) => element("button", {
  type: "button", class: "stop", "aria-label": `stop ${trial.label}`, onclick: () => question({
    title: `stop “${trial.label}”?`,
    content: [element("p", {}, STOP_TRIAL)],
    answers: [{ label: "stop the trial", kind: "stop", act: () => api.stopTrial(job, trial.trial_id) }],
  }).then(changed) }, "stop");

// To the form for a job that trains what this sample trains.
export const sampleClone = (id, { arm }) => element("a", { class: "verb", "aria-label": `clone ${arm}`, title: MEANING.clone,
  href: `/?clone=${encodeURIComponent(id)}&trial=${encodeURIComponent(arm)}` }, "clone");

// A field that is left empty is not sent: with any cap, even that of before, finished trials go on.
function askToExtend(job) {
  const fields = [...capFields(job.spec), ...trialFields(job.spec)];
  const written = () => fields.filter(({ input }) => input.value.trim() !== "");
  const asked = () => Object.fromEntries(written().map(({ input, read }) => [input.getAttribute("name"), read(input.value)]));
  return question({
    title: `extend “${job.name}”`,
    content: [
      element("p", {}, `What you leave empty stays as it is. A cap is the whole budget of each trial, old and new: trials go on from the last
        state that the old budget's end had no part in. Without a cap, finished trials stay as they are, and further ones train.`),
      ...fields.map(({ label, input }) => element("label", {}, label, input)),
    ],
    answers: [{ label: "extend the job", act: () => api.ask(job, "extend", asked()) }],
  });
}

// A job with a second line gets no larger budget: both its lines have used theirs.
function capFields({ budget, lanes }) {
  const units = lanes?.after === "insurance" ? [] : Object.entries(budget).filter(([, cap]) => cap !== null);
  return units.map(([unit, cap]) => ({ label: `${unit}, until now ${cap}`, read: Number,
    input: element("input", { name: unit, type: "number", min: cap, step: unit === "seconds" ? "any" : 1, placeholder: `such as ${2 * cap}` }) }));
}

function trialFields(spec) {
  const samples = sampleNames(spec).length;
  const seeds = { label: `further seeds of each arm, until now ${spec.seeds.join(", ")}`, read: (text) => text.split(/[\s,]+/).filter(Boolean).map(Number),
    input: element("input", { name: "seeds", pattern: "[\\s,]*\\d+([\\s,]+\\d+)*[\\s,]*", title: "whole numbers, with commas between them", placeholder: "such as 2, 3", autocomplete: "off" }) };
  return samples ? [seeds, { label: `samples in all, until now ${samples}`, read: Number,
    input: element("input", { name: "samples", type: "number", min: samples + 1, step: 1, placeholder: `such as ${2 * samples}` }) }] : [seeds];
}

// The fields that users may change at any time; the priority only until the job is over.
function askToEdit(job) {
  const notes = element("textarea", { name: "notes", rows: 4 }, job.notes);
  const labels = element("textarea", { name: "labels", rows: 3, spellcheck: "false", placeholder: "team=vision" },
    labelLines(job).join("\n"));
  const priority = element("select", { name: "priority" },
    ...PRIORITIES.map((each) => element("option", { value: each, selected: each === job.priority ? "" : null }, each)));
  const given = () => Object.fromEntries(labels.value.split("\n").map((line) => line.trim()).filter(Boolean)
    .map((line) => [line.split("=")[0].trim(), line.split("=").slice(1).join("=").trim()]));
  const gone = () => Object.fromEntries(Object.keys(seen.labels).map((name) => [name, null]));
  const patchOfJob = () => ({ notes: notes.value, labels: { ...gone(), ...given() },
    ...(isOver(seen) || priority.value === seen.priority ? {} : { priority: priority.value }) }); // a role may not take every priority
  let seen = job; // as the reader knows it

  // The job's state may change while somebody writes. What another person has written meanwhile is told before it is replaced.
  async function edit() {
    try {
      return await api.edit(seen, patchOfJob());
    } catch (error) {
      if (error.status !== STALE) throw error;
    }
    const before = seen;
    seen = await api.job(job.id);
    const changed = Object.entries(WRITTEN).filter(([, textOf]) => textOf(before) !== textOf(seen)).map(([name, textOf]) => `its ${name} ${textOf(seen)}`);
    if (changed.length) throw new api.Refused(STALE, { detail: `Somebody has edited the job meanwhile: ${changed.join("; ")}. Press again to replace that.` });
    return api.edit(seen, patchOfJob());
  }

  return question({
    title: `edit “${job.name}”`,
    content: [
      element("label", {}, "notes", notes),
      element("label", {}, "labels, one name=value on each line", labels),
      isOver(job) ? "" : element("label", {}, "priority", priority),
    ],
    answers: [{ label: "edit the job", act: edit }],
  });
}

const labelLines = ({ labels }) => Object.entries(labels).map((each) => each.join("="));

// What people edit, as they are told of it.
const WRITTEN = {
  notes: ({ notes }) => `are now “${notes}”`,
  labels: (job) => `are now “${labelLines(job).join(", ")}”`,
  priority: ({ priority }) => `is now ${priority}`,
};

// Each value can be searched further, pinned, or limited on one side; each part of the steers in force can be withdrawn.
async function askToSteer(job) {
  const { version, steers, steerable, notes } = await api.steering(job.id);
  let seen = { ...job, version }; // what the question shows may be newer than the page; each answer moves it on
  const held = steers.filter((each) => each.in_force);
  const rows = steerable.map((each) => steerRow(each, steerable));
  const searches = element("input", { type: "checkbox", name: "search_now" });
  const taken = element("p", { class: "note", role: "status" });
  const done = new Map(); // what holds already, though another part was refused: each request, and how it is told

  // The job's state may change behind the question. What it asks holds as long as the same steers are in force.
  async function send(asked) {
    try {
      seen = await api.ask(seen, "steer", asked);
    } catch (error) {
      if (error.status !== STALE || done.size) throw error;
      const now = await api.steering(job.id);
      if (String(idsInForce(now.steers)) !== String(idsInForce(steers))) throw error;
      seen = await api.ask({ ...seen, version: now.version }, "steer", asked);
    }
  }

  // Arms may search different values: steers of the same trials go into one request.
  async function steer() {
    const said = new Map();
    for (const { trials, say } of rows.filter(({ how }) => how.value)) {
      const key = trials.join();
      if (!said.has(key)) said.set(key, { trials, pin: {}, veto: {}, search_now: searches.checked });
      say(said.get(key));
    }
    for (const each of said.size ? said.values() : [{ search_now: searches.checked }]) {
      const asked = JSON.stringify(each);
      if (done.has(asked)) continue;
      await send(each);
      done.set(asked, said.size ? `${valuesOf(each).join(", ")} of ${each.trials.map(short).join(", ")}` : "a search");
      taken.textContent = `Taken already: ${[...done.values()].join("; ")}.`;
    }
  }

  return question({
    title: `steer “${job.name}”`,
    content: [
      element("p", {}, `From the next stage on a pinned value is used and not searched, and a vetoed one is neither tried
        nor used, until it is withdrawn. While the learning rate is pinned, nothing is searched.`),
      ...notes.map((note) => element("p", { class: "note" }, note)),
      ...rows.map(({ body }) => body),
      element("label", { class: "check" }, searches, "search at the next stage, whatever happens"),
      taken,
      element("ul", { "aria-label": "what holds" }, ...held.map((each) => element("li", {}, told(each)))),
    ],
    answers: [
      { label: "steer the job", act: steer },
      ...held.map(({ id }) => ({ label: `withdraw ${id}`, act: () => send({ clear: [id] }) })),
    ],
  });
}

const idsInForce = (steers) => steers.filter((each) => each.in_force).map(({ id }) => id);

const valuesOf = ({ pin, veto }) => Object.keys({ ...pin, ...veto }).map((name) => name.replaceAll("_", " "));

function steerRow({ name, trials, low, high, names, current }, all) {
  const isNumber = low !== null;
  const isShared = all.every((each) => each.name !== name || each.trials === trials); // else arms differ: say whose
  const label = name.replaceAll("_", " ") + (isShared ? "" : ` of ${trials.map(short).join(", ")}`);
  const ways = ["search", "pin", ...(isNumber ? ["veto above", "veto below"] : ["veto"])];
  const how = element("select", { name: `how ${name}`, "aria-label": `${label}: what to do` },
    ...ways.map((way, at) => element("option", { value: at ? way : "" }, way)));
  const value = isNumber
    ? element("input", { name, type: "number", step: "any", min: low, max: high, value: current === null ? null : rounded(current, low, high), "aria-label": `${label}: value` })
    : element("select", { name, "aria-label": `${label}: value` },
      ...names.map((each) => element("option", { value: each, selected: each === current ? "" : null }, String(each))));
  const given = () => (isNumber ? Number(value.value) : names[value.selectedIndex]);

  function say({ pin, veto }) {
    if (how.value === "pin") pin[name] = given();
    else veto[name] = isNumber ? { [how.value.replace("veto ", "")]: given() } : [given()];
  }

  const range = isNumber ? `, ${number(low)} to ${number(high)}` : "";
  const now = current === null ? "" : `, now ${isNumber ? number(current) : current}`;
  const body = element("div", { class: "steered", role: "group", "aria-label": label },
    element("span", {}, `${label}${now}${range}`), how, value);
  return { body, how, say, trials };
}

// Rounding a value past its bound would get it refused.
const rounded = (value, low, high) =>
  (Number.isInteger(value) ? value : Math.min(high, Math.max(low, Number(value.toPrecision(4)))));

const short = (id) => id.slice(id.indexOf(".") + 1);

function told({ id, by, pin, veto, search_now, trials, first_stages }) {
  const limits = ({ above, below }) => [above != null && `above ${number(above)}`, below != null && `below ${number(below)}`];
  const words = [
    ...Object.entries(pin).map(([name, value]) => `${name.replaceAll("_", " ")} pinned at ${value}`),
    ...Object.entries(veto).map(([name, those]) =>
      `${name.replaceAll("_", " ")} vetoed ${(Array.isArray(those) ? those : limits(those).filter(Boolean)).join(" and ")}`),
    ...(search_now ? ["a search at the next stage"] : []),
  ];
  const since = trials.map((each) => (each in first_stages ? `since stage ${first_stages[each]}` : "from the next stage on"));
  return `${id}: ${words.join(", ")}, by ${by}, ${[...new Set(since)].join(" and ")}`;
}
