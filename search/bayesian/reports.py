"""Report a decision: each probe's forecast at the end of the commit, and that of the decision itself."""

import math
from typing import NamedTuple

from search.bayesian.decision import Choice
from search.bayesian.rewards import scores, start_loss
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Probe, Score, Stage
from search.budget import spending
from search.budget.spending import Amounts
from search.curves.calibration import learned_weight
from search.curves.forecast import forecast_loss
from search.space import distance
from search.types import Forecast, ProbeReport, Values

#: The horizon, in steps, of a commit whose steps cost nothing that the budget caps.
LONGEST_COMMIT = 1e7
#: A commit ends lower than its curve predicts at a constant rate: the controller improves the rate, and lets it fall to
#: 0. The log of its loss falls further by `FURTHER` for each factor e between the steps seen and the horizon, and by
#: `DECAY_FALL` if the whole rate decays away, with the standard deviation `DECAY_STD` x loss. They were chosen with one
#: family of tasks left out in turn, so that 92 % of the others' outcomes lie within 2 standard deviations.
FURTHER, DECAY_FALL, DECAY_STD = 0.09, 0.06, 0.3
#: Values without a probe get the forecast of one whose learning rate is within this factor.
NEAR_RATE = 10**0.5


class Reach(NamedTuple):
    """A forecast at a constant rate; `ratio` is its horizon as a multiple of the steps seen."""

    forecast: Forecast
    ratio: float


def probe_reports(setup: SearchSetup, stage: Stage, *, commit: Amounts, choice: Choice) -> tuple[ProbeReport, ...]:
    """Return a report on each finished probe of `stage`; `commit` is what the stage's commit may spend."""
    reports = []
    for probe, score in zip(stage.probes, scores(stage), strict=True):
        mean, std = choice.posterior.get(probe.candidate.id, (None, None))
        reports.append(
            ProbeReport(
                candidate=probe.candidate,
                forecast=_of_probe(setup, stage, probe, score, commit).forecast,
                reward=score.reward,
                variance=score.variance,
                posterior_mean=mean,
                posterior_std=std,
            )
        )
    return tuple(reports)


def commit_forecast(
    setup: SearchSetup, stage: Stage, values: Values, *, commit: Amounts, decay: float
) -> Forecast | None:
    """Return the forecast of a commit with `values`, from the nearest probe, or else from the commit before.

    None if no probe is near, and the commit before does not go on. `decay` is the share of the learning rate that
    decays away in the commit.
    """
    found = _of_nearest(setup, stage, values, commit) or _of_line(setup, stage, commit)
    return None if found is None else of_commit(found.forecast, ratio=found.ratio, decay=decay)


def _of_nearest(setup: SearchSetup, stage: Stage, values: Values, commit: Amounts) -> Reach | None:
    finite = [each for each in zip(stage.probes, scores(stage), strict=True) if each[1].reward is not None]
    if not finite:
        return None
    probe, score = min(finite, key=lambda each: distance(values, each[0].candidate.values))
    rates = sorted((values.learning_rate, probe.candidate.values.learning_rate))
    return _of_probe(setup, stage, probe, score, commit) if rates[1] <= NEAR_RATE * rates[0] else None


def _of_line(setup: SearchSetup, stage: Stage, commit: Amounts) -> Reach | None:
    """Return the forecast of a commit without probes, from the commit before; None if that does not go on."""
    before = stage.line.before
    if before is None or not before.is_kept or not before.losses or stage.is_displaced:
        return None
    seconds = 0.0 if before.signs.step is None else before.signs.step.seconds
    cost = {"steps": 1.0, "bytes": before.bytes_sent / before.num_steps, "seconds": seconds}
    known = setup.line_cost({unit: cost[unit] for unit in commit})
    steps = before.num_steps + min(spending.num_steps(commit, known), LONGEST_COMMIT)
    points = max(float(len(before.losses)), len(before.losses) * steps / before.num_steps)
    found = forecast_loss(
        before.losses, points, start=stage.line.loss_before, weight=learned_weight(stage.line.outcomes)
    )
    return Reach(found, points / len(before.losses))


def _horizon(setup: SearchSetup, probe: Probe, commit: Amounts) -> float:
    """Return the length of the commit in steps of the probe; 1 if the probe finished none."""
    num_steps = probe.reading.num_steps
    if not num_steps:
        return 1.0
    cost = (
        setup.planned_step_cost if probe.candidate.alone else spending.measured_step_cost(setup.budget, probe.reading)
    )
    steps = spending.num_steps(commit, setup.line_cost(cost))
    return max(float(num_steps), min(steps, LONGEST_COMMIT))


def _of_probe(setup: SearchSetup, stage: Stage, probe: Probe, score: Score, commit: Amounts) -> Reach:
    reading, start = probe.reading, start_loss(stage)
    if not reading.losses:  # it diverged in its first step
        return Reach(forecast_loss((math.nan,), 1.0, start=start), 1.0)
    # the forecast counts in points of the curve; rounding must not put the horizon before its end
    points = max(float(len(reading.losses)), _horizon(setup, probe, commit) / reading.steps_per_point)
    found = forecast_loss(reading.losses, points, start=start, weight=learned_weight(stage.line.outcomes))
    if score.reward is None:
        found = found.model_copy(update={"status": "diverged"})
    elif found.status == "diverged":  # the score tolerates a rise that is small beside the run's first loss
        found = found.model_copy(update={"status": "overshoot"})
    return Reach(found, points / len(reading.losses))


def of_commit(found: Forecast, *, ratio: float, decay: float) -> Forecast:
    """Turn a forecast at a constant rate, `ratio` times as far as was seen, into one of a commit with a `decay`."""
    if found.status == "diverged":
        return found
    fall = 1 - math.exp(-FURTHER * math.log(ratio) - DECAY_FALL * decay)
    mean = found.mean - fall * abs(found.mean)
    return found.model_copy(update={"mean": mean, "std": math.hypot(found.std, DECAY_STD * decay * mean)})
