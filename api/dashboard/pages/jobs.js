// The list of jobs.

import * as api from "../api.js";
import { badge, element, empty, patch, since, table } from "../dom.js";
import { loss } from "../units.js";

const ON_A_PAGE = 50;
const COLUMNS = [
  ["state", (job) => badge(job.state), ""],
  ["name", (job) => element("a", { href: `/?job=${encodeURIComponent(job.id)}` }, job.name), "name"],
  ["arms", (job) => job.arms.join(", "), "name"],
  ["best loss", (job) => loss(job.best_validation_loss), "number"],
  ["created", (job) => since(job.created_at), ""],
  ["id", (job) => element("code", {}, job.id), ""],
];

export function jobsPage(root) {
  const tools = element("div", { class: "tools" });
  const content = element("div", { class: "panel" }, empty("loading …"));
  root.replaceChildren(element("h1", {}, "Jobs"), element("p", { class: "quiet" }, "Newest first."), tools, content);
  document.title = "Jobs – Wiretune";
  let cursors = [null];

  const button = (label, next) => element("button", { type: "button", key: label, onclick: () => {
    cursors = next;
    refresh().catch(() => {}); // the next look tells what was wrong
  } }, label);

  async function refresh() {
    const asked = cursors;
    const { jobs, total, next_cursor: next } = await api.jobs(asked.at(-1), ON_A_PAGE);
    if (asked !== cursors) return; // another page was chosen meanwhile
    patch(tools, cursors.length > 1 ? button("newer", cursors.slice(0, -1)) : null,
      next ? button("older", [...cursors, next]) : null);
    patch(content, jobs.length ? table(counted(jobs.length, total), COLUMNS, jobs, { key: (job) => job.id })
      : empty("No jobs yet. Submit one: ", element("code", {}, "wiretune submit JOB.yaml")));
  }

  function counted(number, total) {
    const before = ON_A_PAGE * (cursors.length - 1);
    if (number === total) return `${total} ${total === 1 ? "job" : "jobs"}`;
    return `Jobs ${before + 1} to ${before + number} of ${total}`;
  }

  return { refresh, shows: () => true };
}
