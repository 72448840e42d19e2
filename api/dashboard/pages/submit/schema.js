// A job's JSON Schema from the service's OpenAPI document, prepared for a form. Values are plain JSON.

import { isSame } from "../../differences.js";

// Reads the schemas of `document` by name; returns a function that explains a schema.
export function reader(document) {
  const resolved = ({ $ref, ...beside }) =>
    ($ref ? { ...resolved(document.components.schemas[$ref.split("/").at(-1)]), ...beside } : beside);
  const tagOf = ({ properties = {} }) => ["kind", "mode"].find((name) => properties[name]?.const !== undefined);

  // One of: union (by its `tag`), object, list (of objects), options, switch, pairs (of name and text), or text (one line).
  function explained(given) {
    const schema = resolved(given);
    const all = (schema.oneOf ?? schema.anyOf ?? []).flatMap((each) => each.oneOf ?? [each]).map(resolved);
    const options = all.filter(({ type }) => type !== "null");
    const common = { schema, options, isOptional: options.length < all.length };
    if (options.length === 1) return { ...explained({ ...options[0], ...named(schema) }), isOptional: common.isOptional };
    if (options.length && options.every(tagOf)) return { ...common, form: "union", tag: tagOf(options[0]) };
    if (schema.properties) return { ...common, form: "object" };
    if (schema.type === "array" && resolved(schema.items ?? {}).properties) return { ...common, form: "list", item: schema.items };
    if (schema.enum) return { ...common, form: "options" };
    if (schema.type === "boolean") return { ...common, form: "switch" };
    if (Object.values(schema.patternProperties ?? {}).some((each) => resolved(each).type === "string")) return { ...common, form: "pairs" };
    return { ...common, form: "text" };
  }

  // Without values that equal their defaults.
  function trimmed(value, given) {
    const { form, schema, options, tag, item } = explained(given);
    if (value === null) return value;
    if (form === "list") return value.map((each) => trimmed(each, item));
    const fields = form === "union" ? options.find((each) => each.properties[tag].const === value[tag]) : form === "object" ? schema : null;
    if (!fields || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value)
      .filter(([name, each]) => name === tag || fields.required?.includes(name) || !isUsual(each, fields.properties[name]))
      .map(([name, each]) => [name, trimmed(each, fields.properties[name] ?? {})])
      .filter(([name, each]) => name === tag || fields.required?.includes(name) || !isAllUsual(each, fields.properties[name])));
  }

  // Trimming leaves nothing of the value, nor of its default.
  const isAllUsual = (value, given = {}) =>
    isEmpty(value) && !Array.isArray(value) && given.default && isEmpty(trimmed(given.default, given));

  // The document leaves out defaults that are null or empty.
  const isUsual = (value, given = {}) =>
    ("default" in given ? isSame(value, given.default) : value === null || isEmpty(value));

  return { explained, trimmed };
}

const isEmpty = (value) => value !== null && typeof value === "object" && !Object.keys(value).length;

const named = ({ default: usual, description, title }) =>
  Object.fromEntries(Object.entries({ default: usual, description, title }).filter(([, value]) => value !== undefined));

// "above 0, at most 1024", for a number, or for the number in a field that also takes a range.
export function bounds({ schema, options }) {
  const of = options[0] ?? schema;
  const words = [["minimum", "at least"], ["exclusiveMinimum", "above"], ["maximum", "at most"], ["exclusiveMaximum", "below"]]
    .filter(([name]) => of[name] !== undefined && !(name === "exclusiveMinimum" && of.minimum > of[name])).map(([name, word]) => `${word} ${of[name]}`);
  if (options.some(({ type, prefixItems }) => type === "array" && prefixItems)) words.push("or [low, high] for the controller to search");
  const constant = options.find((each) => each.const !== undefined);
  return [...words, constant ? `or ${constant.const}` : null].filter(Boolean).join(", ");
}
