// A job as a row of the list.

import { badge, drawn, element } from "../../dom.js";
import { isOver, lostOf, whyOf } from "../../states.js";
import { since } from "../../times.js";
import { duration, level, loss, number, share, size } from "../../units.js";

const NONE = "–"; // a narrow window leaves it out
const [WIDTH, HEIGHT] = [96, 26];

// Heading, content of its column, kind, and the order that a click on the heading chooses.
export const COLUMNS = [
  ["job", nameOf, "name", "name"],
  ["state", stateOf, "reasoned", "state"],
  ["progress", progressOf, "", null],
  ["rate and level", valuesOf, "number", null],
  ["result", resultOf, "number", "result"],
  ["bytes saved", savedOf, "number", null],
  ["created", ({ created_at }) => since(created_at), "", "created"],
  ["finished", finishedOf, "", "finished"],
];

export function cells(job) {
  return COLUMNS.map(([heading, show, kind]) => {
    const shown = show(job);
    return element("td", { class: shown === NONE ? `${kind} none` : kind, key: heading, role: "cell", "data-heading": heading }, ...[shown].flat());
  });
}

function nameOf({ id, name, owner, project, labels, arms, archived }) {
  const chips = Object.entries(labels).map((each) => {
    const label = each.join("=");
    return element("a", { class: "label", key: label, href: `/?${new URLSearchParams({ label })}` }, label);
  });
  return [
    element("a", { href: `/?job=${encodeURIComponent(id)}` }, name),
    element("div", { class: "quiet small" }, element("code", {}, id.replace("job-", "").slice(-8)), ` ${owner} · ${project} · ${arms.join(", ")}`),
    chips.length || archived ? element("div", { class: "labels" }, ...chips, archived ? element("span", { class: "label" }, "archived") : null) : null,
  ];
}

function stateOf(job) {
  const [why, lost] = [whyOf(job), lostOf(job)];
  return [badge(job.state), why ? element("div", { class: "why quiet small", key: "why", title: why }, why) : null,
    lost ? element("div", { class: "why bad small", key: "lost", title: lost }, lost) : null];
}

function finishedOf(job) {
  const { seconds_held: took = null } = job;
  return job.finished_at ? [since(job.finished_at), took === null ? null : element("div", { class: "small quiet" }, `took ${duration(took)}`)] : NONE;
}

function progressOf(job) {
  const { state, progress } = job;
  const { share: done, seconds_left, num_trials, num_finished } = progress;
  const percent = `${Math.floor(100 * done)} %`;
  const isGoing = !isOver(job) && state !== "queued" && state !== "paused" && seconds_left !== null;
  const rest = isGoing ? `, ${duration(seconds_left)} left` : "";
  const trials = num_trials > 1 ? `${num_finished} of ${num_trials} trials` : null;
  return [
    element("progress", { max: 1, value: done, "aria-label": `${percent} of the budget` }),
    element("div", { class: "small" }, percent + rest),
    trials && element("div", { class: "quiet small" }, trials),
  ];
}

function valuesOf({ arms, progress }) {
  const { learning_rate, level: value, level_name, arm } = progress;
  if (learning_rate === null) return NONE;
  const shown = value === null ? null : element("div", { class: "small" }, `${level_name.replaceAll("_", " ")} ${level(value, level_name)}`);
  const whose = arms.length === 1 && arms[0] === arm ? null : element("div", { class: "quiet small" }, `of ${arm}`);
  return [element("div", {}, `lr ${number(learning_rate)}`), shown, whose];
}

// The result by the job's own metric; until it has one, the best loss so far.
function resultOf({ progress: { losses }, best_validation_loss: best, metric, result }) {
  const line = sparkline(losses);
  const reached = result === null ? best !== null && `best loss ${loss(best)}` : `${metric} ${loss(result)}`;
  if (!reached && line === null) return NONE;
  return [line, element("div", { class: "small" }, reached || NONE)];
}

function savedOf({ progress: { bytes_sent, bytes_dense } }) {
  if (bytes_dense <= bytes_sent) return NONE;
  const saved = bytes_dense - bytes_sent;
  return [size(saved), element("div", { class: "small quiet" }, `${share(saved / bytes_dense)} of dense`)];
}

// On a logarithmic scale, which still shows the end of a run; diverged values are gaps.
function sparkline(losses) {
  const finite = losses.filter((each) => each !== null);
  if (finite.length < 2) return null;
  const scale = Math.min(...finite) > 0 ? Math.log : (value) => value;
  const [low, high] = [scale(Math.min(...finite)), scale(Math.max(...finite))];
  const x = (at) => (2 + (at / (losses.length - 1)) * (WIDTH - 4)).toFixed(1);
  const y = (value) => (2 + (1 - (scale(value) - low) / (high - low || 1)) * (HEIGHT - 4)).toFixed(1);
  const path = losses.map((value, at) => (value === null ? "" : `${at === 0 || losses[at - 1] === null ? "M" : "L"}${x(at)} ${y(value)}`));
  return drawn("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img",
    "aria-label": `validation loss, from ${loss(finite[0])} to ${loss(finite.at(-1))}` },
  drawn("path", { d: path.join("") }));
}
