// The compared jobs: their ids, letters, and current data; `others` gives the series that snapshots leave out.

import * as api from "../../api.js";
import { sampleNames } from "../../charts/sweep.js";
import { isTooLong, MAX_POINTS, merged } from "../../live/snapshot.js";
import { trialName } from "../../states.js";
import { heldSeries } from "../job/held_series.js";

export const MOST = 26; // a letter for each
const WHOLE_LOOK_MS = 30000;

// "ID,ID:arm,ID:other": an id may come again with another arm; without an arm it stands for all arms.
export function parsed(text) {
  const wanted = new Map();
  for (const part of text.split(",").map((each) => each.trim()).filter(Boolean)) {
    const [id, arm = null] = part.split(/:(.*)/s);
    const arms = wanted.get(id);
    wanted.set(id, arms === null || arm === null ? null : [...(arms ?? []), arm]);
  }
  return [...wanted].map(([id, arms]) => ({ id, arms }));
}

export const written = (wanted) =>
  wanted.flatMap(({ id, arms }) => (arms === null ? [id] : arms.map((arm) => `${id}:${arm}`))).join(",");

// Fetches the changes: one request per job, and one for what concerns all of them.
export function comparedJobs(wanted) {
  const jobs = wanted.slice(0, MOST).map((each, at) => ({ ...each, letter: String.fromCharCode(65 + at), held: null, isGone: false, isUnread: false }));
  const changed = new Set();
  let comparison = null;
  let wholeLookAt = -Infinity;
  let isNew = false; // something was merged that nobody has been given; it stays so if a look fails
  let isStale = false; // the comparison is of earlier results

  async function look() {
    const isWhole = !changed.size || performance.now() - wholeLookAt > WHOLE_LOOK_MS;
    const due = jobs.filter((job) => !job.isGone && (isWhole || changed.has(job.id)));
    if (isWhole) wholeLookAt = performance.now();
    changed.clear();
    await Promise.all(due.map(lookAt)).catch((error) => {
      wholeLookAt = -Infinity; // or else what was not heard of is never asked for again
      throw error;
    });
    const known = jobs.filter((job) => !job.isGone).map((job) => job.id);
    if (known.length && isStale) comparison = await api.comparison(known).catch(unlessGone);
    const found = { jobs, comparison: known.length ? comparison : null, isNew };
    isNew = isStale = false;
    return found;
  }

  async function lookAt(job) {
    try {
      const since = job.held && !isTooLong(job.held) ? job.held.cursor : null;
      const change = await api.snapshot(job.id, since, MAX_POINTS);
      if (change.whole) job.others = heldSeries(job.id); // steps may have been taken back
      job.held = merged(job.held, change);
      isStale ||= Boolean(change.report || change.job);
      isNew ||= isStale || change.trials.length > 0 || change.series.length > 0;
    } catch (error) {
      if (!isAbsent(error)) throw error;
      job.isUnread = error.type === api.UNREADABLE;
      job.isGone = isNew = isStale = true;
    }
  }

  // A job was deleted: its own snapshot says so.
  function unlessGone(error) {
    wholeLookAt = -Infinity;
    if (!isAbsent(error)) throw error;
    return comparison;
  }

  const shows = (id) => {
    const isOurs = jobs.some((job) => job.id === id);
    if (isOurs) changed.add(id);
    return isOurs;
  };

  // The user who is signed in now may be allowed to see more.
  const missed = () => {
    wholeLookAt = -Infinity;
    for (const job of jobs) job.isGone = false;
  };

  return { look, shows, missed };
}

const isAbsent = ({ status, type }) => status === 404 || type === api.UNREADABLE;

const namesOf = (spec) => [...spec.arms.map((arm) => arm.name), ...sampleNames(spec)];

// The compared arms and samples of a job: the requested ones, or else all arms, the best sample, and the samples on the
// sweep's front. A sweep may have hundreds of samples.
export function comparedNames({ arms, held }) {
  const samples = (held.report?.sweep?.ranking ?? []).filter((each) => each.sample !== null && each.value !== null);
  const best = samples.filter((each, at) => at === 0 || each.on_front).map((each) => each.arm);
  const wanted = arms ?? [...held.job.spec.arms.map((arm) => arm.name), ...best];
  return namesOf(held.job.spec).filter((name) => wanted.includes(name));
}

// The compared trials, each with a name, a colour, and its part of the job's snapshot.
export function comparedTrials(jobs) {
  const shown = jobs.filter((job) => job.held && !job.isGone).flatMap((job) => comparedNames(job).map((name) => ({ ...job, name })));
  const isSample = ({ held, name }) => !held.job.spec.arms.some((arm) => arm.name === name);
  const coloured = shown.toSorted((one, other) => isSample(one) - isSample(other)); // another best sample: arms keep their colours
  return shown.flatMap((one) => {
    const { id, letter, name, held } = one;
    const { spec } = held.job;
    const arm = `${letter} ${name}`;
    const levelOf = (id) => held.report?.trials.find((each) => each.trial_id === id)?.level_name ?? "level";
    return held.trials.filter((each) => each.arm === name).map((trial) => {
      const of = (rows) => rows.filter((row) => row.trial_id === trial.trial_id);
      return { job: id, trial: { ...trial, level_name: levelOf(trial.trial_id), stages: of(held.stages) }, arm, arm_index: coloured.indexOf(one), is_first_seed: trial.seed === spec.seeds[0],
        seed_index: Math.max(0, spec.seeds.indexOf(trial.seed)), label: trialName(arm, trial.seed, spec), series: of(held.series), schedules: of(held.schedules) };
    });
  });
}

export const unknownArms = (jobs) => jobs.filter((job) => job.held && job.arms)
  .flatMap(({ letter, arms, held }) => arms.filter((name) => !namesOf(held.job.spec).includes(name)).map((name) => `${letter} ${name}`));
