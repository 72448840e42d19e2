"""Roll back a switch whose commit does worse than forecast for the incumbent."""

import math

import numpy as np

from search.bayesian.reports import LONGEST_COMMIT
from search.bayesian.rewards import start_loss, usable_control
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage
from search.budget import spending
from search.budget.spending import Amounts
from search.curves.calibration import learned_weight
from search.curves.curve_summary import MIN_END_LOSSES, last_losses, num_steps_of, usable_median
from search.curves.forecast import forecast_loss, standard_error
from search.types import Observation

#: A switch is judged once this share of its commit is done ...
FIRST_CHECK = 0.2
#: ... and from this share on, only if its loss is also above the stage's start: a rollback undoes the whole commit.
LATE = 0.4
#: Standard deviations above the incumbent's forecast.
WORSE_STDS = 1.2


def is_setback(setup: SearchSetup, stage: Stage, commit: Observation, *, part: float, whole: Amounts) -> bool:
    """Return whether the share `part` of a `commit` that may spend `whole` does worse than it would without its switch.

    The median of its last losses is compared with a forecast from the incumbent's probe, at the same point.
    """
    control, recent = usable_control(stage), last_losses(commit.losses, num_steps_of(commit))
    median, start = usable_median(recent), start_loss(stage)
    if stage.decision is None or not stage.decision.switched or control is None:
        return False
    if (
        part < FIRST_CHECK
        or median is None
        or len(recent) < MIN_END_LOSSES
        or (start is not None and part >= LATE and median <= start)
    ):
        return False
    cost = setup.line_cost(spending.measured_step_cost(setup.budget, control))
    num_steps = spending.num_steps(spending.scale(whole, part), cost)
    points = max(float(len(control.losses)), min(num_steps, LONGEST_COMMIT) / control.steps_per_point)
    forecast = forecast_loss(control.losses, points, start=start, weight=learned_weight(stage.line.outcomes))
    return median > forecast.mean + WORSE_STDS * math.hypot(forecast.std, standard_error(np.asarray(recent)))
