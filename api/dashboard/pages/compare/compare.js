// Several jobs, or arms of them, side by side: "/?compare=ID,ID:arm&axis=bytes&smooth=0.03&baseline=A tuned".

import { overlaidLosses, overlaidSchedules } from "../../charts/overlay.js";
import { panel } from "../../charts/panel.js";
import { parallelChart } from "../../charts/parallel.js";
import { paretoChart } from "../../charts/pareto.js";
import * as api from "../../api.js";
import { reason } from "../../dialog.js";
import { element, empty, inTurn, patch } from "../../dom.js";
import { isWholeId, jobsOf } from "../../finding.js";
import { comparedJobs, comparedTrials, MOST, parsed, unknownArms, written } from "./jobs.js";
import { armRows, differenceTable, jobTable, resultMenu, resultTable } from "./tables.js";

const RECENT = 20; // jobs that are offered
const AXES = [["seconds", "seconds"], ["steps", "steps"], ["bytes", "bytes"]];
const SMOOTHING = [["0", "none"], ["0.01", "1 % of the steps"], ["0.03", "3 %"], ["0.1", "10 %"]];

export function comparePage(root, text, query) {
  const wanted = parsed(text);
  const compared = comparedJobs(wanted);
  const known = (choices, name, otherwise) => (choices.some(([value]) => value === query.get(name)) ? query.get(name) : otherwise);
  const chosen = { axis: known(AXES, "axis", "seconds"), smooth: known(SMOOTHING, "smooth", "0.03"), baseline: query.get("baseline") ?? "" };
  const section = () => element("section", { class: "panel wide" });
  const [jobs, results, differences, missing, waiting] = [section(), section(), section(), element("div", {}), element("div", {}, empty("loading …"))];
  const [curves, schedules, pareto, parallel] = [panel("Loss of all jobs", "wide"), panel("Learned schedules of all jobs", "wide"),
    panel("Loss against its cost", "wide"), panel("Chosen values, stage by stage", "wide")];
  const baseline = chooser("baseline", "Baseline", [["", "none"]]);
  const tools = element("div", { class: "tools" }, chooser("axis", "Along", AXES).body, chooser("smooth", "Smoothing", SMOOTHING).body,
    baseline.body);
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
    const of = (name) => trials.flatMap((each) => each.series.filter((series) => series.name === name).map((series) => ({ ...each, ...series, arm: each.arm })));
    const [axis, smoothing] = [chosen.axis, Number(chosen.smooth)];
    await Promise.all([
      curves.draw(once(() => overlaidLosses(of("loss"), of("validation_loss"), { axis, smoothing }))),
      schedules.draw(once(() => overlaidSchedules(trials.flatMap((each) => each.schedules.map((schedule) => ({ ...each, ...schedule, arm: each.arm })))))),
      pareto.draw(once(() => paretoChart(trials.map(costs)))),
      parallel.draw(once(() => parallelChart(trials.flatMap(choices)))),
    ]);
  }

  const drawTables = (found, comparison, base) => {
    const letters = new Map(found.map((job) => [job.id, job.letter]));
    rows = armRows(comparison, found);
    offer(rows.map((row) => row.name));
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
    return { select, body: element("span", { class: "choice" }, element("label", { for: name }, label), select) };
  }

  const offer = (names) => {
    const { select } = baseline;
    patch(select, ...[["", "none"], ...names.map((name) => [name, name])].map(([value, said]) => element("option", { value, key: value }, said)));
    select.value = names.includes(chosen.baseline) ? chosen.baseline : "";
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
        const asked = parsed(input.value);
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

const unclearText = (ref, [first, ...others]) => (!first ? `There is no job ${ref} that you may see.`
  : `Several jobs go by ${ref}: ${[first, ...others].map(({ id, name }) => `${id} (${name})`).join(", ")}. Give more of the ID.`);

// A figure's label and its traces are asked for one after the other.
function once(make) {
  let made = null;
  return () => (made ??= make());
}

const costs = ({ label, arm_index, trial }) => ({ label, arm_index, isOver: trial.outcome !== null, loss: trial.validation_loss,
  bytes: trial.bill.bytes_sent, seconds: trial.seconds });

const choices = (each) => each.trial.stages.map(({ stage, learning_rate, level, values, loss }) =>
  ({ ...each, stage, values: { learning_rate, level, ...values }, loss }));
