// All trials' stages as a table. It is long, so it is drawn only when visible, newest rows first.

import { element, patch, whenChanged } from "../../dom.js";
import { whenSeen } from "./sight.js";
import { stageTable } from "./tables.js";

const AT_ONCE = 100; // rows, until the reader asks for more

export function stageList() {
  const heading = element("h2", {}, "Stages");
  const more = element("button", { type: "button", hidden: "", onclick: () => (limit = Infinity, look()) });
  const body = element("section", { class: "panel wide", id: "stages" }, heading);
  let given = null;
  let limit = AT_ONCE;
  const write = whenChanged((stages, job, most) => {
    const newest = newestOf(stages, most);
    more.hidden = newest.length === stages.length;
    more.textContent = `show the ${stages.length - newest.length} earlier stages`;
    patch(body, heading, more, stageTable(newest, job));
  });
  const look = whenSeen(body, () => given && write(...given, limit));

  function update(stages, job) {
    given = [stages, job];
    look();
  }

  return { body, update };
}

// The newest stages of each trial: as many as fit into `most` rows, and at least one.
function newestOf(stages, most) {
  if (stages.length <= most) return stages;
  const trials = [...new Set(stages.map((stage) => stage.trial_id))];
  const each = Math.max(1, Math.floor(most / trials.length));
  return trials.flatMap((trial) => stages.filter((stage) => stage.trial_id === trial).slice(-each));
}
