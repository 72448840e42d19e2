// The list of jobs. The address holds its filter and order. A row is drawn again only when its job has changed.

import { go } from "../../address.js";
import * as api from "../../api.js";
import { element, empty, patch } from "../../dom.js";
import { bulk } from "./bulk.js";
import { addressOf, filterFields, filterOf, isLikeAnId, isNarrowed } from "./filters.js";
import { cells, COLUMNS } from "./row.js";

const WRITING_MS = 300;
const MOST_BY_ID = 100; // more than these are asked for as the whole page

export function jobsPage(root, _, asked, ask) {
  let filter = filterOf(asked);
  let me = null;
  let isStale = true; // which jobs there are may have changed
  let changed = new Set(); // ids of listed jobs of which only the row may have
  let told = ""; // of the last whole answer
  const rows = new Map(); // id => { job, text, row }, in their order
  const chosen = new Set();

  const content = element("div", { class: "panel" }, empty("loading …"));
  const pages = element("nav", { class: "tools", "aria-label": "More jobs" });
  const fields = filterFields(filter, narrow);
  const several = bulk(() => [...rows.values()].filter(({ job }) => chosen.has(job.id)).map(({ job }) => job), reload, clear);
  const body = element("tbody", { role: "rowgroup" }); // roles: as cards, on a narrow screen, they are no table to a browser
  const title = element("div", { class: "title" }, element("h1", {}, "Jobs"));
  root.replaceChildren(title, fields.body, several.bar, several.results, content, pages);
  document.title = "Jobs – Wiretune";

  let writing = 0;
  function narrow(given, isWriting) {
    show(given, { replaces: isWriting });
    clearTimeout(writing);
    if (isWriting) writing = setTimeout(reload, WRITING_MS);
    else reload();
  }

  function show(given, how) {
    filter = given;
    go(addressOf(filter), how);
    fields.update(filter);
  }

  function reload() {
    isStale = true;
    refresh().catch(ask);
  }

  async function refresh() {
    const [of, ids] = [filter, [...changed]];
    const isWhole = isStale || !ids.length || ids.length > MOST_BY_ID;
    isStale = false;
    changed = new Set();
    try {
      if (isWhole) await look(of);
      else await renew(await api.jobs({ ...of, text: null, cursor: null, id: ids, limit: ids.length, progress: true }), ids, of);
    } catch (error) {
      isStale = true;
      if (of !== filter) return; // something else was asked for meanwhile
      if (error.status !== 422) throw error;
      told = "";
      patch(pages);
      patch(content, empty(error.message)); // a filter that the service does not take
    }
  }

  async function look(of) {
    const [caller, found] = await Promise.all([api.me(), search(of)]);
    if (of !== filter) return; // something else was asked for meanwhile
    me = caller;
    const before = new Map(rows);
    rows.clear();
    for (const job of found.jobs) rows.set(job.id, rowOf(job, before.get(job.id)));
    for (const id of [...chosen]) if (!rows.has(id)) chosen.delete(id);
    patch(title, element("h1", {}, "Jobs"), me.may.includes("create a job") ? element("a", { class: "action", href: "/?submit=new" }, "New job") : null);
    draw(found);
  }

  // The API has no "or": jobs whose id matches come first, then those that contain the words.
  async function search(of) {
    const asked = { ...of, progress: true, count: true };
    const mayBeId = isLikeAnId(of.text) && !of.cursor;
    const [byText, byId] = await Promise.all([api.jobs(asked), mayBeId ? api.jobs({ ...asked, text: null, ref: of.text }) : { jobs: [] }]);
    const others = byText.jobs.filter((job) => !byId.jobs.some(({ id }) => id === job.id));
    return { ...byText, jobs: [...byId.jobs, ...others], total: byText.total + byId.jobs.length + others.length - byText.jobs.length };
  }

  async function renew(found, ids, of) {
    if (found.jobs.length < ids.length) return look(of); // one of them was deleted
    for (const job of found.jobs) if (rows.has(job.id)) rows.set(job.id, rowOf(job, rows.get(job.id)));
    several.update(me);
  }

  // The earlier row, updated.
  function rowOf(job, before) {
    const text = JSON.stringify(job);
    if (before?.text === text) return before;
    const row = before?.row ?? element("tr", { key: job.id, role: "row" });
    const box = element("td", { key: "choose", class: "choose", role: "cell" }, element("input", { type: "checkbox", "aria-label": `choose ${job.name}`,
      onchange: ({ currentTarget }) => choose(job.id, currentTarget.checked) }));
    patch(row, box, ...cells(job));
    return { job, text, row };
  }

  function choose(id, isChosen) {
    if (isChosen) chosen.add(id);
    else chosen.delete(id);
    several.update(me);
  }

  function clear() {
    chosen.clear();
    for (const box of body.querySelectorAll(".choose input")) box.checked = false;
    several.update(me);
  }

  function draw({ total, next_cursor: next }) {
    several.update(me);
    const link = (label, cursor) => element("a", { key: label, href: addressOf({ ...filter, cursor }) || "/" }, label);
    patch(pages, filter.cursor ? link("first page", null) : null, next ? link("next page", next) : null);
    if (!rows.size) return void patch(content, nothing());
    patch(body, ...[...rows.values()].map(({ row }) => row));
    const caption = rows.size === total ? `${total} ${total === 1 ? "job" : "jobs"}` : `${rows.size} of ${total} jobs`;
    const shown = `${caption} ${filter.order_by}`;
    if (told === shown && body.isConnected) return;
    told = shown;
    patch(content, element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Jobs" },
      element("table", { class: "jobs stacked", role: "table" }, element("caption", {}, caption), element("thead", { role: "rowgroup" }, heads()), body)));
  }

  function heads() {
    const all = element("input", { type: "checkbox", "aria-label": "choose all", onchange: ({ currentTarget }) => {
      for (const box of body.querySelectorAll(".choose input")) if (box.checked !== currentTarget.checked) box.click();
    } });
    return element("tr", { role: "row" }, element("th", { scope: "col", role: "columnheader", key: "choose", class: "choose" }, all),
      ...COLUMNS.map(([heading, , kind, order]) => element("th", { scope: "col", role: "columnheader", key: heading, class: kind, "aria-sort": sortOf(order) },
        order ? element("button", { type: "button", class: "sort", onclick: () => sort(order) }, heading) : heading)));
  }

  const isDown = () => filter.order_by.startsWith("-");
  const sortOf = (order) => (filter.order_by.replace("-", "") !== order ? null : isDown() ? "descending" : "ascending");

  function sort(order) {
    const down = filter.order_by === order ? "-" : "";
    show({ ...filter, order_by: filter.order_by === `-${order}` ? order : (down || (order === "created" || order === "finished" ? "-" : "")) + order, cursor: null });
    reload();
  }

  function nothing() {
    if (isNarrowed(filter)) return empty("No job matches. ", element("a", { href: "/" }, "Show all jobs"));
    if (filter.cursor) return empty("There are no more jobs. ", element("a", { href: "/" }, "First page"));
    return me.may.includes("create a job")
      ? empty("No jobs yet. Submit one with ", element("a", { href: "/?submit=new" }, "New job"), ", or: ", element("code", {}, "wiretune submit JOB.yaml"))
      : empty("No jobs yet.");
  }

  // Whether a change of a listed job can change the list or its order.
  const isSettled = () => !filter.state?.length && !filter.text && !filter.label?.length && /created|name/.test(filter.order_by);

  function shows(id, hasMoved) {
    if (rows.has(id) && (!hasMoved || isSettled())) changed.add(id);
    else if (hasMoved) isStale = true;
    else return false; // progress of a job on another page
    return true;
  }

  // Places in the queue: when a job leaves, all behind it move up.
  function ages() {
    const waiting = [...rows.keys()].filter((id) => rows.get(id).job.state === "queued");
    for (const id of waiting) changed.add(id);
    return waiting.length > 0;
  }

  return { refresh, shows, ages, missed: () => { isStale = true; } };
}
