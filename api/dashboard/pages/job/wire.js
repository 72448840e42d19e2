// The job's traffic: its purposes, its speed, the time that training waited for it, and its densities.

import { bytesChart } from "../../charts/bytes.js";
import { panel } from "../../charts/panel.js";
import { clockChart, densityChart, purposeChart, purposesOf, rateChart, stepTimeChart } from "../../charts/wire.js";
import { element, patch, unanswered, whenChanged } from "../../dom.js";
import { timeAxis } from "../../units.js";
import { whenSeen } from "./sight.js";

// `fetchSent` returns the series of sent bytes, up to the points on the page.
export function wire(fetchSent) {
  const refused = element("div", { role: "alert" });
  const [bytes, purposes, rate, times, density] = [panel("Bytes"), panel("Bytes by purpose"), panel("Bytes a second", "", { tools: refused }), panel("Time of a step"), panel("Density")];
  const clock = panel("Where the clock went");
  const [bars, lines] = [[bytes, purposes, clock, times], [rate, density]].map((charts) => charts.map(({ body }) => body));
  let given = null;
  let fetched = null;
  const look = whenSeen(rate.body, () => drawRate().catch(failed));

  const drawBills = whenChanged((trials) => {
    bytes.body.hidden = !trials.some((trial) => trial.bill.bytes_sent > 0 || trial.bill.bytes_dense > 0);
    times.body.hidden = !trials.some((trial) => trial.bill.steps_timed > 0);
    clock.body.hidden = !trials.some((trial) => trial.bill.seconds_training > 0);
    purposes.body.hidden = !trials.some((trial) => Object.keys(purposesOf(trial.bill)).length > 0);
    return Promise.all([...(bytes.body.hidden ? [] : [bytes.draw(() => bytesChart(trials))]), ...(purposes.body.hidden ? [] : [purposes.draw(() => purposeChart(trials))]),
      ...(clock.body.hidden ? [] : [clock.draw(() => clockChart(trials))]), ...(times.body.hidden ? [] : [times.draw(() => stepTimeChart(trials))])]);
  });
  const drawDensity = whenChanged((stages) => {
    density.body.hidden = !stages.some((stage) => stage.level_name === "density" && stage.level !== null && stage.density !== null);
    return density.body.hidden ? undefined : density.draw(() => densityChart(stages));
  });

  // `rows` are the trials with bars; the other charts draw all.
  async function update(trials, stages, series, link, rows = trials) {
    given = { trials, series, link };
    await Promise.all([drawBills(rows), drawDensity(stages)]);
    rate.body.hidden = !series.some((each) => each.steps.length > 1);
    [bars, lines].forEach(fill);
    look();
  }

  async function drawRate() {
    const { trials, series: losses, link } = given;
    if (fetched === losses) return;
    fetched = losses;
    const found = await fetchSent();
    if (given.series !== losses) return; // newer ones were asked for meanwhile
    patch(refused);
    const looks = new Map(trials.map((trial) => [trial.trial_id, trial]));
    const sent = found.map((series) => ({ ...looks.get(series.trial_id), ...series }));
    const clock = timeAxis(Math.max(0, ...sent.map((series) => series.seconds.at(-1) ?? 0)));
    await rate.draw(() => rateChart(sent, link, clock));
  }

  function failed(error) {
    fetched = null;
    patch(refused, ...unanswered(error, look));
  }

  return { bodies: [...bars, ...lines], update };
}

// Two charts side by side; a single one has the whole width.
function fill(bodies) {
  const shown = bodies.filter((body) => !body.hidden);
  shown.forEach((body, at) => body.classList.toggle("wide", at === shown.length - 1 && shown.length % 2 === 1));
}
