// The filter and order of the list: the fields above it, and the address that holds the same.

import { element, patch } from "../../dom.js";

const STATES = ["queued", "starting", "running", "pausing", "paused", "stopping", "cancelling", "succeeded", "failed", "cancelled"];
const SINGLE = ["text", "owner", "project", "archived", "order_by", "limit", "cursor"];
const SEVERAL = ["state", "label"];
const SIZES = ["50", "100", "200"];
const USUAL = { order_by: "-created", limit: "50", archived: "false" };

// The parts of an address that filter or order the list, by their names in the API.
export function filterOf(asked) {
  const single = SINGLE.map((name) => [name, asked.get(name) || null]);
  const several = SEVERAL.map((name) => [name, asked.getAll(name).filter(Boolean)]);
  const found = Object.fromEntries([...single, ...several].filter(([, value]) => value?.length));
  return { ...USUAL, ...found };
}

export function addressOf(filter) {
  const pairs = Object.entries(filter).filter(([name, value]) => value && value !== USUAL[name]);
  const query = new URLSearchParams(pairs.flatMap(([name, value]) => [value].flat().map((each) => [name, each])));
  return query.size ? `?${query}` : "";
}

export const isNarrowed = ({ order_by, limit, archived, cursor, ...narrowing }) =>
  archived !== "false" || Object.values(narrowing).some((value) => value?.length);

// Whether the text may be a job's id, or its end as the list shows it. A few first characters do not count: ids begin with
// their time, so nearly all share them.
export const isLikeAnId = (text) => /^(?:job-)?[0-9a-f]{8,}$/.test(text ?? "");

// Typed labels, separated by spaces or commas. Values may contain both: what follows is a new label only if it has a name.
export const labelsOf = (text) => text.replace(/^[\s,]+|[\s,]+$/g, "").split(/[\s,]+(?=[A-Za-z0-9][\w.-]*=)/).filter(Boolean);

// `changed` is called with the current filter, and whether the reader is still typing.
export function filterFields(filter, changed) {
  const body = element("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() });
  const set = (name, value, isWriting = false) => changed({ ...current, [name]: value === "" ? null : value, cursor: null }, isWriting);
  const text = (name, label, properties = {}) => {
    const input = element("input", { id: `filter-${name}`, value: current[name] ?? null, autocomplete: "off", ...properties,
      oninput: ({ currentTarget }) => set(name, currentTarget.value.trim(), true) });
    return element("div", { key: name }, element("label", { for: `filter-${name}` }, label), input);
  };
  const choice = (name, label, options) => element("div", { key: name }, element("label", { for: `filter-${name}` }, label),
    element("select", { id: `filter-${name}`, onchange: ({ currentTarget }) => set(name, currentTarget.value) },
      ...options.map(([value, shown]) => element("option", { value, selected: value === current[name] ? "" : null }, shown))));
  let current = filter;

  function states() {
    const chosen = current.state ?? [];
    const box = (state) => element("label", { key: state }, element("input", { type: "checkbox", value: state,
      checked: chosen.includes(state) ? "" : null, onchange: toggle }), state);
    const toggle = ({ currentTarget: { value, checked } }) =>
      set("state", STATES.filter((each) => (each === value ? checked : (current.state ?? []).includes(each))));
    return element("details", { class: "states", key: "states" }, element("summary", {}, chosen.length ? `state: ${chosen.join(", ")}` : "any state"),
      element("div", { class: "choices", role: "group", "aria-label": "State" }, ...STATES.map(box)));
  }

  // Fields are not changed while the reader types; the summary is.
  function update(given) {
    current = given;
    patch(body.querySelector("summary"), current.state?.length ? `state: ${current.state.join(", ")}` : "any state");
  }

  const label = element("div", { key: "label" }, element("label", { for: "filter-label" }, "Labels"),
    element("input", { id: "filter-label", value: (filter.label ?? []).join(" "), placeholder: "team=vision", autocomplete: "off",
      onchange: ({ currentTarget }) => set("label", labelsOf(currentTarget.value)) }));
  body.append(
    text("text", "Search", { type: "search", placeholder: "name, notes, label, method, id" }), states(), text("owner", "Owner"),
    text("project", "Project"), label,
    choice("archived", "Archived", [["false", "left out"], ["true", "alone"], ["any", "with the others"]]),
    choice("limit", "On a page", SIZES.map((each) => [each, each])));
  return { body, update };
}
