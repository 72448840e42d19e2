// The search under way of a trial. A snapshot has decided stages only, so its probes come as events.

import * as api from "../../api.js";
import { panel } from "../../charts/panel.js";
import { searchChart } from "../../charts/search.js";
import { element, inTurn, patch, whenChanged } from "../../dom.js";

// Returns a function that resolves to the probes of each trial's last search, {stage, probes} by trial, as of the newest event.
export function searches(id) {
  const held = new Map();
  let after = 0;

  // A probe that is told again ends those from it on: an earlier attempt trained them, or an earlier search of the stage. A
  // decision tells of each probe again, in the same order.
  function hear({ trial_id: trial, stage, probe_id: name, ...probe }) {
    const known = held.get(trial)?.stage === stage ? held.get(trial).probes : [];
    const at = known.findIndex((each) => each.name === name);
    held.set(trial, { stage, probes: [...(at < 0 ? known : known.slice(0, at)), { name, ...probe }] });
  }

  return inTurn(async () => {
    for (let isMore = true; isMore;) {
      const { events, next_after: next } = await api.happened(id, ["probe"], after);
      isMore = next > after && events.length >= api.MAX_EVENTS; // a file answers with all that it holds each time
      after = next;
      events.filter(({ kind }) => kind === "probe").forEach(({ data }) => hear(data));
    }
    return held;
  });
}

// A card in the place of the decision that comes.
export function searchCard() {
  const head = element("h3", {});
  const chart = panel("Loss of the probes so far", "bare");
  const body = element("article", { class: "card", key: "search" }, head, chart.body);

  const draw = whenChanged(({ stage, probes }) => {
    patch(head, `Stage ${stage}: searching, ${probes.length} ${probes.length === 1 ? "probe" : "probes"} so far`);
    return chart.draw((theme) => searchChart(probes, theme), `search of stage ${stage}`);
  });

  return { body, draw };
}
