// When each trial searched, trained, and was disturbed, with what the service's events tell of the job.

import * as api from "../../api.js";
import { panel } from "../../charts/panel.js";
import { timelineChart } from "../../charts/timeline.js";
import { element, inTurn, patch, unanswered, whenChanged } from "../../dom.js";
import { whenSeen } from "./sight.js";

const KINDS = ["job", "repair"];

export function timeline(id) {
  const refused = element("div", { role: "alert" });
  const chart = panel("Timeline", "wide", { tools: refused });
  let known = { trials: [], stages: [] };
  let told = { of: "", after: 0, events: [] };
  const look = whenSeen(chart.body, () => show().then(() => patch(refused), (error) => patch(refused, ...unanswered(error, look))));
  const draw = whenChanged((trials, stages, events) => chart.draw(() => timelineChart(trials, stages, events)));

  async function update(trials, stages, job) {
    known = { trials, stages, of: [job.version, ...trials.map((trial) => `${trial.bill.repairs} ${Object.values(trial.bill.absences)}`)].join() };
    await draw(trials, stages, told.events);
    look();
  }

  // Each asks for what came after the one before, page by page.
  const show = inTurn(async () => {
    const { of } = known;
    while (told.of !== of) {
      const { events, next_after: after } = await api.happened(id, KINDS, told.after);
      const fresh = after > told.after ? events : []; // a file answers with all that it holds each time
      told = { of: fresh.length < api.MAX_EVENTS ? of : told.of, after, events: fresh.length ? [...told.events, ...fresh] : told.events };
    }
    await draw(known.trials, known.stages, told.events);
  });

  return { body: chart.body, update };
}
