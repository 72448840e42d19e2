// When each trial searched, trained and was disturbed, and the job's history: from the trials and the service's events
// about the job.

import * as api from "../../api.js";
import { panel } from "../../charts/panel.js";
import { timelineChart } from "../../charts/timeline.js";
import { badge, element, inTurn, patch, table, unanswered, whenChanged } from "../../dom.js";
import { since } from "../../times.js";
import { moment } from "../../units.js";
import { whenSeen } from "./sight.js";

const KINDS = ["job", "repair"];

export function timeline(id) {
  const refused = element("div", { role: "alert" });
  const lost = element("div", {});
  const chart = panel("Timeline", "wide", { tools: element("div", {}, refused, lost) });
  let known = { trials: [], stages: [] };
  let told = { of: "", after: 0, events: [], gap: false };
  const past = element("section", { class: "panel wide", id: "history" }, TITLE());
  const look = whenSeen(chart.body, () => show().then(() => patch(refused), (error) => patch(refused, ...unanswered(error, look))));
  const lookBack = whenSeen(past, () => showPast().catch((error) => patch(past, TITLE(), ...unanswered(error, lookBack))));
  const draw = whenChanged((trials, stages, events) => chart.draw(() => timelineChart(trials, stages, events)));

  function update(trials, stages, job) {
    known = { trials, stages, of: [job.version, ...trials.map((trial) => `${trial.bill.repairs} ${Object.values(trial.bill.absences)}`)].join() };
    look();
    lookBack();
  }

  // Each request asks for the events after the previous ones, page by page.
  const hear = inTurn(async () => {
    const { of } = known;
    while (told.of !== of) {
      const { events, next_after: after, gap } = await api.happened(id, KINDS, told.after);
      const fresh = after > told.after ? events : []; // a file answers with all that it holds each time
      told = { of: fresh.length < api.MAX_EVENTS ? of : told.of, after, events: fresh.length ? [...told.events, ...fresh] : told.events, gap: told.gap || gap };
    }
  });

  // The known events are drawn at once.
  const show = inTurn(async () => {
    await draw(known.trials, known.stages, told.events);
    await hear();
    patch(lost, lostText(told));
    await draw(known.trials, known.stages, told.events);
  });

  const showPast = inTurn(async () => {
    await hear();
    patch(past, TITLE(), historyTable(told.events));
  });

  return { body: chart.body, history: past, update };
}

const TITLE = () => element("h2", {}, "History");

// Events that change neither the state nor its reason tell of edits and steers.
export function historyTable(told) {
  const jobs = told.filter(({ kind }) => kind === "job");
  const changes = jobs.filter(({ data }, at) => data.state !== jobs[at - 1]?.data.state || data.reason !== jobs[at - 1].data.reason);
  return table("States of the job, the newest first", [
    ["when", ({ at }) => since(at), ""],
    ["state", ({ data }) => badge(data.state), ""],
    ["attempt", ({ data }) => (data.attempt ? String(data.attempt) : "–"), "number"],
    ["why", ({ data }) => data.reason || "–", "text"],
  ], changes.toReversed(), { key: ({ id }) => id, isStacked: true });
}

// Earlier releases also deleted old events of these kinds. The first one of a job is its submission.
function lostText({ gap, events: [first] }) {
  if (!gap || first?.data.version === 1) return null;
  return element("p", { class: "fact" }, `Pauses, attempts and repairs${first ? ` before ${moment(first.at)}` : ""} are gone.`);
}
