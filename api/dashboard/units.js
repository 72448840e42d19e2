// Formats of figures, for the whole page: "1.5 GB", "12 min 5 s", "85 ms", "0.87 %", "0.31 ± 0.02".

import { now } from "./clock.js";

const NONE = "–";
const SIZES = [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12], ["PB", 1e15]];
const SPANS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

const isNone = (value) => value === null || value === undefined;

// Integers stay exact: a batch of 1024 is not 1020.
export function number(value, digits = 3) {
  if (isNone(value)) return NONE;
  return Number.isSafeInteger(value) ? String(value) : Number(value.toPrecision(digits)).toString();
}

// A loss or metric, with four decimals, or with four digits if it is very small or large.
export function loss(value) {
  if (isNone(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0 || (size >= 1e-3 && size < 10)) return value.toFixed(4);
  return size >= 1e4 && size < 1e7 ? value.toFixed(0) : number(value, 4);
}

// `digits`: the number of digits, for when two close values must differ.
export function share(value, digits = null) {
  if (isNone(value)) return NONE;
  const percent = 100 * value;
  if (digits !== null) return `${number(percent, digits)} %`;
  return `${percent >= 99.95 ? percent.toFixed(0) : number(percent, percent > 99 ? 3 : 2)} %`;
}

// A level by its name in the job: a density is a share, a rank or a period a number.
export const level = (value, name, digits) => (name === "density" ? share(value, digits) : number(value, digits));

export function spread(middle, deviation, write, writeDeviation = write) {
  if (isNone(middle)) return NONE;
  return isNone(deviation) ? write(middle) : `${write(middle)} ± ${writeDeviation(deviation)}`;
}

export const signed = (value, digits = 1) => value.toFixed(digits).replace(/^-/, "−").replace(/^(?=\d)/, "+");

export function size(bytes) {
  if (isNone(bytes)) return NONE;
  const rounded = Math.abs(Number(bytes.toPrecision(4))); // 999,960 B are 1 MB, not 1000.0 kB
  const [unit, per] = SIZES.findLast(([, per]) => rounded >= per) ?? SIZES[0];
  return per === 1 ? `${Math.round(bytes)} B` : `${(bytes / per).toFixed(rounded < 100 * per ? 1 : 0)} ${unit}`;
}

// Below a minute with three digits, above it in the two largest units.
export function duration(seconds) {
  if (isNone(seconds)) return NONE;
  if (seconds > 0 && seconds < 0.9995) return `${number(1000 * seconds)} ms`;
  if (seconds < 59.95) return `${number(seconds)} s`;
  const at = SPANS.findIndex(([, per]) => Math.round(seconds) >= per);
  const [[unit, per], [lowerUnit, lowerPer]] = SPANS.slice(at, at + 2);
  const inLower = Math.round(seconds / lowerPer);
  const [whole, rest] = [Math.floor((inLower * lowerPer) / per), inLower % (per / lowerPer)];
  return rest ? `${whole} ${unit} ${rest} ${lowerUnit}` : `${whole} ${unit}`;
}

// A sum in the operator's currency; a small one is not rounded to 0.
export function money(sum, currency) {
  if (isNone(sum)) return NONE;
  const digits = sum !== 0 && Math.abs(sum) < 0.1 ? number(sum, 2) : sum.toFixed(2);
  return currency ? `${digits} ${currency}` : digits;
}

export function age(moment, ms = now()) {
  const passed = (ms - Date.parse(moment)) / 1000;
  const span = SPANS.slice(0, 3).find(([, per]) => passed >= per);
  return span ? `${Math.floor(passed / span[1])} ${span[0]} ago` : "just now";
}

// With the time zone, since people in several places look at one job. A narrow column breaks the line before the time only.
export const moment = (given) => new Date(given).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" })
  .replace(/\d:\d\d.*$/, (time) => time.replaceAll(/\s/g, "\u00a0"));

// The unit that gives short ticks on an axis up to `largest`, and its divisor.
export const sizeAxis = (largest) => axis(SIZES, largest);
export const timeAxis = (largest) => axis(SPANS.toReversed(), largest / 3); // 100 s, not 1.7 min

function axis(units, largest) {
  const [unit, per] = units.findLast((each) => largest >= each[1]) ?? units.find((each) => each[1] === 1);
  return { unit, per };
}

// A column of figures for `table`: `of` returns a row's value, `write` its text.
export const figures = (heading, of, write) => [heading, (row) => write(of(row)), "number", of];

// The same of means over seeds, each with its interval. One seed has no known spread, and Student's interval of two says
// nothing: `valuesOf` a row gives the values themselves, whose ends stand in its place.
export const estimates = (heading, of, write, valuesOf = () => []) => [heading, (row) => {
  const found = of(row);
  const values = valuesOf(row).filter((value) => !isNone(value));
  if (values.length === 2 && values[0] !== values[1]) return `${write(Math.min(...values))} – ${write(Math.max(...values))}`;
  return found && found.high !== null && found.num_seeds > 2 ? interval(found, write) : write(found?.mean);
}, "number", (row) => of(row)?.mean];

// ± half of it, or its ends where the halves differ: that of a positive quantity reaches further up than down.
function interval({ mean, low, high }, write) {
  const [below, above] = [mean - low, high - mean].map((half) => write(half));
  return below === above ? `${write(mean)} ± ${above}` : `${write(mean)} (${write(low)} to ${write(high)})`;
}

// Settings besides the rate and the level: "momentum 0.95, batch size 64".
export function besides({ learning_rate, level: _, ...values }) {
  return Object.entries(values)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? number(value) : value}`)
    .join(", ");
}

// What was measured on the test sets of reports of trials or arms, the loss first.
export function tested(reports) {
  const names = new Set(reports.flatMap((each) => Object.keys(each.test ?? {})));
  return [...(names.delete("loss") ? ["loss"] : []), ...[...names].sort()];
}
