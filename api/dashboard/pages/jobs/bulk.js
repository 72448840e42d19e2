// Actions on several jobs at once: one question, and a result per job.

import * as api from "../../api.js";
import { question, reason } from "../../dialog.js";
import { element, patch } from "../../dom.js";
import { isOver, mayChange, PRIORITIES } from "../../states.js";

const AT_ONCE = 4;

// label: { may, fits, act, done, text }: the required right, the jobs to which it applies, the action, the words for its
// success, and its explanation.
const verb = (name, done, text) => ({ may: "change this job", fits: ({ verbs }) => verbs.includes(name), act: (job) => api.ask(job, name), done, text });
const VERBS = {
  pause: verb("pause", "asked to pause", "They write a checkpoint and give their workers back."),
  resume: verb("resume", "queued again", "They go on from their checkpoints."),
  retry: verb("retry", "queued again", "They go on from their last checkpoints."),
  stop: verb("stop", "asked to stop", "They end as if their budgets were spent now, and keep their results. Trials that have not begun stay out."),
  cancel: verb("cancel", "cancelled", "They end without a result. What they trained since their last checkpoints is lost."),
  archive: { may: "change this job", fits: (job) => isOver(job) && !job.archived, act: (job) => api.edit(job, { archived: true }),
    done: "archived", text: "Lists leave them out." },
  unarchive: { may: "change this job", fits: ({ archived }) => archived, act: (job) => api.edit(job, { archived: false }),
    done: "brought back", text: "Lists show them again." },
  delete: { may: "delete this job", fits: isOver, act: api.remove, done: "deleted",
    text: "Their metrics, logs, checkpoints and weights are deleted, too. This cannot be undone." },
};

// `chosen` returns the jobs; `ended` is called when all results are there.
export function bulk(chosen, ended, clear) {
  const bar = element("div", { class: "bulk", role: "group", "aria-label": "Chosen jobs", hidden: "" });
  const results = element("section", { class: "panel results", role: "status", hidden: "" });
  let me = null;

  function update(given = me) {
    me = given;
    const jobs = chosen();
    bar.hidden = !jobs.length;
    const compare = `/?compare=${jobs.map((job) => encodeURIComponent(job.id)).join(",")}`;
    patch(bar, element("b", { key: "number" }, `${jobs.length} chosen`),
      jobs.length > 1 ? element("a", { key: "compare", href: compare }, "compare") : null,
      ...Object.keys(VERBS).map((name) => button(name, jobs)),
      ...(me?.may.includes("change this job") ? editButtons(jobs.filter((job) => mayChange(me, job))) : []),
      element("button", { type: "button", key: "clear", onclick: clear }, "clear"));
  }

  function button(name, jobs) {
    const { may, fits } = VERBS[name];
    const these = me?.may.includes(may) ? jobs.filter((job) => mayChange(me, job) && fits(job)) : [];
    return these.length ? element("button", { type: "button", key: name, class: name, onclick: () => confirm(name, these) },
      these.length === jobs.length ? name : `${name} ${these.length}`) : null;
  }

  const names = (jobs) => element("ul", { class: "names" }, ...jobs.map((job) => element("li", {}, job.name)));
  const counted = (jobs) => `${jobs.length} ${jobs.length === 1 ? "job" : "jobs"}`;

  function confirm(name, jobs) {
    const { act, done, text } = VERBS[name];
    question({
      title: `${name} ${counted(jobs)}?`,
      content: [element("p", {}, text), names(jobs)],
      answers: [{ label: `${name} ${counted(jobs)}`, kind: name, act: () => void run(jobs, act, done) }],
    });
  }

  const editButtons = (jobs) => [priorityButton(jobs.filter((job) => !isOver(job))), labelButton(jobs)];

  function priorityButton(jobs) {
    const choice = element("select", {}, ...PRIORITIES.map((each) => element("option", { value: each, selected: each === "normal" ? "" : null }, each)));
    const ask = () => question({
      title: `priority of ${counted(jobs)}`,
      content: [element("label", {}, "priority", choice), names(jobs)],
      answers: [{ label: `change ${counted(jobs)}`, act() {
        const priority = choice.value;
        run(jobs, (job) => api.edit(job, { priority }), `of priority ${priority}`);
      } }],
    });
    return jobs.length ? element("button", { type: "button", key: "priority", onclick: ask }, "priority …") : null;
  }

  function labelButton(jobs) {
    const input = element("input", { required: "", pattern: "[^=]+=.*", placeholder: "team=vision", autocomplete: "off" });
    const labels = () => {
      const [, name, value] = /^([^=]+)=(.*)$/.exec(input.value.trim());
      return { labels: { [name]: value || null } };
    };
    const ask = () => question({
      title: `label ${counted(jobs)}`,
      content: [element("label", {}, "name=value; without a value the label is removed", input), names(jobs)],
      answers: [{ label: `label ${counted(jobs)}`, act() {
        const patchOfAll = labels();
        run(jobs, (job) => api.edit(job, patchOfAll), "labelled");
      } }],
    });
    return jobs.length ? element("button", { type: "button", key: "label", onclick: ask }, "label …") : null;
  }

  async function run(jobs, act, done) {
    const lines = jobs.map((job) => ({ job, text: "…", kind: "" }));
    const left = [...lines];
    const show = () => patch(results,
      element("div", { class: "panel-head" }, element("h2", {}, "Results"),
        element("button", { type: "button", onclick: () => (results.hidden = true) }, "close")),
      element("ul", {}, ...lines.map(({ job, text, kind }) => element("li", { class: kind, key: job.id }, `${job.name}: ${text}`))));
    async function work() {
      for (let line = left.shift(); line; line = left.shift()) {
        try {
          await act(line.job);
          Object.assign(line, { text: done, kind: "done" });
        } catch (error) {
          Object.assign(line, { text: reason(error), kind: "refused" });
        }
        show();
      }
    }
    results.hidden = false;
    show();
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    ended();
  }

  return { bar, results, update };
}
