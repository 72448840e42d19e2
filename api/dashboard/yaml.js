// JSON as people write YAML; YAML 1.1 and 1.2 read it alike.

const PLAIN = /^[A-Za-z_/][\w ./-]*$/;
const WORDS = /^(?:true|false|yes|no|on|off|null|y|n)$/i; // to some readers these are no text
const MAX_FLOW_CHARS = 90;

const isDeep = (value) => value !== null && typeof value === "object";

// Objects as lines; lists of plain values and small objects on one line.
export function yaml(value, indent = "") {
  const inner = `${indent}  `;
  return Object.entries(value).map(([name, each]) => {
    if (Array.isArray(value)) return `${indent}- ${isFlat(each) ? `${flow(each)}\n` : yaml(each, inner).trimStart()}`;
    return `${indent}${scalar(name)}:${isFlat(each) ? ` ${flow(each)}\n` : `\n${yaml(each, inner)}`}`;
  }).join("");
}

// The same on one line.
export function flow(value) {
  if (Array.isArray(value)) return `[${value.map(flow).join(", ")}]`;
  if (!isDeep(value)) return scalar(value);
  return `{${Object.entries(value).map(([name, each]) => `${scalar(name)}: ${flow(each)}`).join(", ")}}`;
}

function isFlat(value) {
  if (!isDeep(value)) return true;
  const isShallow = Object.values(value).every((each) => !isDeep(each) || (Array.isArray(each) && !each.some(isDeep)));
  return isShallow && flow(value).length < MAX_FLOW_CHARS;
}

function scalar(value) {
  if (typeof value === "number") return String(value).replace(/^(-?\d+)e/, "$1.0e"); // 1e-9 is a word of YAML 1.1
  const isPlain = typeof value === "string" && PLAIN.test(value) && !WORDS.test(value) && value.trim() === value;
  return isPlain ? value : JSON.stringify(value);
}
