// Several jobs, or arms of them, side by side: "/?compare=ID,ID:arm&metric=accuracy&axis=bytes&smooth=0.03&baseline=A tuned".

import { LOSS } from "../../charts/loss.js";
import { overlaidCurves, overlaidSchedules } from "../../charts/overlay.js";
import { panel } from "../../charts/panel.js";
import { parallelChart } from "../../charts/parallel.js";
import { paretoChart } from "../../charts/pareto.js";
import * as api from "../../api.js";
import { reason } from "../../dialog.js";
import { element, empty, inTurn, patch, unanswered } from "../../dom.js";
import { isWholeId, jobsOf } from "../../finding.js";
import { comparedJobs, comparedTrials, MOST, parsed, unknownArms, written } from "./jobs.js";
import { armRows, differenceTable, jobTable, resultMenu, resultTable } from "./tables.js";

const RECENT = 20; // jobs that are offered
const LONGEST_REF = 100; // that the service takes
const AXES = [["seconds", "seconds"], ["steps", "steps"], ["bytes", "bytes"]];
const SEEDS = [["mean", "mean"], ["each", "each"]];
const CLOCKS = [["training", "whole training"], ["target", "until the target"]];
const SMOOTHING = [["0", "none"], ["0.01", "1 % of the steps"], ["0.03", "3 %"], ["0.1", "10 %"]];

export function comparePage(root, text, query) {
  const wanted = parsed(text);
  const compared = comparedJobs(wanted);
  const known = (choices, name, otherwise) => (choices.some(([value]) => value === query.get(name)) ? query.get(name) : otherwise);
  const chosen = { metric: query.get("metric") ?? LOSS, axis: known(AXES, "axis", "seconds"), smooth: known(SMOOTHING, "smooth", "0.03"), seeds: known(SEEDS, "seeds", "mean"),
    clock: known(CLOCKS, "clock", "training"), baseline: query.get("baseline") ?? "" };
  const section = () => element("section", { class: "panel wide" });
  const [jobs, results, differences, missing, waiting] = [section(), section(), section(), element("div", {}), element("div", {}, empty("loading …"))];
  const refused = element("div", { id: "unanswered", role: "alert" });
  const [baseline, metrics] = [chooser("baseline", "Baseline", [["", "none"]]), chooser("metric", "Metric", [[LOSS, LOSS]])];
  const [seeds, clock] = [chooser("seeds", "Seeds", SEEDS), chooser("clock", "Clock", CLOCKS)];
  const [curves, schedules, pareto, parallel] = [panel("Loss of all jobs", "wide", { tools: refused }), panel("Learned schedules of all jobs", "wide"),
    panel("Loss against its cost", "wide", { tools: element("div", { class: "tools" }, clock.body) }), panel("Chosen values, stage by stage", "wide")];
  const tools = element("div", { class: "tools" }, metrics.body, chooser("axis", "Along", AXES).body, chooser("smooth", "Smoothing", SMOOTHING).body,
    seeds.body, baseline.body);
  const panels = element("div", { class: "panels", hidden: "" }, jobs, curves.body, results, pareto.body, differences, schedules.body, parallel.body);
  root.replaceChildren(element("h1", {}, "Compare"), missing, tools, adding(), waiting, panels);
  document.title = "Compare – Wiretune";
  let shown = null;
  let rows = [];
  const menu = resultMenu(() => rows);

  const refresh = inTurn(look); // a change is merged into what it is a change of

  async function look() {
    const found = await compared.look();
    if (shown && !found.isNew) return;
    if (!shown && await findAll(found.jobs)) return;
    shown = found;
    await draw();
  }

  // The address may have parts of ids, as lists show them, or names.
  async function findAll(jobs) {
    const unknown = jobs.filter((job) => job.isGone && !job.isUnread && !isWholeId(job.id));
    const found = new Map(await Promise.all(unknown.map(async ({ id }) => [id, await jobsOf(id)])));
    const whole = wanted.map(({ id, arms }) => ({ id: found.get(id)?.length === 1 ? found.get(id)[0].id : id, arms }));
    const isFound = whole.some(({ id }, at) => id !== wanted[at].id);
    if (isFound) location.replace(addressOf(whole));
    return isFound;
  }

  async function draw() {
    const { jobs: found, comparison } = shown;
    patch(missing, ...missingTexts(found));
    const trials = comparedTrials(found);
    panels.hidden = tools.hidden = comparison === null;
    patch(waiting, panels.hidden ? element("div", { class: "panel spaced" }, empty("There is nothing to compare. ", element("a", { href: "/" }, "All jobs"))) : null);
    if (panels.hidden) return;
    drawTables(found, comparison, chosen.baseline);
    offer(metrics, [LOSS, ...metricsOf(trials)].map((name) => [name, name]), LOSS);
    seeds.body.hidden = new Set(trials.map(({ arm }) => arm)).size === trials.length;
    clock.body.hidden = comparison.target === null;
    const goal = { metric: comparison.metric, isHigh: trials.some(({ trial }) => trial.metric_directions[comparison.metric] === "max"),
      isToTarget: chosen.clock === "target" && comparison.target !== null };
    patch(pareto.heading, `${titled(goal.metric)} against its cost`);
    await Promise.all([
      drawCurves(trials),
      schedules.draw(once(() => overlaidSchedules(trials.flatMap((each) => each.schedules.map((schedule) => ({ ...each, ...schedule, arm: each.arm })))))),
      pareto.draw(once(() => paretoChart(trials.map(costsOf(goal, comparison)), goal)), `${titled(goal.metric)} against its cost`),
      parallel.draw(once(() => parallelChart(trials.flatMap(choices)))),
    ]);
  }

  let draws = 0; // of curves: the newest one is shown
  async function drawCurves(trials) {
    const turn = draws += 1;
    const [metric, axis, smoothing, isEach] = [metrics.select.value, chosen.axis, Number(chosen.smooth), chosen.seeds === "each"];
    const of = (name, series) => trials.flatMap((each) => series(each).filter((one) => one.name === name && one.trial_id === each.trial.trial_id)
      .map((one) => ({ ...each, ...one, arm: each.arm })));
    try {
      const measured = metric === LOSS ? [] : await measuredOf(trials.filter(({ trial }) => metric in trial.metric_directions), `validation_${metric}`);
      if (turn !== draws) return;
      const [training, validation] = metric === LOSS ? [of(LOSS, ({ series }) => series), of(`validation_${LOSS}`, ({ series }) => series)]
        : [[], of(`validation_${metric}`, () => measured)];
      const title = `${titled(metric)} of all jobs`;
      patch(refused);
      patch(curves.heading, title);
      await curves.draw(once(() => overlaidCurves(training, validation, { axis, smoothing, metric, isEach })), title);
    } catch (error) {
      if (turn === draws) patch(refused, ...unanswered(error, () => drawCurves(trials)));
    }
  }

  // Series that snapshots leave out, one request for each job of these trials, and then for what is new.
  async function measuredOf(trials, name) {
    const ids = new Set(trials.map((each) => each.trial.trial_id));
    const found = shown.jobs.filter((job) => job.held && !job.isGone).map((job) => {
      const rows = job.held.trials.filter((trial) => ids.has(trial.trial_id));
      return rows.length ? job.others(name, rows, job.held.trials.length) : [];
    });
    return (await Promise.all(found)).flat();
  }

  const drawTables = (found, comparison, base) => {
    const letters = new Map(found.map((job) => [job.id, job.letter]));
    rows = armRows(comparison, found);
    offer(baseline, [["", "none"], ...rows.map(({ name }) => [name, name])], "");
    patch(jobs, element("h2", {}, "Jobs"), jobTable(found, remove));
    patch(results, element("div", { class: "panel-head" }, element("h2", {}, "Results"), menu), resultTable(comparison, rows, base));
    patch(differences, element("h2", {}, "Where they differ"), differenceTable(comparison, letters));
  };

  function chooser(name, label, options) {
    const change = ({ currentTarget }) => {
      chosen[name] = currentTarget.value;
      remember();
      if (shown) draw();
    };
    const select = element("select", { id: name, onchange: change }, ...options.map(([value, said]) => element("option", { value, key: value }, said)));
    select.value = chosen[name];
    return { name, select, body: element("span", { class: "choice" }, element("label", { for: name }, label), select) };
  }

  const offer = ({ name, select }, options, otherwise) => {
    patch(select, ...options.map(([value, said]) => element("option", { value, key: value }, said)));
    const wish = chosen[name];
    select.value = options.some(([value]) => value === wish) ? wish : otherwise;
  };

  function addressOf(now) {
    const asked = new URLSearchParams({ compare: written(now), ...Object.fromEntries(Object.entries(chosen).filter(([, value]) => value)) });
    return `/?${asked.toString().replaceAll("%2C", ",").replaceAll("%3A", ":")}`;
  }

  const remember = () => history.replaceState(null, "", addressOf(wanted));

  // Letters change with the jobs, so the baseline is not kept by its letter.
  function go(now) {
    chosen.baseline = "";
    location.assign(now.length ? addressOf(now) : "/");
  }

  const remove = (id) => go(wanted.filter((each) => each.id !== id));

  function adding() {
    const recent = element("datalist", { id: "recent" });
    const refused = element("p", { class: "refused", role: "alert" });
    const offerRecent = async () => {
      if (recent.childNodes.length) return;
      const { jobs: found } = await api.jobs({ limit: RECENT }).catch(() => ({ jobs: [] })); // an id can be typed all the same
      patch(recent, ...found.filter(({ id }) => !wanted.some((each) => each.id === id))
        .map(({ id, name, state }) => element("option", { value: id, key: id }, `${name}, ${state}`)));
    };
    const input = element("input", { id: "another", list: "recent", required: "", placeholder: "d0e4345149c6", autocomplete: "off", spellcheck: "false",
      onfocus: offerRecent });
    const submit = async (event) => {
      event.preventDefault();
      refused.textContent = "";
      try {
        const asked = await refsIn(input.value.trim());
        const found = await Promise.all(asked.map(({ id }) => jobsOf(id)));
        const wrong = found.findIndex((jobs) => jobs.length !== 1);
        if (wrong >= 0) refused.textContent = unclearText(asked[wrong].id, found[wrong]);
        else go([...wanted, ...asked.map(({ arms }, at) => ({ id: found[at][0].id, arms }))]);
      } catch (error) {
        refused.textContent = reason(error);
      }
    };
    return element("form", { class: "tools online", onsubmit: submit }, element("label", { for: "another" }, "Another job, by ID, its end, or name; ID:arm for an arm"), input, recent,
      element("button", { type: "submit" }, "add"), refused);
  }

  function missingTexts(found) {
    const gone = found.filter((job) => job.isGone).map(({ id, isUnread }) => (isUnread
      ? ["Another release of Wiretune has stored the job ", element("code", {}, id), ", and this one cannot read it. It is left out."]
      : ["There is no job ", element("code", {}, id), " that you may see. It may have been removed."]));
    const arms = unknownArms(found).map((name) => [`There is no arm ${name}.`]);
    const rest = wanted.slice(MOST).map((each) => ["At most ", String(MOST), " jobs are compared; left out: ", element("code", {}, each.id)]);
    return [...gone, ...arms, ...rest].map((parts) => element("p", { class: "refused" }, ...parts));
  }

  return { refresh, shows: compared.shows, missed: compared.missed };
}

// What the reader typed: one job whose name has commas or colons, or else what these separate.
async function refsIn(text) {
  const mayBeName = /[,:]/.test(text) && text.length <= LONGEST_REF;
  return mayBeName && (await jobsOf(text)).length ? [{ id: text, arms: null }] : parsed(text);
}

const unclearText = (ref, [first, ...others]) => (!first ? `There is no job ${ref} that you may see.`
  : `Several jobs go by ${ref}: ${[first, ...others].map(({ id, name }) => `${id} (${name})`).join(", ")}. Give more of the ID.`);

// A figure's label and its traces are asked for one after the other.
function once(make) {
  let made = null;
  return () => (made ??= make());
}

const titled = (metric) => metric[0].toUpperCase() + metric.slice(1);

// What the compared trials measure besides the loss.
const metricsOf = (trials) => [...new Set(trials.flatMap(({ trial }) => Object.keys(trial.metric_directions)))].filter((name) => name !== LOSS).sort();

function costsOf({ metric, isToTarget }, comparison) {
  const reached = new Map(comparison.trials.map(({ trial, seconds_to_target }) => [trial.trial_id, seconds_to_target]));
  return ({ label, arm_index, trial }) => ({ label, arm_index, isOver: trial.outcome !== null, bytes: trial.bill.bytes_sent,
    seconds: isToTarget ? reached.get(trial.trial_id) ?? null : trial.seconds,
    value: metric === LOSS ? trial.validation_loss : trial.validation_metrics[metric] ?? null });
}

const choices = (each) => each.trial.stages.map(({ learning_rate, level, values, loss }) =>
  ({ ...each, values: { learning_rate, [each.trial.level_name]: level, ...values }, loss }));
