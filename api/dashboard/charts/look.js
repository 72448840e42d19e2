// The look of all charts: one colour and dash per arm, and readable axes.

export const COLOURS = ["#2f6fd0", "#d1661c", "#2a8f56", "#a24bb8", "#b8860b", "#c2395b", "#0f8b8d", "#6b6f76"];
// Of charts one below the other: room for the labels of any axis, so that all begin at one place.
export const ALIGNED = { l: 75, r: 15, t: 10, b: 45 };
const MOST_MARKS = 200;
const DASHES = ["solid", "dash", "dot", "dashdot"];

export const colour = (index) => COLOURS[index % COLOURS.length];
// The second eight arms repeat the colours with other dashes, so that 32 arms differ.
const dash = (index) => DASHES[(index + Math.floor(index / COLOURS.length)) % DASHES.length];

// The user's own schedule, trained on a spare lane, as an arm beside that of its search.
export const asOwnSchedule = (each) => ({ ...each, arm: `${each.arm}, own schedule`, label: `${each.label}, own schedule` });

// One colour per arm. Its seeds, where each is a line, differ by their dashes.
export const look = (each, width, seed = 0) => ({ color: colour(each.arm_index), width, dash: dash(each.arm_index + seed) });
// Lines of several seeds go by these groups, each with a legend entry of its own: that of the trial, unless several share it.
export const lookedAlike = (each) => `${each.arm} ${(each.seed_index ?? 0) % DASHES.length}`;
export function named(first, lines) {
  const alike = new Set(lines.filter((each) => lookedAlike(each) === lookedAlike(first)).map((each) => each.label));
  return { name: alike.size > 1 ? first.arm : first.label, legendgroup: lookedAlike(first) };
}
export const entry = (each, shown) => ({ name: each.arm, legendgroup: each.arm, showlegend: shown && each.is_first_seed });

// The rate of an entry's last step. If the run left the entry early, its linear piece would have had more steps.
export function lastRate(entry) {
  const last = (entry.piece_steps ?? entry.num_steps) - 1;
  if (entry.final_learning_rate === null || last <= 0) return entry.learning_rate;
  return entry.learning_rate + (entry.final_learning_rate - entry.learning_rate) * (entry.num_steps - 1) / last;
}

// Ticks as fine as the range needs, with units: plotly's own crowd a short axis with bare digits. Linear if a value is 0 or
// below, which a logarithmic axis cannot show.
export function logAxis(values, write) {
  if (values.some((value) => value !== null && value <= 0)) return {};
  let [least, most] = [Infinity, 0];
  for (const value of values) if (value > 0) [least, most] = [Math.min(least, value), Math.max(most, value)];
  if (!most) return { type: "log" };
  const decades = Math.log10(most / least);
  // A narrow range may have no tick in sight, and a wide one lines on its edge. A fixed range would not follow new points.
  const margin = 10 ** (decades <= 0.1 ? 0.5 : 0.06 * decades);
  const [low, high] = [least / margin, most * margin];
  const ticks = decades > 0.7 ? decadeTicks(least, most, leadsOf(decades), write) : ticksOf(low, high, write);
  return { type: "log", ...ticks, write, autorangeoptions: { include: [low, high] } };
}

// Ticks of a logarithmic axis, or of its zoomed part: at least two, however narrow it is.
export function ticksOf(low, high, write) {
  const decades = Math.log10(high / low);
  if (decades > 0.7) return decadeTicks(low, high, leadsOf(decades), write);
  const gap = (high - low) / 5;
  const power = Math.floor(Math.log10(gap));
  const step = Number(`${[1, 2, 5].find((lead) => lead * 10 ** power >= gap) ?? 10}e${power}`);
  const first = Math.ceil(low / step);
  const tickvals = Array.from({ length: Math.floor(high / step) - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
  const digits = Math.floor(Math.log10(high)) - power + 1; // as many as tell two neighbours apart
  return { tickvals, ticktext: tickvals.map((value) => write(value, digits)) };
}

const leadsOf = (decades) => (decades > 2 ? [1] : [1, 2, 5]);

// The `leads` in every power of ten within the range.
function decadeTicks(low, high, leads, write) {
  const first = Math.floor(Math.log10(low));
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, at) => first + at);
  const tickvals = powers.flatMap((power) => leads.map((lead) => Number(`${lead}e${power}`)));
  return { tickvals, ticktext: tickvals.map((value) => write(value)) };
}

// Rows by key: Map.groupBy, which browsers of 2023 lack.
export function grouped(rows, keyOf) {
  const groups = new Map();
  for (const row of rows) {
    const key = keyOf(row);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return groups;
}

// Lines of one look as a single line with gaps: forty then cost as much as one. Each has {x, y} and a label, which becomes
// the text of its points. `more` are names of further values of each point.
export function joined(lines, looks, more = []) {
  const apart = (group, of) => group.flatMap((line, at) => (at ? [null, ...of(line)] : of(line)));
  return [...grouped(lines, looks).values()].map((group) => ({
    first: group[0], x: apart(group, (line) => line.x), y: apart(group, (line) => line.y), text: apart(group, (line) => line.x.map(() => line.label)),
    ...Object.fromEntries(more.map((name) => [name, apart(group, (line) => line[name])])),
  }));
}

// Lines of few points get marks. Each mark is an element, so thousands would be slow.
export const marked = (points) => (points.length > MOST_MARKS ? "lines" : "lines+markers");

// Where a stage that kept no steps went back to: its start, or the run's, if the run started over then or later.
export function rolledBack(stage, stages) {
  const later = stages.filter((each) => each.trial_id === stage.trial_id && each.stage >= stage.stage);
  return `stage ${stage.stage} was rolled back to step ${Math.min(...later.map((each) => each.first_step))}`;
}

export const shortened = (label) => (label.length > 26 ? `${label.slice(0, 17)}…${label.slice(-8)}` : label);

// A bar per trial, the first on top, and many of them thinner; charts side by side have one height.
export const tall = (trials) => Math.max(220, 120 + (trials.length > 16 ? 22 : 40) * trials.length);

export function barAxis(trials) {
  const labels = trials.map((trial) => trial.label);
  return { type: "category", autorange: "reversed", tickvals: labels, ticktext: labels.map(shortened) };
}

// The same colour, made transparent.
export function tint(hex, opacity) {
  const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${opacity})`;
}
