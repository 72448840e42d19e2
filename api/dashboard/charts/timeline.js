// When each trial searched, trained, and was disturbed: lanes on the training clock.

import { besides, duration, loss, number, timeAxis } from "../units.js";

// Kinds of blocks in the order of the legend: what they are called, and their two shades.
const BLOCKS = {
  search: ["search", "#8a8f98"], ok: ["probe", "#2f6fd0"], kept: ["probe whose steps were kept", "#0f8b8d"], too_short: ["probe too short to judge", "#9db4d6"],
  diverged: ["probe that diverged", "#c2395b"], commit: ["commit", "#2a8f56"], open: ["commit under way", "#7fc49b"], back: ["commit that was rolled back", "#d1661c"],
};
const EVENTS = {
  divergence: ["diverged", "x", "#c2395b"], rollback: ["rolled back", "triangle-left", "#d1661c"], repair: ["workers replaced or away", "diamond", "#a24bb8"],
  attempt: ["attempt began", "triangle-up", "#2f6fd0"], pause: ["paused, lost or stopped", "square", "#6b6f76"],
};
const THICK = 20; // pixels of a commit, which fills its lane
const LANE = 0.3; // half of a lane's height that blocks may take

// Probes and commits of every trial: {trial_id, kind, from, to, stage, text}, seconds on its training clock.
export function blocksOf(trials, stages) {
  return trials.flatMap((trial) => {
    let opened = 0;
    return stages.filter((stage) => stage.trial_id === trial.trial_id).flatMap((stage) => {
      const searched = opened + stage.search_seconds;
      const ends = stage.closed && stage.bill ? stage.bill.seconds_training : Math.max(searched, trial.seconds);
      const kind = !stage.closed ? "open" : stage.num_steps === 0 ? "back" : "commit";
      const made = [...searchBlocks(trial, stage, opened, searched),
        { trial_id: trial.trial_id, kind, from: Math.min(searched, ends), to: ends, stage: stage.stage, lane: null,
          text: `commit of ${stage.num_steps ?? trial.step - stage.first_step} steps, learning rate ${number(stage.learning_rate)}` }];
      opened = ends;
      return made;
    });
  });
}

// Each probe where it was measured to end; what earlier releases have not written down is one block.
function searchBlocks(trial, stage, from, to) {
  const common = { trial_id: trial.trial_id, stage: stage.stage };
  if (stage.probes.some((probe) => probe.ended_s === null)) {
    return to > from ? [{ ...common, kind: "search", from, to, lane: null, text: `search of ${stage.probes.length} probes` }] : [];
  }
  const ends = []; // of each row of probes that ran side by side
  return stage.probes.map((probe) => ({ probe, from: probe.ended_s - probe.seconds, to: probe.ended_s }))
    .sort((one, other) => one.from - other.from).map((block) => {
      const free = ends.findIndex((end) => end <= block.from + 1e-3 * (block.to - block.from) + 1e-3);
      const lane = free < 0 ? ends.length : free;
      ends[lane] = block.to;
      const { probe } = block;
      const isKept = probe.probe_id === stage.promoted;
      const more = besides(probe.values);
      return { ...common, kind: isKept ? "kept" : BLOCKS[probe.status] ? probe.status : "too_short", from: block.from, to: block.to, lane,
        text: `probe ${number(probe.learning_rate)}${more ? `, ${more}` : ""}: ${probe.loss === null ? "diverged" : `loss ${loss(probe.loss)}`}` };
    });
}

// What disturbed the trials: {trial_id, kind, at, text}, seconds on the training clock; `told` are events of the API.
export function marksOf(trials, stages, told) {
  const marks = [];
  for (const stage of stages) {
    if (stage.num_steps === 0 && stage.bill) {
      marks.push({ trial_id: stage.trial_id, kind: "rollback", at: stage.bill.seconds_training, text: `stage ${stage.stage} was rolled back to step ${stage.first_step}` });
    }
  }
  for (const trial of trials) {
    if (trial.outcome === "diverged") marks.push({ trial_id: trial.trial_id, kind: "divergence", at: trial.seconds,
      text: trial.divergence ? `diverged at step ${trial.divergence.step}, learning rate ${number(trial.divergence.learning_rate)}` : "diverged" });
  }
  for (const { kind, data } of told) {
    if (kind === "repair") marks.push({ trial_id: data.trial_id, kind, at: data.seconds, text: repairText(data) });
    if (kind !== "job") continue;
    for (const [trial_id, at] of Object.entries(data.clocks ?? {})) {
      if (data.state === "starting") marks.push({ trial_id, kind: "attempt", at, text: `attempt ${data.attempt} began` });
      if (["paused", "queued", "stopping", "cancelled", "failed"].includes(data.state)) {
        marks.push({ trial_id, kind: "pause", at, text: `the job was ${data.state}${data.reason ? `: ${data.reason}` : ""}` });
      }
    }
  }
  return marks;
}

function repairText({ repairs, absences }) {
  const away = Object.entries(absences ?? {}).filter(([, missed]) => missed).map(([rank, missed]) => `worker ${rank} missed ${missed}`);
  return [`${repairs} ${repairs === 1 ? "repair" : "repairs"} so far`, ...away].join(", ");
}

// A lane per trial, the first on top; each kind of block is one path, so that hundreds of stages stay quick.
export function timelineChart(trials, stages, told) {
  const [blocks, marks] = [blocksOf(trials, stages), marksOf(trials, stages, told)];
  const labels = new Map(trials.map((trial, at) => [trial.trial_id, { label: trial.label, at }]));
  const { unit, per } = timeAxis(Math.max(0, ...blocks.map((block) => block.to), ...marks.map((mark) => mark.at)));
  const rows = new Map(); // how many rows of probes a trial has
  for (const block of blocks) rows.set(block.trial_id, Math.max(rows.get(block.trial_id) ?? 1, (block.lane ?? 0) + 1));
  const height = ({ trial_id, lane }) => labels.get(trial_id).at + (lane === null ? 0 : (2 * LANE * (lane + 0.5)) / rows.get(trial_id) - LANE);
  const most = Math.max(1, ...rows.values());
  const width = (kind) => (["commit", "open", "back", "search"].includes(kind) ? THICK : Math.max(2, THICK / most));
  const place = { height, per, unit, width };
  return {
    traces: [...Object.keys(BLOCKS).flatMap((kind) => blockTraces(kind, blocks, place)),
      ...Object.keys(EVENTS).flatMap((kind) => markTraces(kind, marks, labels, place))],
    layout: { height: 150 + 34 * trials.length, hovermode: "closest", xaxis: { title: { text: `training clock, ${unit}` }, rangemode: "tozero" },
      yaxis: { tickvals: trials.map((_, at) => at), ticktext: trials.map((trial) => short(trial.label)), range: [trials.length - 0.5, -0.5], zeroline: false, showgrid: false } },
    label: `${blocks.length} blocks, ${marks.length} events`,
    columns: [["trial", (row) => labels.get(row.trial_id).label, "name"], ["stage", (row) => String(row.stage ?? "–"), "number"],
      ["what", (row) => (BLOCKS[row.kind] ?? EVENTS[row.kind])[0], ""], ["from", (row) => duration(row.from ?? row.at), "number"],
      ["took", (row) => (row.from === undefined ? "–" : duration(row.to - row.from)), "number"], ["more", (row) => row.text, "text"]],
    rows: [...blocks, ...marks].sort((one, other) => labels.get(one.trial_id).at - labels.get(other.trial_id).at
      || (one.from ?? one.at) - (other.from ?? other.at)),
  };
}

const short = (label) => (label.length > 22 ? `${label.slice(0, 14)}…${label.slice(-7)}` : label);

// Neighbours have two shades: they are seen apart.
function blockTraces(kind, blocks, { height, per, unit, width }) {
  const found = blocks.filter((block) => block.kind === kind);
  const [name, color] = BLOCKS[kind];
  return [0, 1].map((parity) => found.filter((_, at) => at % 2 === parity)).filter((some) => some.length).map((some, at) => ({
    type: "scatter", mode: "lines", name, legendgroup: kind, showlegend: at === 0, line: { color, width: width(kind) }, opacity: at ? 0.72 : 1, connectgaps: false,
    x: some.flatMap((block) => [block.from / per, (block.from + block.to) / 2 / per, block.to / per, null]),
    y: some.flatMap((block) => [height(block), height(block), height(block), null]),
    text: some.flatMap((block) => Array(4).fill(`stage ${block.stage}: ${block.text}, ${duration(block.to - block.from)}`)),
    hovertemplate: `%{text}<br>at %{x:.4~g} ${unit}<extra></extra>`,
  }));
}

function markTraces(kind, marks, labels, { per, unit }) {
  const found = marks.filter((mark) => mark.kind === kind && labels.has(mark.trial_id));
  const [name, symbol, color] = EVENTS[kind];
  if (!found.length) return [];
  return [{ type: "scatter", mode: "markers", name, marker: { symbol, size: 11, color, line: { color: "#ffffff", width: 1 } },
    x: found.map((mark) => mark.at / per), y: found.map((mark) => labels.get(mark.trial_id).at - LANE - 0.08), text: found.map((mark) => mark.text),
    hovertemplate: `%{text}<br>at %{x:.4~g} ${unit}<extra></extra>` }];
}
