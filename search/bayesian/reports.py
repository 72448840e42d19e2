"""Report a decision to people: every probe's forecast at the end of the commit, and the decision's own."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from search.bayesian.decision import Choice
from search.bayesian.rewards import scores, stage_level
from search.bayesian.stage import Probe, Score, SearchSetup, Stage
from search.budget import spending
from search.budget.spending import Amounts
from search.curves.calibration import learned_weight
from search.curves.forecast import forecast_loss
from search.space import distance
from search.types import Forecast, ProbeReport, Values

#: Horizon of a commit whose steps cost nothing that the budget caps.
LONGEST_COMMIT = 1e7
#: A commit ends lower than its curve leads to at a constant rate: the controller changes the rate for the better, and
#: lets it fall to 0. The log of its loss falls further by `FURTHER` for each factor e between what was seen and the
#: horizon, and by `DECAY_FALL` where the whole rate is decayed away, within `DECAY_STD` of the loss. They were chosen
#: with one family of tasks left out in turn, so that 92 % of the others' outcomes lie within 2 standard deviations.
FURTHER, DECAY_FALL, DECAY_STD = 0.09, 0.06, 0.3
#: A probe this near, as a factor of the learning rate, forecasts for values that were not probed themselves.
NEAR_RATE = 10**0.5


class Commit(NamedTuple):
    """The commit that is decided: what it may spend, and the share of its learning rate that is decayed away in it."""

    amounts: Amounts
    decay: float


def probe_reports(setup: SearchSetup, stage: Stage, *, commit: Commit, choice: Choice) -> tuple[ProbeReport, ...]:
    """Return a report of each finished probe of `stage`, with its forecast at the end of `commit`."""
    level, weight = stage_level(stage), learned_weight(stage.outcomes)
    reports = []
    for probe, score in zip(stage.probes, scores(stage), strict=True):
        mean, std = choice.posterior.get(probe.candidate.id, (None, None))
        horizon = _horizon(setup, probe, commit.amounts)
        forecast = _forecast(probe, score, horizon=horizon, decay=commit.decay, level=level, weight=weight)
        reports.append(
            ProbeReport(
                candidate=probe.candidate,
                forecast=forecast,
                reward=score.reward,
                variance=score.variance,
                posterior_mean=mean,
                posterior_std=std,
            )
        )
    return tuple(reports)


def forecast_of(values: Values, reports: Sequence[ProbeReport]) -> Forecast | None:
    """Return the forecast of the probe nearest to `values`, or None if none is near."""
    finite = [report for report in reports if report.reward is not None]
    if not finite:
        return None
    nearest = min(finite, key=lambda report: distance(values, report.candidate.values))
    rates = sorted((values.learning_rate, nearest.candidate.values.learning_rate))
    return nearest.forecast if rates[1] <= NEAR_RATE * rates[0] else None


def line_forecast(setup: SearchSetup, stage: Stage, commit: Commit) -> Forecast | None:
    """Return the forecast of a commit without probes, from the commit before it; None if that does not go on."""
    before = stage.before
    if before is None or not before.is_kept or not before.losses or stage.is_displaced:
        return None
    seconds = before.signs.step_seconds
    cost = {"steps": 1.0, "bytes": before.bytes_sent / before.num_steps, "seconds": seconds or 0.0}
    known = {unit: cost[unit] for unit in commit.amounts}
    steps = before.num_steps + min(spending.num_steps(commit.amounts, known), LONGEST_COMMIT)
    points = max(float(len(before.losses)), len(before.losses) * steps / before.num_steps)
    found = forecast_loss(before.losses, points, level=stage.before_level, weight=learned_weight(stage.outcomes))
    return _of_commit(found, ratio=points / len(before.losses), decay=commit.decay)


def _horizon(setup: SearchSetup, probe: Probe, commit: Amounts) -> float:
    """Return how many of the probe's steps the commit is long, or 1 if the probe finished none."""
    num_steps = probe.reading.num_steps
    if not num_steps:
        return 1.0
    cost = setup.step_cost if probe.candidate.alone else spending.step_cost(setup.budget, probe.reading)
    steps = spending.num_steps(commit, cost)
    return max(float(num_steps), min(steps, LONGEST_COMMIT))


def _forecast(
    probe: Probe, score: Score, *, horizon: float, decay: float, level: float | None, weight: float
) -> Forecast:
    reading = probe.reading
    if reading.losses:
        # the forecast counts in points of the curve; rounding must not put the horizon before its end
        points = max(float(len(reading.losses)), horizon / reading.steps_per_point)
        found = forecast_loss(reading.losses, points, level=level, weight=weight)
        forecast = _of_commit(found, ratio=points / len(reading.losses), decay=decay)
    else:
        forecast = forecast_loss((math.nan,), 1.0, level=level)  # it diverged in its first step
    if score.reward is None:
        return forecast.model_copy(update={"status": "diverged"})
    if forecast.status == "diverged":  # the score tolerates a rise that is small beside the run's first loss
        return forecast.model_copy(update={"status": "overshoot"})
    return forecast


def _of_commit(found: Forecast, *, ratio: float, decay: float) -> Forecast:
    """Return a forecast at a constant rate, `ratio` times as far as was seen, as one of a commit with a `decay`."""
    if found.status == "diverged":
        return found
    fall = 1 - math.exp(-FURTHER * math.log(ratio) - DECAY_FALL * decay)
    mean = found.mean - fall * abs(found.mean)
    return found.model_copy(update={"mean": mean, "std": math.hypot(found.std, DECAY_STD * decay * mean)})
