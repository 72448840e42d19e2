// The loss, or another recorded series, and the learned schedule, along one axis that the reader chooses.

import { AXES, placing } from "../../charts/axis.js";
import { LOSS, lossChart } from "../../charts/loss.js";
import { panel } from "../../charts/panel.js";
import { scheduleChart } from "../../charts/schedule.js";
import { element, patch, whenChanged, whenKept } from "../../dom.js";
import { seriesOf } from "./held_series.js";

const NONE = []; // one object, so that nothing is drawn anew for it
const ZOOM_MS = 150; // a wheel zooms many times

// `choice` holds the reader's choices; `update` takes the data of the trials to draw, of so many of the job, with labels. `fetchSeries` returns the series of a
// name, such as the sent bytes, up to the points on the page; `fetchNames` the names of those recorded in training steps.
export function curves(id, { held: choice, choose }, fetchSeries, fetchNames = async () => []) {
  const tools = element("div", { class: "tools", role: "group", "aria-label": "How the curves are shown" });
  const loss = panel("Loss", "wide", { tools, zoomed: (range) => hearZoom(range, schedule) });
  const schedule = panel("Learned schedule", "wide", { zoomed: (range) => hearZoom(range, loss) });
  let known = { trials: [], series: [], stages: [], schedules: [] };
  let recorded = []; // the names of the series that the menu offers besides what evaluations measure
  let sent = [];
  let insured = NONE; // the evaluations of second lines
  let drawn = []; // the series that the first chart is of
  let shows = 0; // of `show`: the newest one draws
  let detail = null; // {range, series}: more points of a part of the axis
  let along = ""; // the axis
  let part = null; // of it, that the reader has zoomed to
  let timer = null;
  let isTakenBack = false; // since the last `update`

  const drawLoss = whenChanged((given, series, insured, place, finer, wanted) => {
    loss.body.hidden = !given.series.some((each) => each.steps.length);
    if (loss.body.hidden) return undefined;
    const how = JSON.parse(wanted);
    const title = how.metric === LOSS ? "Loss" : how.isRecorded ? how.metric : `Validation ${how.metric}`;
    patch(loss.heading, title);
    return loss.draw(() => lossChart({ training: finerOf(series, LOSS, finer), validation: finerOf(series, how.isRecorded ? how.metric : `validation_${how.metric}`, finer),
      insured, trials: given.trials, stages: given.stages.filter((stage) => stage.trial_id === focusOf(given)), searched: given.stages, place, choice: how }), title);
  });
  const drawSchedule = whenChanged((given, place, isLogAxis) => {
    schedule.body.hidden = !given.schedules.some((each) => each.entries.length);
    return schedule.body.hidden ? undefined : schedule.draw(() => scheduleChart(given.schedules, given.stages, place, { trials: given.trials, isLogAxis }));
  });
  const placed = whenKept((axis, series, bytes, insured) => placing(axis, series.filter((each) => each.name === "loss"), bytes, insured));
  const placedByLine = whenKept((axis, series, bytes, insured, schedules) => {
    const losses = series.filter((each) => each.name === LOSS);
    return placing(axis, ofKeptLines(losses, insured, schedules), bytes, [...losses, ...insured]);
  });

  // After a rollback, the next `update` does not extend the previous one.
  function forget() {
    detail = null;
    isTakenBack = true;
  }

  async function update(given) {
    known = given;
    if (isTakenBack && part) look([...part]);
    isTakenBack = false;
    await show();
    const names = await fetchNames(given.trials).catch(() => recorded); // without them the menu stays as it is
    if (names.join() === recorded.join()) return;
    recorded = names;
    await show();
  }

  async function show() {
    patch(tools, ...toolsOf(known));
    const [turn, metric] = [shows += 1, metricOf(known)];
    const [bytes, values, second] = await Promise.all([choice.x === "bytes" ? fetchSeries("bytes_sent") : null,
      metric === LOSS ? null : fetchSeries(isRecorded(known, metric) ? metric : `validation_${metric}`), fetchInsured(known, metric)]);
    if (turn !== shows) return;
    if (bytes) sent = begun(bytes, known.stages);
    drawn = values ? withLooks(values, known.trials) : known.series;
    insured = insuredWithLooks(second, known.trials);
    const place = placed(choice.x, known.series, sent, insured);
    turnTo([place.axis, place.unit, choice.logx].join());
    const wanted = JSON.stringify({ metric, isRecorded: isRecorded(known, metric), smooth: choice.smooth, isLog: choice[scaleOf(metric)], isLogAxis: choice.logx, isEach: choice.seeds === "each" });
    await Promise.all([drawLoss(known, drawn, insured, place, detail, wanted),
      drawSchedule(known, insured.length ? placedByLine(choice.x, known.series, sent, insured, known.schedules) : place, choice.logx)]);
  }

  // The evaluations of second lines, as far as there are any. Without them the charts have all else.
  const fetchInsured = (given, metric) => (given.trials.some((trial) => trial.bill?.steps_insurance)
    ? fetchSeries(`insurance_validation_${isRecorded(given, metric) ? LOSS : metric}`).catch(() => NONE) : NONE);

  // A part of one axis is none of another.
  function turnTo(axis) {
    if (part && axis !== along) {
      [part, detail] = [null, null];
      for (const chart of [loss, schedule]) chart.zoomTo(null);
    }
    along = axis;
  }

  const isRecorded = ({ trials }, metric) => metric !== LOSS && !metricsOf(trials).includes(metric);
  const offered = (trials) => [LOSS, ...new Set([...metricsOf(trials), ...recorded])];
  const metricOf = ({ trials }) => (offered(trials).includes(choice.metric) ? choice.metric : LOSS);
  const focusOf = ({ trials }) => (trials.find((trial) => trial.trial_id === choice.trial) ?? trials[0])?.trial_id;

  function toolsOf({ trials }) {
    const several = new Set(trials.map((trial) => trial.arm)).size < trials.length;
    const [names, metric] = [offered(trials), metricOf(known)];
    return [
      names.length > 1 ? select("metric", "metric", names.map((name) => [name, name]), metric) : null,
      select("along", "x", Object.entries(AXES)),
      several ? select("seeds", "seeds", [["mean", "mean and spread"], ["each", "each"]]) : null,
      element("label", { key: "smooth" }, metric === LOSS ? "smooth training " : "smooth ", element("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(choice.smooth),
        "aria-valuetext": String(choice.smooth), oninput: ({ currentTarget }) => choose("smooth", Number(currentTarget.value)) }), element("output", {}, choice.smooth.toFixed(2))),
      check(`log ${metric === LOSS ? LOSS : "values"}`, scaleOf(metric)), check("log axis", "logx"),
      trials.length > 1 ? select("stages of", "trial", trials.map((trial) => [trial.trial_id, trial.label]), focusOf(known)) : null,
    ];
  }

  function select(label, name, options, now = choice[name]) {
    const made = element("select", { onchange: ({ currentTarget }) => choose(name, currentTarget.value) },
      ...options.map(([value, text]) => element("option", { value, key: value, selected: value === now ? "" : null }, text)));
    return element("label", { key: name }, `${label} `, made);
  }

  const check = (label, name) => element("label", { key: name }, element("input", { type: "checkbox", checked: choice[name] ? "" : null,
    onchange: ({ currentTarget }) => choose(name, currentTarget.checked) }), ` ${label}`);

  // Both charts show one part of the axis.
  function hearZoom(range, other) {
    if (String(range) === String(part)) return; // it follows the other one
    look(range);
    other.zoomTo(range);
  }

  function look(range) {
    clearTimeout(timer);
    part = range;
    if (!range) return reset();
    timer = setTimeout(() => zoom(range).catch(() => {}), ZOOM_MS); // without it the chart stays as coarse as it is
  }

  function reset() {
    detail = null;
    return show();
  }

  async function zoom(range) {
    const place = placed(choice.x, known.series, sent, insured);
    const steps = place.steps(choice.logx ? range.map((power) => 10 ** power) : range);
    const coarse = [...new Set(drawn.filter((series) => series.steps.length < series.num_points).map((series) => series.name))];
    if (!steps || !coarse.length) return;
    const [first_step, last_step] = steps;
    const found = await Promise.all(coarse.map((name) => seriesOf(id, name, known.trials, known.num_trials ?? known.trials.length, { first_step, last_step })));
    if (part !== range) return; // another part is looked at meanwhile
    detail = { steps, series: found.flat() };
    await show();
  }

  return { loss: loss.body, schedule: schedule.body, update, forget, show };
}

// The choice of a logarithmic scale: a loss has one unless the reader says otherwise, another metric only if they say so.
const scaleOf = (metric) => (metric === LOSS ? "log" : "logm");

// The metrics of the trials besides the loss.
const metricsOf = (trials) => [...new Set(trials.flatMap((trial) => Object.keys(trial.metric_directions)))].filter((name) => name !== LOSS).sort();

// Series with the name and colour of their trial.
export const keptLooks = () => whenKept((series, trials) => {
  const looks = new Map(trials.map(({ trial_id: trial, label, arm_index, is_first_seed, seed_index }) => [trial, { label, arm_index, is_first_seed, seed_index }]));
  return series.map((each) => ({ ...each, ...looks.get(each.trial_id) }));
});
const [withLooks, insuredWithLooks] = [keptLooks(), keptLooks()];

// The series with the steps and seconds of each trial's schedule, which is that of the kept line.
function ofKeptLines(losses, insured, schedules) {
  const isOwn = new Set(schedules.filter(({ line }) => line === "insurance").map((each) => each.trial_id));
  const own = insured.filter((each) => isOwn.has(each.trial_id));
  return [...losses.filter((each) => !own.some(({ trial_id: trial }) => trial === each.trial_id)), ...own];
}

// Each trial's bytes, with those of its first search before the first committed step.
const begun = whenKept((sent, stages) => sent.map((series) => {
  const first = stages.find((stage) => stage.trial_id === series.trial_id && stage.stage === 0);
  return { ...series, steps: [-1, ...series.steps], values: [first?.search_bytes ?? 0, ...series.values] };
}));

// The series of a name, with all known points of the visible part.
function finerOf(series, name, detail) {
  const own = series.filter((each) => each.name === name);
  if (!detail) return own;
  const [first] = detail.steps;
  return own.map((each) => {
    const finer = detail.series.find((one) => one.name === name && one.trial_id === each.trial_id);
    if (!finer?.steps.length) return each;
    const before = each.steps.findIndex((step) => step >= first);
    const after = each.steps.findIndex((step) => step > finer.steps.at(-1)); // what came after the others were fetched stays
    const cut = (field) => [...each[field].slice(0, before < 0 ? undefined : before), ...finer[field], ...(after < 0 ? [] : each[field].slice(after))];
    return { ...each, steps: cut("steps"), seconds: cut("seconds"), values: cut("values") };
  });
}
