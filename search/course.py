"""What becomes of a probe or a commit that runs: pure functions behind `Strategy.watch`, for searched stages."""

import math

import numpy as np
from numpy.typing import NDArray

from search import spending
from search.evidence import TOLERANCE, is_diverged, opening_level, stage_level
from search.forecast import forecast_loss, has_diverged, standard_error
from search.reading import Reading, last_losses, side_by_side, usable_median
from search.reports import LONGEST_COMMIT
from search.spending import Amounts
from search.stage import Problem, Stage
from search.types import Candidate, Course, Observation, Spent

Array = NDArray[np.float64]

#: Standard normal quantile at 99.9 %, one-sided.
SURE = 3.09
#: Fewer paired losses than this, in the half that is compared, have no noise to speak of.
MIN_POINTS = 8
#: A step that costs at least this share of the control's is compared with the control's same step.
SAME_COST = 0.9
#: A switch is judged once this share of its commit is done ...
FIRST_CHECK = 0.2
#: ... against the incumbent's forecast; from this share on only if it has also lost what the stage had begun with.
LATE = 0.4
#: Standard deviations above the incumbent's forecast at which a switch is taken back.
WORSE_STDS = 2.0


# -- probes ----------------------------------------------------------------------------------------


def probe_course(problem: Problem, stage: Stage, candidate: Candidate, *, observation: Observation) -> Course:
    """Return `end` for a probe that diverges, or that the incumbent's is ahead of for good."""
    reading = Reading.of(observation)
    level = stage.level if stage.level is not None else opening_level([*(p.reading for p in stage.probes), reading])
    if is_diverged(reading, level=level, initial=stage.initial):
        return "end"
    control = _control(stage)
    if control is None:
        return "go_on"
    cost, others = (spending.step_cost(problem.budget, each) for each in (reading, control))
    allowed = spending.given(candidate.allowance)
    num_steps = max(spending.num_steps(allowed, cost), candidate.allowance.min_steps)
    ratio = spending.num_steps(allowed, others) / spending.num_steps(allowed, cost)
    control_steps = reading.num_steps * (ratio if ratio < SAME_COST else 1.0)
    if not 1 <= control_steps <= control.num_steps:
        return "go_on"
    seen, same = side_by_side(reading, control, reading.num_steps, control_steps)
    return "end" if is_hopeless(seen - same, left=num_steps / reading.num_steps - 1) else "go_on"


def is_hopeless(gaps: Array, *, left: float) -> bool:
    """Whether losses that exceed the control's by `gaps` `(m,)` so far are sure to stay behind.

    `left`: the steps to come, as a multiple of those seen. The mean gap of the last half is above 0 with 99.9 %
    (Student's t by its expansion, Abramowitz & Stegun, 1964, 26.7.5), and going on in a straight line it would not
    be closed by the end.
    """
    half = gaps[len(gaps) // 2 :]
    if len(half) < MIN_POINTS:
        return False
    degrees = len(half) - 1
    quantile = SURE + (SURE**3 + SURE) / (4 * degrees) + (5 * SURE**5 + 16 * SURE**3 + 3 * SURE) / (96 * degrees**2)
    gap = float(half.mean())
    earlier, later = float(half[: len(half) // 2].mean()), float(half[len(half) // 2 :].mean())
    # of what was seen, these two lie a quarter apart; the last half's centre moves by three quarters per `left`
    at_end = gap + 3 * max(0.0, left) * min(0.0, later - earlier)
    return gap > quantile * standard_error(half) and at_end > 0


def _control(stage: Stage) -> Reading | None:
    """Return the incumbent's probe, if it went well; the wide search has none."""
    first = stage.probes[0] if stage.index > 0 and stage.probes else None
    if first is None or first.candidate.values != stage.incumbent:
        return None
    diverged = is_diverged(first.reading, level=stage_level(stage), initial=stage.initial)
    return None if diverged or first.reading.is_cut else first.reading


# -- commits ---------------------------------------------------------------------------------------


def commit_course(problem: Problem, stage: Stage, observation: Observation, *, begun: Spent) -> Course:
    """Return `roll_back` for a commit that diverges, or for a switch that does worse than the incumbent would have.

    `begun`: the run's totals when the commit began.
    """
    assert stage.decision is not None
    level, recent = stage_level(stage), last_losses(observation.losses)
    tolerance = TOLERANCE * abs(stage.initial if stage.initial is not None else level or 0.0)
    if recent and has_diverged(recent, level=level, tolerance=tolerance):
        return "roll_back"
    whole = spending.between(problem.budget, begun, stage.decision.commit_until)
    done = spending.share(spending.between(problem.budget, begun, observation.spent), whole)
    median = usable_median(recent)
    if not stage.decision.switched or stage.index == 0 or done < FIRST_CHECK or median is None:
        return "go_on"
    bound = _incumbent_bound(problem, stage, trained=spending.scale(whole, done), recent=np.asarray(recent))
    if bound is not None and level is not None and done >= LATE:
        bound = max(bound, level)
    return "go_on" if bound is None or median <= bound else "roll_back"


def _incumbent_bound(problem: Problem, stage: Stage, *, trained: Amounts, recent: Array) -> float | None:
    """Return the loss that the incumbent would hardly have exceeded, had it `trained` for as much."""
    control = _control(stage)
    if control is None:
        return None
    num_steps = spending.num_steps(trained, spending.step_cost(problem.budget, control))
    points = max(float(len(control.losses)), min(num_steps, LONGEST_COMMIT) / control.steps_per_point)
    forecast = forecast_loss(control.losses, points, level=stage_level(stage))
    return forecast.mean + WORSE_STDS * math.hypot(forecast.std, standard_error(recent))
