// The audit log: who did what and when, and what their role did not allow. The address holds its filter.

import { go } from "../address.js";
import * as api from "../api.js";
import { element, empty, patch, table } from "../dom.js";
import { moment } from "../units.js";

const FIELDS = { name: "Who", action: "What", target: "Job or key" };
const ON_A_PAGE = "100";
const WRITING_MS = 300;

export function auditPage(root, _, asked, ask) {
  const content = element("div", { class: "panel" }, empty("loading …"));
  const pages = element("nav", { class: "tools", "aria-label": "More entries" });
  const names = [...Object.keys(FIELDS), "outcome", "cursor"];
  let filter = Object.fromEntries(names.map((name) => [name, asked.get(name) || null]));
  let writing = 0;
  root.replaceChildren(element("h1", {}, "Audit log"), fields(), content, pages);
  document.title = "Audit log – Wiretune";

  const addressOf = (given) => `?${new URLSearchParams(Object.entries({ audit: "all", ...given }).filter(([, value]) => value))}`;

  function narrow(name, value, isWriting) {
    filter = { ...filter, [name]: value || null, cursor: null };
    go(addressOf(filter), { replaces: isWriting });
    clearTimeout(writing);
    writing = setTimeout(() => refresh().catch(ask), isWriting ? WRITING_MS : 0);
  }

  function fields() {
    const inputs = Object.entries(FIELDS).map(([name, label]) => element("div", {},
      element("label", { for: `audit-${name}` }, label),
      element("input", { id: `audit-${name}`, value: filter[name], autocomplete: "off", list: name === "action" ? "actions" : null,
        oninput: ({ currentTarget }) => narrow(name, currentTarget.value.trim(), true) })));
    const outcome = element("select", { id: "audit-outcome", onchange: ({ currentTarget }) => narrow("outcome", currentTarget.value) },
      ...[["", "any"], ["done", "done"], ["refused", "refused"]].map(([value, label]) =>
        element("option", { value, selected: value === (filter.outcome ?? "") ? "" : null }, label)));
    return element("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, ...inputs,
      element("div", {}, element("label", { for: "audit-outcome" }, "Outcome"), outcome), element("datalist", { id: "actions" }));
  }

  async function refresh() {
    const of = filter;
    try {
      const found = await api.audit({ ...of, limit: ON_A_PAGE });
      if (of === filter) draw(found);
    } catch (error) {
      if (of !== filter) return; // something else was asked for meanwhile
      if (![403, 422].includes(error.status)) throw error;
      patch(pages);
      patch(content, empty(error.status === 403 ? `The audit log is for admins: ${error.message}.` : error.message));
    }
  }

  function draw({ entries, next_cursor: next }) {
    const link = (label, cursor) => element("a", { key: label, href: addressOf({ ...filter, cursor }) }, label);
    patch(pages, filter.cursor ? link("newest", null) : null, next ? link("older", next) : null);
    patch(root.querySelector("datalist"), ...[...new Set(entries.map((each) => each.action))].sort().map((value) => element("option", { value })));
    patch(content, entries.length ? entryTable(entries)
      : empty("No entry matches. ", element("a", { href: "/?audit=all" }, "Show all entries")));
  }

  return { refresh, shows: () => false };
}

function entryTable(entries) {
  const target = ({ target: id }) => (id.startsWith("job-") ? element("a", { href: `/?job=${encodeURIComponent(id)}` }, element("code", {}, id))
    : element("code", {}, id));
  return table("Newest first", [
    ["when", ({ at }) => element("span", { class: "moment" }, moment(at)), "name"],
    ["who", ({ name }) => name, ""],
    ["what", ({ action }) => action, ""],
    ["to", target, ""],
    ["outcome", ({ outcome }) => element("span", { class: outcome === "done" ? "" : "refused" }, outcome), ""],
    ["key", ({ key }) => (key ? element("code", {}, key) : "–"), ""],
    ["from", ({ address }) => address || "this machine", ""],
  ], entries, { key: ({ id }) => id, isStacked: true });
}
