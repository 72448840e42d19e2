// One job: its progress, curves, decisions, traffic and bill.

import * as api from "../../api.js";
import { sampleNames } from "../../charts/sweep.js";
import { element, empty, inTurn, patch, whenChanged, whenKept } from "../../dom.js";
import { isWholeId, jobsOf } from "../../finding.js";
import { isTooLong, MAX_POINTS, merged } from "../../live/snapshot.js";
import { isOver, mayStopTrials, TRAINING, trialName } from "../../states.js";
import { choices } from "./choices.js";
import { controls, mayClone, trialStop } from "./controls.js";
import { curves } from "./curves.js";
import { decisions } from "./decisions.js";
import { DRAWN, drawnChoice, drawnTrials } from "./drawn.js";
import { files } from "./files.js";
import { heading, tabTitle, waitingText } from "./heading.js";
import { heldSeries } from "./held_series.js";
import { logs } from "./logs.js";
import { ownNumbers } from "./own_numbers.js";
import { parts } from "./parts.js";
import { openSearchSteps, progressTable } from "./progress.js";
import { recordedNames } from "./recorded.js";
import { specification } from "./specification.js";
import { stageList } from "./stages.js";
import { summary } from "./summary.js";
import { sweep } from "./sweep.js";
import { armTable, billTable, crossings, notes, optionTables, unfinished } from "./tables.js";
import { timeline } from "./timeline.js";
import { wire } from "./wire.js";

// The reader's choices, with their defaults.
const CHOICES = { x: "seconds", seeds: "mean", smooth: 0, log: true, logm: false, logx: false, trial: "", belief: "mean", metric: "loss", param: "", ...DRAWN };

export function jobPage(root, id, _, ask) {
  const head = element("div", {});
  const changed = () => refresh().catch(ask);
  const actions = controls(changed);
  const section = (name) => element("section", { class: "panel wide", id: name });
  const [progress, arms, bill, waiting] = [section("progress"), section("arms"), section("bill"), element("div", {}, empty("loading …"))];
  const fetchSeries = (name) => others(name, heldTrials(held?.trials ?? [], drawn), held?.trials.length ?? 0);
  const fetchSent = () => fetchSeries("bytes_sent");
  const chosen = choices(CHOICES, (name) => (name in DRAWN ? drawPanels(held) : redraw()).catch(ask));
  const fetchNames = recordedNames(id);
  const [shown, lanes, why, traffic, stored, printed, text] = [curves(id, chosen, fetchSeries, fetchNames), timeline(id), decisions(id, chosen), wire(fetchSent), files(id), logs(id), specification()];
  const [ranked, stages, several, numbers] = [sweep(chosen), stageList(), drawnChoice(chosen), ownNumbers(chosen, fetchSeries, fetchNames)];
  const headline = summary();
  const panels = element("div", { class: "panels", hidden: "" });
  const about = element("div", { class: "panels", hidden: "" }, printed.body, lanes.history, stored.attempts, stored.body, text.body);
  const ways = parts(panels, about);
  root.replaceChildren(head, headline.body, actions.body, waiting, ways.body, panels, about);
  let held = null;
  let others = heldSeries(id); // what snapshots leave out
  let drawn = null; // the ids of the trials that charts draw; null: all
  let me = null;
  let isGone = false;

  // How far a job is comes first while it runs; once it is over, what came of it.
  const arrange = whenChanged((hasEnded) => {
    const told = [several.body, shown.loss, numbers.body, ...(hasEnded ? [] : [arms]), shown.schedule, lanes.body, stages.body, why.body, why.calibration, ...traffic.bodies];
    patch(panels, ...(hasEnded ? [...ranked.bodies, arms, bill, ...told, progress] : [progress, ...ranked.bodies, ...told, bill]));
  });
  arrange(false);

  const inOrder = inTurn(look); // a change is merged into what it is a change of
  const refresh = () => inOrder(true);
  const retitle = () => inOrder(false);

  // `isShown`: false if only the title is needed.
  async function look(isShown) {
    if (isGone) return;
    try {
      me = await api.me();
      const since = held && !isTooLong(held) ? held.cursor : null;
      const change = await api.snapshot(id, since, MAX_POINTS);
      if (change.whole) { // steps may have been taken back
        others = heldSeries(id);
        shown.forget();
      }
      held = merged(held, change);
      if (isShown && held.job.state === "queued") held = { ...held, job: { ...held.job, queue: (await api.job(id)).queue } };
    } catch (error) {
      if (error.type === api.UNREADABLE) return showUnread(await api.job(id));
      if (error.status !== 404) throw error;
      return isWholeId(id) ? showNone() : findIt();
    }
    document.title = `${tabTitle(held.job, held.trials)} – Wiretune`;
    if (!isShown) return;
    actions.body.hidden = about.hidden = false;
    patch(head, ...heading(held.job));
    actions.update(held.job, me);
    panels.hidden = headline.body.hidden = held.job.started_at === null;
    arrange(isOver(held.job));
    patch(waiting, panels.hidden ? element("div", { class: "panel" }, empty(waitingText(held.job))) : null);
    printed.update(held.job);
    text.update(held.job);
    stored.update(held.job, `${held.job.version} ${held.stages.length} ${held.trials.filter((trial) => trial.outcome !== null).length}`);
    if (panels.hidden) lanes.update([], [], held.job);
    else await drawPanels(held);
    ways.update();
  }

  // Another release stored the job; its verbs and its text work all the same.
  function showUnread(job) {
    document.title = `${job.state} · ${job.name} – Wiretune`;
    actions.body.hidden = about.hidden = false;
    stored.attempts.hidden = stored.body.hidden = panels.hidden = headline.body.hidden = true;
    patch(head, ...heading(job));
    actions.update(job, me);
    patch(waiting, element("div", { class: "panel" }, empty(waitingText(job))));
    printed.update(job);
    text.update(job);
    lanes.update([], [], job);
    ways.update();
  }

  // The address may have a part of an id, as lists show it, or a name.
  async function findIt() {
    const found = await jobsOf(id);
    if (found.length !== 1) return showNone(found);
    const address = new URL(location.href);
    address.searchParams.set("job", found[0].id);
    location.replace(address);
  }

  function showNone(several = []) {
    isGone = true;
    document.title = "No such job – Wiretune";
    patch(head, element("h1", {}, "No such job"));
    const links = several.map((job) => element("li", {}, element("a", { href: `/?job=${encodeURIComponent(job.id)}` }, job.name), ` ${job.state} `, element("code", {}, job.id)));
    patch(waiting, element("div", { class: "panel spaced" }, links.length
      ? element("div", {}, "Several jobs go by ", element("code", {}, id), ":", element("ul", {}, ...links))
      : empty("There is no job ", element("code", {}, id), " that you may see. It may have been removed. ", element("a", { href: "/" }, "All jobs"))));
    panels.hidden = headline.body.hidden = actions.body.hidden = about.hidden = true;
    ways.update();
  }

  // Unchanged parts stay the same objects, labels included, so that readers can compare by identity.
  const labelled = ["trials", "stages", "schedules", "series"].map(() => whenKept(known));
  const levelled = ["trials", "stages", "schedules"].map(() => whenKept((rows, levels) => rows.map((row) => ({ ...row, level_name: levels.get(row.trial_id) }))));
  const levelsOf = whenKept((report) => new Map(report.trials.map((trial) => [trial.trial_id, trial.level_name])));
  const costsOf = whenKept((report) => new Map(report.trials.map((trial) => [trial.trial_id, trial.cost])));
  const sweepOf = whenKept((report, plan) => {
    const labels = new Map(known(report.trials, plan).map((trial) => [trial.trial_id, trial.label]));
    return report.sweep && { ...report.sweep, ranking: report.sweep.ranking.map((each) => ({ ...each, label: labels.get(each.trial_id) })) };
  });
  const whole = whenKept((trials, stages, schedules, series, num_trials) => ({ trials, stages, schedules, series, num_trials }));
  const [idsOfLines, idsOfRows] = ["lines", "rows"].map(() => whenKept((text) => text && new Set(text.split(" "))));
  const parted = () => whenKept((rows, ids) => (ids ? rows.filter((row) => ids.has(row.trial_id)) : rows));
  const [ofLines, ofRows, ofTraffic] = [["trials", "stages", "schedules", "series"].map(parted), ["trials", "stages"].map(parted), ["lines", "rows"].map(parted)];
  const heldTrials = parted();
  const arranged = whenKept((spec) => ({ names: [...spec.arms.map((arm) => arm.name), ...sampleNames(spec)], seeds: spec.seeds }));

  async function drawPanels({ job, report, ...all }) {
    const plan = arranged(job.spec);
    const [trials, decided, schedules, series] = ["trials", "stages", "schedules", "series"].map((part, at) => labelled[at](all[part], plan));
    const levels = levelsOf(report);
    const [levelledTrials, named, planned] = [trials, decided, schedules].map((rows, at) => levelled[at](rows, levels));
    drawTables(job, levelledTrials, named, report, me);
    const chosenTrials = drawnTrials(levelledTrials, report.sweep?.ranking ?? [], chosen.held, TRAINING.includes(job.state));
    const textOf = (rows) => (rows.length < trials.length ? rows.map((row) => row.trial_id).join(" ") : null);
    drawn = idsOfLines(textOf(chosenTrials.lines));
    const rows = idsOfRows(textOf(chosenTrials.rows));
    several.update(trials, chosenTrials, plan.names.slice(job.spec.arms.length));
    const drawnParts = [levelledTrials, named, planned, series].map((each, at) => ofLines[at](each, drawn));
    const [lines, bars] = [drawn, rows].map((ids, at) => ofTraffic[at](trials, ids));
    const curved = whole(...drawnParts, trials.length);
    await Promise.all([
      shown.update(curved).then(() => numbers.update(curved)), // which needs no further request for the names
      lanes.update(...[levelledTrials, named].map((each, at) => ofRows[at](each, rows)), job),
      traffic.update(lines, drawnParts[1], drawnParts[3], job.spec.link, bars),
      why.update(known(report.trials, plan), named, TRAINING.includes(job.state), searching(job, trials, decided)),
      ranked.update(sweepOf(report, plan), plan, mayClone(me) ? id : null),
    ]);
  }

  const searching = (job, trials, stages) => new Set(TRAINING.includes(job.state)
    ? trials.filter((trial) => openSearchSteps(trial, stages) > 0).map((trial) => trial.trial_id) : []);

  const redraw = () => Promise.all([shown.show(), numbers.show(), why.show(), ranked.show()]);

  const drawTables = whenChanged((job, trials, named, report, me) => {
    const costs = costsOf(report);
    const pruned = new Set((report.sweep?.ranking ?? []).filter((each) => each.status === "pruned").map((each) => each.trial_id));
    const billed = trials.map((trial) => ({ ...trial, cost: costs.get(trial.trial_id) ?? null, isPruned: pruned.has(trial.trial_id) }));
    const phase = (trial, steps) => (trial.isPruned ? "pruned" : trial.outcome === "completed" && trial.stopped_by ? "stopped" : trial.outcome) ?? (steps && TRAINING.includes(job.state) ? `searching, ${steps} steps so far` : unfinished(trial, job));
    const stop = mayStopTrials(me, job, trials) ? (trial) => trialStop(job, trial, changed) : null;
    patch(progress, element("h2", {}, "Progress"), progressTable(billed, named, job, phase, stop));
    patch(arms, element("h2", {}, "Arms"), armTable(report), ...crossings(report), ...notes(known(report.trials, arranged(job.spec))));
    headline.update(report, trials, named);
    stages.update(named, job);
    patch(bill, element("h2", {}, "Bill"), billTable(billed, job, report.prices), ...optionTables(billed));
  });

  // Other jobs change its place in the queue.
  const ages = () => held?.job.state === "queued" && !isGone;

  // The user who is signed in now may be allowed to see it.
  const missed = () => { isGone = false; };

  return { refresh, retitle, shows: (job) => job === id, ages, missed };
}

// Rows with an arm and a seed, extended by the name and colour of their trial.
function known(rows, plan) {
  return rows.map((each) => ({
    ...each,
    label: trialName(each.arm, each.seed, plan),
    arm_index: plan.names.indexOf(each.arm),
    is_first_seed: each.seed === plan.seeds[0],
    seed_index: Math.max(0, plan.seeds.indexOf(each.seed)),
  }));
}
