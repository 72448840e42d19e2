// The list of jobs.

import * as api from "./api.js";
import { age, badge, element, empty, loss, table } from "./dom.js";

const COLUMNS = [
  ["state", (job) => badge(job.state), ""],
  ["name", (job) => element("a", { href: `/?job=${encodeURIComponent(job.id)}` }, job.name), ""],
  ["arms", (job) => job.arms.join(", "), ""],
  ["best loss", (job) => loss(job.best_validation_loss), "number"],
  ["created", (job) => age(job.created_at), ""],
  ["id", (job) => element("code", {}, job.id), ""],
];

export function listPage(root) {
  const tools = element("div", { class: "tools" });
  const content = element("div", { class: "panel" }, empty("loading …"));
  root.replaceChildren(element("h1", {}, "Jobs"), element("p", { class: "quiet" }, "Newest first."), tools, content);
  let cursors = [null];
  let shown = "";

  const go = (next) => () => {
    cursors = next;
    refresh();
  };

  function turn(next) {
    const buttons = [];
    if (cursors.length > 1) buttons.push(element("button", { type: "button", onclick: go(cursors.slice(0, -1)) }, "newer"));
    if (next) buttons.push(element("button", { type: "button", onclick: go([...cursors, next]) }, "older"));
    tools.replaceChildren(...buttons);
  }

  async function refresh() {
    const page = await api.jobs(cursors.at(-1));
    const state = JSON.stringify([page, Math.floor(Date.now() / 60000)]);
    if (state === shown) return;
    shown = state;
    turn(page.next_cursor);
    content.replaceChildren(page.jobs.length
      ? table(`${page.jobs.length} jobs`, COLUMNS, page.jobs)
      : empty("No jobs yet. Submit one: ", element("code", {}, "wiretune submit JOB.yaml")));
  }

  return { refresh, everyMs: () => 2000 };
}
