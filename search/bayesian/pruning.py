"""End probes before their allowance is spent: those that diverge, and those that will not catch up."""

import numpy as np
from numpy.typing import NDArray

from search.bayesian.rewards import is_diverged, opening_level, scores, steps_at_equal_cost, usable_control
from search.bayesian.stage import Probe, Stage
from search.curves.curve_summary import Reading, side_by_side
from search.curves.forecast import standard_error
from search.types import Candidate

Array = NDArray[np.float64]

#: Standard normal quantile at 99.9 %, one-sided.
SURE = 3.09
#: Fewer losses than this, in the half that is compared, have no noise to speak of.
MIN_POINTS = 8


def is_hopeless(stage: Stage, reading: Reading) -> bool:
    """Return whether a running probe diverges, or is sure to stay behind the one to beat, by what it shows so far.

    The two are compared step by step, or, if their steps differ in cost, where both had spent as much.
    """
    level = stage.level if stage.level is not None else opening_level([*stage.readings.values(), reading])
    if is_diverged(reading, level=level, initial=stage.initial):
        return True
    candidate = next(each for each in stage.pending if each.id == reading.candidate_id)
    control = _to_beat(stage, candidate)
    if control is None or not reading.num_steps:
        return False
    num_steps, same_steps = steps_at_equal_cost(Probe(candidate, reading), control)
    if same_steps < 1:
        return False
    seen, same = side_by_side(reading, control.reading, num_steps, same_steps)
    return stays_behind(seen - same, left=control.reading.num_steps / same_steps - 1)


def _to_beat(stage: Stage, candidate: Candidate) -> Probe | None:
    """Return the incumbent's probe; in the wide search, for another exchange than the opening one, the best so far.

    Those of the wide search that look for the rate end in their own time: the curve through them needs bad rates too.
    """
    if stage.has_incumbent:
        return None if usable_control(stage) is None else stage.probes[0]
    if candidate.origin != "option":
        return None
    decisive = stage.decisive
    judged = zip(scores(decisive), decisive.probes, strict=True)
    whole = [(score.reward, probe) for score, probe in judged if score.reward is not None and not probe.reading.is_cut]
    return max(whole, key=lambda each: each[0])[1] if whole else None


def stays_behind(gaps: Array, *, left: float) -> bool:
    """Return whether losses that exceed the control's by `gaps` `(m,)` so far will still do so at the end.

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
