// When each trial searched, trained and was disturbed: lanes on the training clock.

import { besides, duration, figures, loss, number, timeAxis } from "../units.js";
import { grouped, rolledBack } from "./look.js";

// Kinds of blocks in the order of the legend: name and two shades.
const BLOCKS = {
  search: ["search", "#8a8f98"], ok: ["probe", "#2f6fd0"], kept: ["probe whose steps were kept", "#0f8b8d"], too_short: ["probe too short to judge", "#9db4d6"],
  diverged: ["probe that diverged", "#c2395b"], commit: ["commit", "#2a8f56"], open: ["commit under way", "#7fc49b"], back: ["commit that was rolled back", "#d1661c"],
};
const EVENTS = {
  divergence: ["diverged", "x", "#c2395b"], rollback: ["rolled back", "triangle-left", "#d1661c"], repair: ["workers replaced or away", "diamond", "#a24bb8"],
  attempt: ["attempt began", "triangle-up", "#2f6fd0"], pause: ["paused, lost or stopped", "square", "#6b6f76"],
};
const ROW = 17; // pixels of a worker's row
const FILLED = 0.6; // of a row's height, by its blocks

// Probes and commits of every trial: {trial_id, kind, from, to, stage, lane, worker, text}, in seconds on its training
// clock. Without a lane the block spans all lanes of the trial; without a worker, all workers of the lane.
export function blocksOf(trials, stages) {
  const own = grouped(stages, (stage) => stage.trial_id);
  return trials.flatMap((trial) => {
    let opened = 0;
    return (own.get(trial.trial_id) ?? []).flatMap((stage) => {
      const searched = opened + stage.search_seconds;
      const ends = stage.closed && stage.bill ? stage.bill.seconds_training : Math.max(searched, trial.seconds);
      const kind = !stage.closed ? "open" : stage.num_steps === 0 ? "back" : "commit";
      const made = [...searchBlocks(trial, stage, opened, searched),
        { trial_id: trial.trial_id, kind, from: Math.min(searched, ends), to: ends, stage: stage.stage, lane: null, worker: null,
          text: `commit of ${stage.num_steps ?? trial.step - stage.first_step} steps, learning rate ${number(stage.learning_rate)}` }];
      opened = ends;
      return made;
    });
  });
}

// Each probe at its measured time. A search without times, from an earlier release, is one block.
function searchBlocks(trial, stage, from, to) {
  const common = { trial_id: trial.trial_id, stage: stage.stage };
  if (stage.probes.some((probe) => probe.ended_s === null)) {
    return to > from ? [{ ...common, kind: "search", from, to, lane: null, worker: null, text: `search of ${stage.probes.length} probes` }] : [];
  }
  const ends = []; // of each lane
  return rounds(stage.probes).flatMap((round) => {
    const [from, to] = [beganAt(round[0]), round[0].ended_s];
    const free = ends.findIndex((end) => end <= from + 1e-3 * (to - from) + 1e-3);
    const lane = free < 0 ? ends.length : free;
    ends[lane] = to;
    return round.map((probe, at) => ({ ...common, kind: kindOf(probe, stage), from: beganAt(probe), to, lane, worker: round.length > 1 ? at : null,
      text: probeText(probe) + (round.length > 1 ? `, by worker ${at} alone` : "") }));
  });
}

const beganAt = (probe) => probe.ended_s - probe.seconds;
const kindOf = ({ probe_id, status }, { promoted }) => (probe_id === promoted ? "kept" : BLOCKS[status] ? status : "too_short");

// Probes that the workers of a lane trained individually share one end; sorted by their beginning.
function rounds(probes) {
  return [...grouped(probes, (probe) => probe.ended_s).values()].sort(([one], [other]) => beganAt(one) - beganAt(other));
}

function probeText(probe) {
  const more = besides(probe.values);
  return `probe ${number(probe.learning_rate)}${more ? `, ${more}` : ""}: ${probe.loss === null ? "diverged" : `loss ${loss(probe.loss)}`}`;
}

// Disturbances of the trials: {trial_id, kind, at, text}, in seconds on the training clock; `told` are events of the API.
export function marksOf(trials, stages, told) {
  const marks = [];
  for (const stage of stages) {
    if (stage.num_steps === 0 && stage.bill) {
      marks.push({ trial_id: stage.trial_id, kind: "rollback", at: stage.bill.seconds_training, text: rolledBack(stage, stages) });
    }
  }
  for (const trial of trials) {
    if (trial.outcome === "diverged") marks.push({ trial_id: trial.trial_id, kind: "divergence", at: trial.seconds,
      text: trial.divergence ? `diverged at step ${trial.divergence.step}, learning rate ${number(trial.divergence.learning_rate)}` : "diverged" });
  }
  const states = told.filter(({ kind }) => kind === "job").map(({ data }) => data);
  for (const [nth, data] of states.entries()) {
    const before = states[nth - 1];
    if (before?.state === data.state && before.attempt === data.attempt) continue; // an edit, a steer, another reason to wait
    for (const [trial_id, at] of Object.entries(data.clocks ?? {})) {
      if (data.state === "starting") marks.push({ trial_id, kind: "attempt", at, text: `attempt ${data.attempt} began` });
      if (["paused", "queued", "stopping", "cancelled", "failed"].includes(data.state)) {
        marks.push({ trial_id, kind: "pause", at, text: `the job was ${data.state}${data.reason ? `: ${data.reason}` : ""}` });
      }
    }
  }
  return [...marks, ...repairMarks(told)];
}

// Merges disturbances that differ only in absences: the beginning of the first, the text of the last.
function repairMarks(told) {
  const found = new Map();
  for (const { data } of told.filter(({ kind }) => kind === "repair")) {
    const key = `${data.trial_id} ${data.repairs}`;
    const at = found.get(key)?.at ?? data.seconds;
    found.set(key, { trial_id: data.trial_id, kind: "repair", at, text: repairText(data, at) });
  }
  return [...found.values()];
}

function repairText({ repairs, absences, seconds }, began) {
  const away = Object.entries(absences ?? {}).filter(([, missed]) => missed).map(([rank, missed]) => `worker ${rank} missed ${missed}`);
  return [`${repairs} ${repairs === 1 ? "repair" : "repairs"} so far`, ...away, ...(seconds > began ? [`until ${duration(seconds)}`] : [])].join(", ");
}

// The rows of each trial, one per worker of each lane with individual probes, and their names.
function placesOf(trials, blocks) {
  const own = grouped(blocks, (block) => block.trial_id);
  const most = (trial, field) => (own.get(trial.trial_id) ?? []).reduce((found, block) => Math.max(found, (block[field] ?? 0) + 1), 1);
  let end = 0;
  return new Map(trials.map((trial) => {
    const [lanes, workers] = [most(trial, "lane"), most(trial, "worker")];
    const size = Math.max(2, lanes * workers);
    const names = Array.from({ length: lanes * workers }, (_, at) => [lanes > 1 ? `lane ${Math.floor(at / workers) + 1}` : "", workers > 1 ? `worker ${at % workers}` : ""]
      .filter((name) => name !== "").join(" "));
    end += size;
    return [trial.trial_id, { label: trial.label, at: end, top: end - size, size, lanes, workers, names }];
  }));
}

// The middle of a block, and its share of the trial's height.
function rowOf({ lane, worker }, { top, size, lanes, workers }) {
  if (lane === null) return { y: top + size / 2, part: size };
  const of = size / lanes;
  return worker === null ? { y: top + of * (lane + 0.5), part: of } : { y: top + of * lane + (of / workers) * (worker + 0.5), part: of / workers };
}

// The first trial is on top. Each kind of block is one path, so that hundreds of stages stay fast.
export function timelineChart(trials, stages, told) {
  const isDrawn = new Set(trials.map((trial) => trial.trial_id));
  const [blocks, marks] = [blocksOf(trials, stages), marksOf(trials, stages, told).filter((mark) => isDrawn.has(mark.trial_id))];
  const places = placesOf(trials, blocks);
  const { unit, per } = timeAxis(Math.max(0, ...blocks.map((block) => block.to), ...marks.map((mark) => mark.at)));
  const rows = [...places.values()].flatMap(({ label, top, size, names }) => names.map((name, at) => ({
    y: top + (size / names.length) * (at + 0.5), text: [at ? "" : short(label), name].filter((each) => each !== "").join(", ") })));
  const end = [...places.values()].at(-1)?.at ?? 0;
  return {
    traces: [...Object.keys(BLOCKS).flatMap((kind) => blockTraces(kind, blocks, { places, per, unit })),
      ...Object.keys(EVENTS).flatMap((kind) => markTraces(kind, marks, { places, per, unit }))],
    layout: { height: 150 + ROW * end, hovermode: "closest", uirevision: unit, xaxis: { title: { text: `training clock, ${unit}` }, rangemode: "tozero" },
      yaxis: { tickvals: rows.map((row) => row.y), ticktext: rows.map((row) => row.text), range: [end, 0], zeroline: false, showgrid: false } },
    label: `${blocks.length} blocks, ${marks.length} events`,
    columns: [["trial", (row) => places.get(row.trial_id).label, "name"], figures("stage", (row) => row.stage, number),
      ["what", (row) => (BLOCKS[row.kind] ?? EVENTS[row.kind])[0], ""], figures("from", (row) => row.from ?? row.at, duration),
      figures("took", (row) => (row.from === undefined ? null : row.to - row.from), duration), ["more", (row) => row.text, "text"]],
    rows: [...blocks, ...marks].sort((one, other) => places.get(one.trial_id).at - places.get(other.trial_id).at
      || (one.from ?? one.at) - (other.from ?? other.at)),
  };
}

const short = (label) => (label.length > 22 ? `${label.slice(0, 14)}…${label.slice(-7)}` : label);

// Neighbours alternate between two shades, to tell them apart. All lines have one width.
function blockTraces(kind, blocks, { places, per, unit }) {
  const [name, color] = BLOCKS[kind];
  const placed = blocks.filter((block) => block.kind === kind)
    .map((block, at) => ({ ...block, ...rowOf(block, places.get(block.trial_id)), opacity: at % 2 ? 0.72 : 1 }));
  return [...grouped(placed, ({ opacity, part }) => `${opacity} ${part}`).values()].map((some, at) => ({
    type: "scatter", mode: "lines", name, legendgroup: kind, showlegend: at === 0, opacity: some[0].opacity, connectgaps: false,
    line: { color, width: Math.max(2, FILLED * ROW * some[0].part) },
    x: some.flatMap((block) => [block.from / per, (block.from + block.to) / 2 / per, block.to / per, null]),
    y: some.flatMap(({ y }) => [y, y, y, null]),
    text: some.flatMap((block) => Array(4).fill(`stage ${block.stage}: ${block.text}, ${duration(block.to - block.from)}`)),
    hovertemplate: `%{text}<br>at %{x:.4~g} ${unit}<extra></extra>`,
  }));
}

function markTraces(kind, marks, { places, per, unit }) {
  const found = marks.filter((mark) => mark.kind === kind && places.has(mark.trial_id));
  const [name, symbol, color] = EVENTS[kind];
  if (!found.length) return [];
  const edge = ({ top, size }) => top + 0.1 * size;
  return [{ type: "scatter", mode: "markers", name, marker: { symbol, size: 11, color, line: { color: "#ffffff", width: 1 } },
    x: found.map((mark) => mark.at / per), y: found.map((mark) => edge(places.get(mark.trial_id))), text: found.map((mark) => mark.text),
    hovertemplate: `%{text}<br>at %{x:.4~g} ${unit}<extra></extra>` }];
}
