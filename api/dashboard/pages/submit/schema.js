// A job's JSON Schema, as the service's OpenAPI document has it, read for a form. Values are plain JSON.

// Reads the schemas of `document` by their names; returns what explains one.
export function reader(document) {
  const resolved = ({ $ref, ...beside }) =>
    ($ref ? { ...resolved(document.components.schemas[$ref.split("/").at(-1)]), ...beside } : beside);
  const tagOf = ({ properties = {} }) => ["kind", "mode"].find((name) => properties[name]?.const !== undefined);

  // One of: union (by its `tag`), object, list (of objects), options, switch, pairs (of a name and a text), or text: what one writes into a line.
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

  // Without what is as it would be anyway.
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

  // Nothing is left of it, nor of the default.
  const isAllUsual = (value, given = {}) =>
    isEmpty(value) && !Array.isArray(value) && given.default && isEmpty(trimmed(given.default, given));

  // A default that is null, or empty, is not in the document.
  const isUsual = (value, given = {}) =>
    ("default" in given ? isSame(value, given.default) : value === null || isEmpty(value));

  return { explained, trimmed };
}

const isEmpty = (value) => value !== null && typeof value === "object" && !Object.keys(value).length;

const named = ({ default: usual, description, title }) =>
  Object.fromEntries(Object.entries({ default: usual, description, title }).filter(([, value]) => value !== undefined));

// A field that is not there is as one that is null.
export function isSame(one, other) {
  if ((one ?? null) === (other ?? null)) return true;
  if (!one || !other || typeof one !== "object" || typeof other !== "object") return false;
  const names = new Set([...Object.keys(one), ...Object.keys(other)]);
  return Array.isArray(one) === Array.isArray(other) && [...names].every((name) => isSame(one[name], other[name]));
}

// "above 0, at most 1024", of a number or of the number that may be a range.
export function bounds({ schema, options }) {
  const of = options[0] ?? schema;
  const words = [["minimum", "at least"], ["exclusiveMinimum", "above"], ["maximum", "at most"], ["exclusiveMaximum", "below"]]
    .filter(([name]) => of[name] !== undefined && !(name === "exclusiveMinimum" && of.minimum > of[name])).map(([name, word]) => `${word} ${of[name]}`);
  if (options.some(({ type, prefixItems }) => type === "array" && prefixItems)) words.push("or [low, high] for the controller to search");
  const constant = options.find((each) => each.const !== undefined);
  return [...words, constant ? `or ${constant.const}` : null].filter(Boolean).join(", ");
}

// [[pointer, before, after]], for what differs.
export function differences(before, after, pointer = "") {
  if (isSame(before, after)) return [];
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const isOfOneKind = isObject(before) && isObject(after) && before.kind === after.kind && before.mode === after.mode;
  if (!isOfOneKind) return [[pointer, before, after]];
  return [...new Set([...Object.keys(before), ...Object.keys(after)])]
    .flatMap((name) => differences(before[name], after[name], `${pointer}/${name}`));
}

const isPlain = (text) => /^[A-Za-z][A-Za-z0-9 _.-]*$/.test(text) && !/^(null|true|false|~)$/i.test(text) && text.trim() === text;
const scalar = (value) => (typeof value === "string" && isPlain(value) ? value : JSON.stringify(value));

// JSON as people write YAML: objects as lines, and lists of values, and objects of few values, in one line.
export function yaml(value, indent = "") {
  const inner = `${indent}  `;
  const isDeep = (each) => each !== null && typeof each === "object";
  const isFlat = (each) => !isDeep(each) || (Object.values(each).every((one) => !isDeep(one) || (Array.isArray(one) && !one.some(isDeep)))
    && flow(each).length < 90);
  return Object.entries(value).map(([name, each]) => {
    if (Array.isArray(value)) return `${indent}- ${isFlat(each) ? `${flow(each)}\n` : yaml(each, inner).trimStart()}`;
    return `${indent}${scalar(name)}:${isFlat(each) ? ` ${flow(each)}\n` : `\n${yaml(each, inner)}`}`;
  }).join("");
}

function flow(value) {
  if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
  if (value === null || typeof value !== "object") return scalar(value);
  return `{${Object.entries(value).map(([name, each]) => `${scalar(name)}: ${flow(each)}`).join(", ")}}`;
}
