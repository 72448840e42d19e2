// What may be asked of a job, as buttons. What ends a job is confirmed; each acts on the job as it was shown.

import * as api from "../../api.js";
import { question, reason } from "../../dialog.js";
import { element, patch } from "../../dom.js";

const MEANING = {
  pause: "Write a checkpoint and give workers back; the job keeps its place",
  resume: "Go on from the checkpoint",
  stop: "End as if the budget were spent, and keep the result",
  cancel: "End without a result",
  retry: "Go on from the last checkpoint",
  extend: "Go on with a larger budget",
  clone: "Queue a new job: this one with changes",
};

const STOP = `It ends as if its budget were spent now: evaluated, exported, and succeeded with what it has by then.
  Trials that have not begun stay out. Afterwards it can go on only by "extend".`;
const CANCEL = `It ends without a result. What it trained since its last checkpoint is lost; "retry" goes on from there.`;

// `changed` is called when the job is no longer as it was shown.
export function controls(changed) {
  const buttons = element("div", { class: "buttons" });
  const refused = element("p", { class: "refused", role: "alert" });
  const state = element("p", { class: "visually-hidden", role: "status" });
  const body = element("div", { class: "controls", role: "group", "aria-label": "Actions", tabindex: "-1" },
    buttons, refused, state);
  const asks = { stop: confirmed(STOP), cancel: confirmed(CANCEL), extend: askToExtend, clone: openForm };
  let job = null;

  function update(given, me) {
    if (job && job.state !== given.state) state.textContent = `The job is ${given.state}.`;
    job = given;
    const hadFocus = body.contains(document.activeElement);
    patch(buttons, ...verbsFor(me, job).map(button));
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

// As the service has it, which refuses the rest: a viewer only looks, a submitter changes what is his own.
function verbsFor(me, job) {
  if (me.role === "viewer") return [];
  const isOwn = me.role !== "submitter" || me.name === job.owner;
  return [...(isOwn ? job.verbs : []), "clone"];
}

const openForm = (job) => location.assign(`/?clone=${encodeURIComponent(job.id)}`);

const confirmed = (text) => (job, verb) => question({
  title: `${verb} “${job.name}”?`,
  content: [element("p", {}, text)],
  answers: [{ label: `${verb} the job`, kind: verb, act: () => api.ask(job, verb) }],
});

function askToExtend(job) {
  const units = Object.entries(job.spec.budget).filter(([, cap]) => cap !== null);
  const inputs = units.map(([unit, cap]) =>
    element("input", { name: unit, type: "number", min: cap, step: unit === "seconds" ? "any" : 1, value: 2 * cap, required: "" }));
  const caps = () => Object.fromEntries(inputs.map((input) => [input.name, Number(input.value)]));
  return question({
    title: `extend “${job.name}”`,
    content: [
      element("p", {}, "The whole budget, old and new. Each trial goes on from the last state that the old budget's end had no part in."),
      ...inputs.map((input, at) => element("label", {}, `${input.name}, until now ${units[at][1]}`, input)),
    ],
    answers: [{ label: "extend the job", act: () => api.ask(job, "extend", caps()) }],
  });
}
