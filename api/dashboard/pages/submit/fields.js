// Form fields for a value described by a JSON Schema. An empty field is left out of the value, so its default holds.

import { element } from "../../dom.js";
import { bounds } from "./schema.js";

const SHOWN = 5; // of an object's fields; the others are behind "more"

let count = 0;

// `read` is the function with which a `reader` explains schemas.
export function fieldsFor(read) {
  // get() returns the value, undefined if not set; set(value) replaces it.
  function field(name, given, pointer, get, set, isRequired) {
    const what = read.explained(given);
    const make = { union, object: group, list, options: choice, switch: choice, pairs: line, text: line }[what.form];
    return make({ name, what, pointer, get, set, isRequired });
  }

  // A field with its name, its description, and a place for its problems.
  function labelled({ name, what, pointer, isRequired }, input) {
    const id = `field-${count += 1}`;
    input.id = id;
    input.setAttribute("aria-describedby", `${id}-hint ${id}-problem`);
    const hint = [what.schema.description, bounds(what)].filter(Boolean).join("; ");
    return element("div", { class: "field", "data-pointer": pointer },
      element("label", { for: id }, name, isRequired ? element("span", { class: "quiet" }, " required") : null), input,
      element("p", { class: "hint", id: `${id}-hint` }, hint), element("p", { class: "refused problem", id: `${id}-problem` }));
  }

  function choice(field) {
    const { what, get, set, isRequired } = field;
    const values = what.form === "switch" ? [true, false] : what.schema.enum;
    const none = isRequired ? [] : [element("option", { value: "" }, usual(what))];
    const select = element("select", { onchange: ({ currentTarget: { value } }) => set(value === "" ? undefined : JSON.parse(value)) }, ...none,
      ...values.map((value) => element("option", { value: JSON.stringify(value), selected: get() === value ? "" : null }, String(value))));
    return labelled(field, select);
  }

  function line(field) {
    const { what, get, set } = field;
    const input = element("input", { autocomplete: "off", spellcheck: "false", value: get() === undefined ? null : written(get(), what),
      placeholder: usual(what, ""), oninput: ({ currentTarget: { value } }) => set(value.trim() === "" ? undefined : valueOf(value.trim(), what)) });
    return labelled(field, input);
  }

  function group({ name, what, pointer, get, set, isRequired }) {
    const child = (key) => [() => get()?.[key], (value) => {
      const next = changed(get(), key, value);
      set(!isRequired && !Object.keys(next).length ? undefined : next);
    }];
    return fieldset(name, what.schema.description, pointer, ...members(what.schema, pointer, child, get(), { isThere: isRequired || get() !== undefined }));
  }

  // The fields of an object: required, set and common ones first, the others behind "more".
  function members(schema, pointer, child, value, { tag, isThere = true } = {}) {
    const names = Object.keys(schema.properties).filter((name) => name !== tag);
    const isNeeded = (name) => schema.required?.includes(name) || value?.[name] !== undefined;
    const first = names.length <= SHOWN + 1 ? names : names.filter((name, at) => at < SHOWN || isNeeded(name));
    const rest = names.filter((name) => !first.includes(name));
    const made = (name) => field(name, schema.properties[name], `${pointer}/${name}`, ...child(name), (isThere && schema.required?.includes(name)) ?? false);
    return [...first.map(made), rest.length ? element("details", { class: "more" }, element("summary", {}, `${rest.length} more`), ...rest.map(made)) : null];
  }

  function union(field) {
    const { name, what: { schema, options, tag, isOptional }, pointer, get, set, isRequired } = field;
    const kinds = options.map((each) => each.properties[tag].const);
    const body = element("div", {});
    const usualKind = schema.default?.[tag];
    const chosen = () => get()?.[tag] ?? usualKind;
    const child = (key) => [() => get()?.[key], (value) => set(changed(get() ?? { [tag]: chosen() }, key, value))];
    function draw() {
      const member = options.find((each) => each.properties[tag].const === chosen());
      const text = member && firstSentence(member.description);
      body.replaceChildren(...(member ? [text ? element("p", { class: "hint" }, text) : "", ...members(member, pointer, child, get(), { tag }).filter(Boolean)] : []));
    }
    const none = usualKind === undefined ? [element("option", { value: "" }, isOptional || !isRequired ? "as the job has it" : "choose …")] : [];
    const select = element("select", { onchange: ({ currentTarget: { value } }) => {
      set(value === "" || (value === usualKind && !isRequired) ? undefined : { [tag]: value });
      draw();
    } }, ...none, ...kinds.map((kind) => element("option", { value: kind, selected: kind === chosen() ? "" : null }, kind === usualKind ? `${kind} (default)` : kind)));
    draw();
    return fieldset(name, schema.description, pointer, labelled({ name: tag, what: { schema: {}, options: [] }, pointer: `${pointer}/${tag}`, isRequired }, select), body);
  }

  function list({ name, what, pointer, get, set }) {
    const items = element("div", {});
    const add = element("button", { type: "button", onclick: () => {
      set([...(get() ?? what.schema.default ?? []), {}]);
      draw();
    } }, `add to ${name}`);
    const item = read.explained(what.item).schema;
    function draw() {
      items.replaceChildren(...(get() ?? what.schema.default ?? []).map((value, at, all) => {
        const put = (next) => set((get() ?? all).map((each, place) => (place === at ? next : each)));
        const child = (key) => [() => (get() ?? all)[at]?.[key] ?? undefined, (one) => put(changed((get() ?? all)[at], key, one))];
        const remove = element("button", { type: "button", onclick: () => {
          set((get() ?? all).filter((_, place) => place !== at));
          draw();
        } }, "remove");
        return fieldset(`${name} ${at + 1}`, null, `${pointer}/${at}`, ...members(item, `${pointer}/${at}`, child, value), remove);
      }));
    }
    draw();
    return fieldset(name, what.schema.description, pointer, items, add);
  }

  return field;
}

// The field of a pointer, or the nearest one that contains it.
export function placeOf(root, pointer) {
  for (let at = pointer; at; at = at.slice(0, at.lastIndexOf("/"))) {
    const found = root.querySelector(`[data-pointer="${CSS.escape(at)}"]`);
    if (found) return found;
  }
  return null;
}

// Shows each problem at its field below `root`; returns those without a field.
export function showProblems(root, problems) {
  for (const each of root.querySelectorAll(".problem:not(:empty)")) each.textContent = "";
  for (const each of root.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
  return problems.filter(({ pointer, message }) => {
    const place = placeOf(root, pointer);
    if (!place) return true;
    const told = place.querySelector(".problem");
    told.textContent = [told.textContent, message].filter(Boolean).join("; ");
    if (place.classList.contains("field")) place.querySelector("input, select").setAttribute("aria-invalid", "true");
    for (let around = place; around; around = around.parentElement.closest("details")) if (around.matches("details")) around.open = true;
    return false;
  });
}

function fieldset(name, description, pointer, ...content) {
  return element("fieldset", { class: "group", "data-pointer": pointer }, element("legend", {}, name),
    description ? element("p", { class: "hint" }, description) : null, element("p", { class: "refused problem" }), ...content);
}

function changed(value, key, given) {
  const { [key]: _, ...rest } = value ?? {};
  return given === undefined ? rest : { ...value, [key]: given };
}

const firstSentence = (text = "") => text.split(/\n\n|(?<=\.)\s/)[0].replaceAll("\n", " ");

function usual({ schema, isOptional }, none = "default") {
  if (schema.default === undefined) return isOptional ? "default: none" : none;
  return `default: ${written(schema.default, { schema, form: "text" })}`;
}

function written(value, { schema, form }) {
  if (form === "pairs") return Object.entries(value).map((each) => each.join("=")).join(", ");
  if (typeof value === "string") return value;
  return schema.type === "array" && Array.isArray(value) ? value.map((each) => (typeof each === "string" ? each : JSON.stringify(each))).join(", ") : JSON.stringify(value);
}

// Typed text as a value. Invalid text stays text, and the service reports the problem.
function valueOf(text, { schema, form }) {
  // A comma separates pairs only before the next name, since a text may contain commas.
  if (form === "pairs") return Object.fromEntries(text.replace(/[\s,]+$/, "").split(/,\s*(?=[A-Za-z0-9][\w.-]*=)/).filter(Boolean).map((each) => [each.split("=")[0].trim(), each.split("=").slice(1).join("=").trim()]));
  if (schema.type === "string") return text;
  try {
    return JSON.parse(schema.type === "array" && !text.startsWith("[[") ? `[${text.replace(/^\[(.*)\]$/s, "$1")}]` : text);
  } catch {
    return schema.type === "array" ? text.split(/,\s*/) : text;
  }
}
