"""Which probes end before their allowance is spent: those that diverge, and those that will not catch up."""

import numpy as np
from numpy.typing import NDArray

from search import spending
from search.evidence import is_diverged, opening_level, usable_control
from search.forecast import standard_error
from search.reading import Reading, side_by_side
from search.stage import Problem, Stage

Array = NDArray[np.float64]

#: Standard normal quantile at 99.9 %, one-sided.
SURE = 3.09
#: Fewer losses than this, in the half that is compared, have no noise to speak of.
MIN_POINTS = 8
#: A step that costs at least this share of the control's is compared with the control's same step.
SAME_COST = 0.9


def is_hopeless(problem: Problem, stage: Stage, reading: Reading) -> bool:
    """Whether a running probe diverges, or is sure to stay behind the incumbent's, by what it shows so far.

    The two are compared step by step, or, if the probe's steps are cheaper, where both had spent as much.
    """
    level = stage.level if stage.level is not None else opening_level([*stage.readings.values(), reading])
    if is_diverged(reading, level=level, initial=stage.initial):
        return True
    control = usable_control(stage)
    if control is None:
        return False
    allowed = spending.given(next(each.allowance for each in stage.pending if each.id == reading.candidate_id))
    total, others = (spending.num_steps(allowed, spending.step_cost(problem.budget, r)) for r in (reading, control))
    same_steps = reading.num_steps * (others / total if others < SAME_COST * total else 1.0)
    if not 1 <= same_steps <= control.num_steps:
        return False
    seen, same = side_by_side(reading, control, reading.num_steps, same_steps)
    return stays_behind(seen - same, left=max(total, problem.config.min_probe_steps) / reading.num_steps - 1)


def stays_behind(gaps: Array, *, left: float) -> bool:
    """Whether losses that exceed the control's by `gaps` `(m,)` so far will still do so at the end.

    `left`: the steps to come, as a multiple of those seen. The mean gap of the last half is above 0 with 99.9 %
    (Student's t by its expansion, Abramowitz & Stegun, 1964, 26.7.5), and in a straight line it would not close.
    """
    half = gaps[len(gaps) // 2 :]
    if len(half) < MIN_POINTS:
        return False
    degrees = len(half) - 1
    quantile = SURE + (SURE**3 + SURE) / (4 * degrees) + (5 * SURE**5 + 16 * SURE**3 + 3 * SURE) / (96 * degrees**2)
    gap, middle = float(half.mean()), len(half) // 2
    change = float(half[middle:].mean() - half[:middle].mean())
    # of what was seen, the two lie a quarter apart, and the last half's centre moves by three quarters per `left`
    return gap > quantile * standard_error(half) and gap + 3 * max(0.0, left) * min(0.0, change) > 0
