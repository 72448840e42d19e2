// How much each parameter of a sweep tells about the metric: for numbers the absolute rank correlation, for choices the
// share of the metric's variance that lies between them.

import { grouped } from "./look.js";

const FEWEST = 3; // samples

const meanOf = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;
const squares = (values) => values.reduce((sum, each) => sum + (each - meanOf(values)) ** 2, 0);

// From 1 on; equal values share the mean of their ranks.
function ranks(values) {
  const sorted = values.toSorted((one, other) => one - other);
  return values.map((value) => 1 + (sorted.indexOf(value) + sorted.lastIndexOf(value)) / 2);
}

// Spearman's rank correlation without its sign: 1 if the one always rises, or always falls, with the other. Null if that is
// not defined: there are too few, or one of the two is constant.
export function rankCorrelation(xs, ys) {
  const [one, other] = [ranks(xs), ranks(ys)];
  const both = Math.sqrt(squares(one)) * Math.sqrt(squares(other));
  if (xs.length < FEWEST || both === 0) return null;
  const [left, right] = [meanOf(one), meanOf(other)];
  return Math.min(1, Math.abs(one.reduce((sum, each, at) => sum + (each - left) * (other[at] - right), 0)) / both);
}

// The share of the variance of `ys` between the groups of their `names`, known as eta squared. Null if that is not defined:
// there are too few, `ys` is constant, there is one group, or each group has one member.
export function varianceShare(names, ys) {
  const groups = [...grouped(ys.map((y, at) => ({ y, name: names[at] })), ({ name }) => name).values()].map((rows) => rows.map(({ y }) => y));
  const [whole, mean] = [squares(ys), meanOf(ys)];
  if (ys.length < FEWEST || whole === 0 || groups.length < 2 || groups.length === ys.length) return null;
  return Math.min(1, groups.reduce((sum, own) => sum + own.length * (meanOf(own) - mean) ** 2, 0) / whole);
}

// Samples: {values, value}. Returns {path, measure, importance, count} for each parameter, the most important first; an
// importance is from 0 to 1, or null if it is not defined.
export function importances(samples) {
  const paths = [...new Set(samples.flatMap(({ values }) => Object.keys(values)))];
  const found = paths.map((path) => {
    const own = samples.filter(({ values }) => path in values);
    const [xs, ys] = [own.map(({ values }) => values[path]), own.map(({ value }) => value)];
    const isNumber = xs.every((each) => typeof each === "number");
    return { path, count: own.length, measure: isNumber ? "rank correlation" : "share of variance",
      importance: isNumber ? rankCorrelation(xs, ys) : varianceShare(xs.map((each) => JSON.stringify(each)), ys) };
  });
  return found.sort((one, other) => (other.importance ?? -1) - (one.importance ?? -1));
}
