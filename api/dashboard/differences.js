// The fields in which two jobs differ, as the service finds them for `clone --dry-run` and for comparisons.

import { flow } from "./yaml.js";

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// A missing field counts as null.
export function isSame(one, other) {
  if ((one ?? null) === (other ?? null)) return true;
  if (!one || !other || typeof one !== "object" || typeof other !== "object") return false;
  const names = new Set([...Object.keys(one), ...Object.keys(other)]);
  return Array.isArray(one) === Array.isArray(other) && [...names].every((name) => isSame(one[name], other[name]));
}

// [{pointer, before, after}], in the order of the first job; null: missing, or without a value.
export function differences(before, after, pointer = "") {
  if (isSame(before, after)) return [];
  const areLists = Array.isArray(before) && Array.isArray(after) && after.some(isObject);
  if (!areLists && !(isObject(before) && isObject(after))) return [{ pointer, before: before ?? null, after: after ?? null }];
  return [...new Set([...Object.keys(before), ...Object.keys(after)])]
    .flatMap((name) => differences(before[name], after[name], `${pointer}/${escaped(name)}`));
}

const escaped = (name) => name.replaceAll("~", "~0").replaceAll("/", "~1"); // RFC 6901

// A value of a difference, as in the job's YAML.
export const valueText = (value) => (value === null ? "–" : flow(value));
