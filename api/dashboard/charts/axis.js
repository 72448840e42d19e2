// The axes of curves: committed steps, seconds on the training clock, or bytes that one worker has sent.

import { sizeAxis, timeAxis } from "../units.js";

export const AXES = { seconds: "seconds", steps: "steps", bytes: "bytes sent" };

const MARGIN = 1.02; // of an axis, beyond its last point

// Linear between known points and constant outside; `xs` ascend.
export function between(xs, ys) {
  return (x) => {
    if (!xs.length) return null;
    let [low, high] = [0, xs.length - 1];
    if (x <= xs[low]) return ys[low];
    if (x >= xs[high]) return ys[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle;
      else high = middle;
    }
    if (xs[high] === xs[low]) return ys[high];
    return ys[low] + ((ys[high] - ys[low]) * (x - xs[low])) / (xs[high] - xs[low]);
  };
}

// The positions of each trial's steps on `axis`. `losses` have a point per step, `sent` the bytes at some of them. Further
// lines `beside` them have a place in the range; how many bytes they sent is not known.
export function placing(axis, losses, sent, beside = []) {
  const marks = new Map(losses.map((series) => [series.trial_id, axis === "seconds" ? [series.steps, series.seconds] : [series.steps, series.steps]]));
  if (axis === "bytes") for (const series of sent) marks.set(series.trial_id, [series.steps, series.values]);
  const ends = [...[...marks.values()].map(([, places]) => places), ...(axis === "bytes" ? [] : beside.map((series) => series[axis]))]
    .map((places) => places.at(-1) ?? 0);
  const end = Math.max(0, ...ends);
  const { unit, per } = unitOf(axis, end);
  const title = { seconds: `training clock, ${unit}`, steps: "committed steps", bytes: `sent by one worker, ${unit}` }[axis];
  const places = new Map([...marks].map(([trial, known]) => [trial, between(...known)]));
  const divided = (place) => (place === null ? null : place / per);
  const at = (trial, step) => (axis === "steps" ? step : divided(places.get(trial)?.(step) ?? null));
  const clocks = new Map(losses.map((series) => [series.trial_id, between(series.steps, series.seconds)]));
  return {
    axis, unit, per, at,
    clock: (trial, step) => clocks.get(trial)?.(step) ?? null,
    title,
    // Charts one below the other have one range, and follow new points. Plotly ignores it on a logarithmic axis.
    xaxis: (isLog) => ({ title: { text: title }, ...(isLog ? { type: "log" } : { rangemode: "tozero",
      ...(end > 0 && { autorangeoptions: { minallowed: 0, maxallowed: (MARGIN * end) / per } }) }) }),
    // A stretch of steps ends with its last step, not where the next one begins after another search.
    from: at,
    to: (trial, step) => (axis === "steps" ? step : at(trial, step - 1)),
    along: (series) => (axis === "seconds" ? series.seconds.map(divided) : series.steps.map((step) => at(series.trial_id, step))),
    // The steps of any trial within a range of the axis, to fetch more of their points.
    steps([least, most]) {
      const found = [...marks].flatMap(([, [steps, known]]) => {
        const back = between(known, steps);
        return steps.length && known[0] / per <= most && known.at(-1) / per >= least ? [back(least * per), back(most * per)] : [];
      });
      return found.length ? [Math.floor(Math.min(...found)), Math.ceil(Math.max(...found))] : null;
    },
  };
}

function unitOf(axis, largest) {
  if (axis === "seconds") return timeAxis(largest);
  return axis === "bytes" ? sizeAxis(largest) : { unit: "steps", per: 1 };
}
