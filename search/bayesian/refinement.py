"""Raise the rate of a running commit without a probe, if its own steps show that it is too low: pure functions."""

import math

from search.bayesian.awakening import awakening_rise
from search.bayesian.decay import is_decaying
from search.bayesian.rewards import diverged_probes
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage, barred_from
from search.curves.curve_summary import trace_of
from search.curves.events import Signs
from search.types import Observation

#: The log of the rate rises by this much with a step that points just where the update before went.
RISE_PER_STEP = 0.045
#: A rise by a smaller factor is ignored.
LEAST_RISE = 1.01


def raise_of(setup: SearchSetup, stage: Stage, observation: Observation, signs: Signs) -> float:
    """Return the factor of the open commit's rate from now on.

    The hypergradient of a few steps prefers rates that are too low, as short probes do. If even it asks for a higher
    rate, the rate is too low (docs/decisions/0017). A rise may be taken back, but the rate never falls below the
    decision's.

    The factor stays while the rate decays, after an event on the line, for a pinned rate, and for a commit that begins
    on the ramp, where low rates let all steps point the same way.

    A model that has learned nothing yet is awakened: its rate rises steadily until it learns (docs/decisions/0026).
    """
    if stage.is_pinned or is_decaying(setup, observation.spent):
        return stage.course.rise
    if stage.course.awakens:
        asked = awakening_rise(setup, stage, signs, observation.spent)
        return _unless_negligible(stage.course.rise, asked)
    if not (setup.traits.rises and stage.course.may_rise) or stage.is_on_ramp:
        return stage.course.rise
    asked = math.exp(RISE_PER_STEP * trace_of(observation).aligned)
    most = min(setup.config.max_raise / stage.course.raised, _most_rise(setup, stage))
    return _unless_negligible(stage.course.rise, max(1.0, min(asked, most)))


def _most_rise(setup: SearchSetup, stage: Stage) -> float:
    """Return the highest factor that keeps the rate below those that have failed, in a commit or a probe."""
    assert stage.decision is not None
    values = stage.decision.values
    barred = barred_from(values, (*stage.line.barred, *diverged_probes(setup, stage)))
    return barred / LEAST_RISE / values.learning_rate


def _unless_negligible(rise: float, asked: float) -> float:
    """Return `asked`, or `rise` where the two differ by less than `LEAST_RISE`."""
    return asked if max(asked / rise, rise / asked) >= LEAST_RISE else rise
