// The API's reference, drawn from /openapi.json alone: an index, each call, each model.

import { element, table } from "./dom.js";
import { bounds, reader } from "./pages/submit/schema.js";

const METHODS = ["get", "post", "put", "patch", "delete"];

const described = await (await fetch("/openapi.json")).json();
const models = described.components.schemas;
const { explained } = reader(described);

const code = (text) => element("code", {}, text);
const joined = (parts, between) => element("span", {}, ...parts.flatMap((part, at) => (at ? [between, part] : [part])));
const nameOf = ($ref) => $ref.split("/").at(-1);
const toModel = ($ref) => element("a", { href: `#model-${nameOf($ref)}` }, nameOf($ref));

// A type in words, with a link to each model.
function typed({ $ref, oneOf, anyOf = oneOf, const: only, enum: words, prefixItems, items, additionalProperties: others, type = "any", format } = {}) {
  if ($ref) return toModel($ref);
  if (anyOf) return joined(anyOf.map(typed), " or ");
  if (only !== undefined) return code(JSON.stringify(only));
  if (words) return joined(words.map((word) => code(JSON.stringify(word))), " or ");
  if (prefixItems) return element("span", {}, "[", joined(prefixItems.map(typed), ", "), "]");
  if (type === "array") return element("span", {}, "list of ", typed(items));
  if (others instanceof Object) return element("span", {}, "names, each with ", typed(others));
  return element("span", {}, format ? `${type}, ${format}` : type);
}

// "1 to 100 characters"; "" if any size is allowed.
function sized(low, high, what) {
  if (high === undefined) return low ? `at least ${low} ${what}` : "";
  return low ? `${low} to ${high} ${what}` : `at most ${high} ${what}`;
}

// The constraints of a value besides its type.
function allowed(given) {
  const { schema, options } = explained(given);
  const { pattern, items, minLength, maxLength, minItems, maxItems } = options[0] ?? schema;
  const each = items ? allowed(items) : "";
  return [
    bounds({ schema, options }),
    sized(minLength, maxLength, "characters"),
    sized(minItems, maxItems, "entries"),
    pattern && `as ${pattern}`,
    each && `each ${each}`,
  ].filter(Boolean).join(", ");
}

const usual = ({ isRequired, schema }) =>
  (isRequired ? "required" : schema.default === undefined ? "" : code(JSON.stringify(schema.default)));

// Values by name: parameters with their location, or the fields of a model.
const values = (caption, rows, more = []) => table(caption, [
  ["name", ({ name }) => code(name), ""],
  ...more,
  ["type", ({ schema }) => typed(schema), "name"],
  ["default", usual, "name"],
  ["allowed", ({ schema }) => allowed(schema), "text"],
  ["what", ({ what, schema }) => what ?? schema.description ?? "", "text"],
], rows);

function contents(name) {
  const { properties, required = [], description = "", ...schema } = models[name];
  const rows = Object.entries(properties ?? {}).map(([field, given]) => ({ name: field, schema: given, isRequired: required.includes(field) }));
  return [element("p", {}, description), rows.length ? values(`Fields of ${name}`, rows) : element("p", {}, typed(schema))];
}

// Drawn only when opened: the models have two thousand fields.
function model(name) {
  const body = element("details", { id: `model-${name}` }, element("summary", {}, code(name)));
  body.addEventListener("toggle", () => body.open && body.children.length === 1 && body.append(...contents(name)));
  return body;
}

function asked({ content }) {
  const [{ schema, example }] = Object.values(content);
  return element("div", {},
    element("p", {}, "Body: ", typed(schema), `, as ${Object.keys(content).join(" or ")}`),
    ...(schema.$ref ? contents(nameOf(schema.$ref)) : []),
    example === undefined ? null : element("pre", { tabindex: "0" }, JSON.stringify(example, null, 2)));
}

function operation({ call, given }) {
  const parameters = (given.parameters ?? []).filter((each) => each.in !== "header" || each.name !== "authorization")
    .map((each) => ({ ...each, what: each.description, isRequired: each.required }));
  return element("section", { class: "panel wide", id: given.operationId },
    element("h2", {}, code(call)),
    element("p", {}, given.description ?? given.summary ?? ""),
    parameters.length ? values("Parameters", parameters, [["in", (each) => each.in, ""]]) : null,
    given.requestBody ? asked(given.requestBody) : null,
    table("Answers", [
      ["status", ([status]) => status, ""],
      ["what", ([, answer]) => answer.description, "text"],
      ["body", ([, { content = {} }]) => (Object.keys(content).length ? typed(Object.values(content)[0].schema) : ""), ""],
    ], Object.entries(given.responses ?? {})));
}

// A link to a model opens it.
function show() {
  const target = document.getElementById(location.hash.slice(1));
  if (target?.nodeName === "DETAILS") target.open = true;
  target?.scrollIntoView();
}

const operations = Object.entries(described.paths).flatMap(([path, methods]) =>
  METHODS.filter((method) => methods[method]).map((method) => ({ call: `${method.toUpperCase()} ${path}`, given: methods[method] })));
document.getElementById("page").replaceChildren(
  element("h1", {}, `${described.info.title} ${described.info.version}: API`),
  element("p", {}, "Send ", code("Authorization: Bearer wt_…"), ". The whole description is in ",
    element("a", { href: "/openapi.json" }, "/openapi.json"), ". What is read and answered is made of ",
    element("a", { href: "#models" }, "models"), "."),
  element("section", { class: "panel spaced" }, table("Calls", [
    ["call", ({ call, given }) => element("a", { href: `#${given.operationId}` }, call), ""],
    ["what", ({ given }) => (given.description ?? given.summary ?? "").split(/(?<=\.)\s/)[0], "text"],
  ], operations)),
  element("div", { class: "panels" }, ...operations.map(operation)),
  element("section", { class: "panel spaced", id: "models" }, element("h2", {}, "Models"), ...Object.keys(models).sort().map(model)));
addEventListener("hashchange", show);
show();
window.__ready = true;
