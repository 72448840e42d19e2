// When each trial searched, trained and was disturbed, from the trials and the service's events about the job.

import * as api from "../../api.js";
import { panel } from "../../charts/panel.js";
import { timelineChart } from "../../charts/timeline.js";
import { element, inTurn, patch, unanswered, whenChanged } from "../../dom.js";
import { moment } from "../../units.js";
import { whenSeen } from "./sight.js";

const KINDS = ["job", "repair"];

export function timeline(id) {
  const refused = element("div", { role: "alert" });
  const lost = element("div", {});
  const chart = panel("Timeline", "wide", { tools: element("div", {}, refused, lost) });
  let known = { trials: [], stages: [] };
  let told = { of: "", after: 0, events: [], gap: false };
  const look = whenSeen(chart.body, () => show().then(() => patch(refused), (error) => patch(refused, ...unanswered(error, look))));
  const draw = whenChanged((trials, stages, events) => chart.draw(() => timelineChart(trials, stages, events)));

  function update(trials, stages, job) {
    known = { trials, stages, of: [job.version, ...trials.map((trial) => `${trial.bill.repairs} ${Object.values(trial.bill.absences)}`)].join() };
    look();
  }

  // Each request asks for the events after the previous ones, page by page. The known ones are drawn at once.
  const show = inTurn(async () => {
    const { of } = known;
    await draw(known.trials, known.stages, told.events);
    while (told.of !== of) {
      const { events, next_after: after, gap } = await api.happened(id, KINDS, told.after);
      const fresh = after > told.after ? events : []; // a file answers with all that it holds each time
      told = { of: fresh.length < api.MAX_EVENTS ? of : told.of, after, events: fresh.length ? [...told.events, ...fresh] : told.events, gap: told.gap || gap };
    }
    patch(lost, lostText(told));
    await draw(known.trials, known.stages, told.events);
  });

  return { body: chart.body, update };
}

// Earlier releases also deleted old events of these kinds. The first one of a job is its submission.
function lostText({ gap, events: [first] }) {
  if (!gap || first?.data.version === 1) return null;
  return element("p", { class: "fact" }, `Pauses, attempts and repairs${first ? ` before ${moment(first.at)}` : ""} are gone.`);
}
