"""Raise the rate of a commit whose own course asks for more, without a probe: pure functions."""

import math

from search.bayesian.probe_costs import is_in_cooldown
from search.bayesian.stage import SearchSetup, Stage
from search.curves.curve_summary import trace_of
from search.curves.events import Signs
from search.types import Observation

#: By so much the log of the rate rises with a step that points just where the update before went.
RISE_PER_STEP = 0.05
#: A smaller change of the rate is none.
LEAST_RISE = 1.01
#: Where nothing was learned, a commit is given up after this share of the run's steps, and so many at least.
PATIENCE_SHARE, PATIENCE_STEPS = 0.05, 40
#: The next one begins at the higher of these shares, of its rate and of the guess, and at the guess at most ...
START_OF_RATE, START_OF_GUESS = 1 / 16, 1 / 8
#: ... and rises by the factor in each such share of the run's steps, up to so many times the rate that it begins with.
AWAKENING_FACTOR, AWAKENING_SHARE, AWAKENING_MOST = 4.0, 0.08, 256.0


def is_asleep(setup: SearchSetup, stage: Stage, signs: Signs, observation: Observation) -> bool:
    """Return whether a commit is to be given up because it learns nothing, at a rate that nothing speaks for.

    Probes of a few steps show nothing of a net that learns nothing at first. So which way the rate is wrong is not
    known. It is given up once, and while enough of the budget is left to try others.
    """
    if not (signs.is_ignorant and may_awaken(setup, stage)) or is_in_cooldown(setup, observation.spent):
        return False
    return signs.num_steps >= max(PATIENCE_STEPS, PATIENCE_SHARE * (setup.num_steps or 0.0))


def awakening_start(setup: SearchSetup, rate: float) -> float:
    """Return the rate by which to begin where a net learns nothing at `rate`, or probes showed nothing up to it."""
    guess = min(rate, setup.opening.learning_rate)
    return setup.clip_rate(min(guess, max(START_OF_RATE * rate, START_OF_GUESS * guess)))


def may_awaken(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether the rate may rise without a limit of the job's: once, of optimizers of which rates may rise."""
    is_free = setup.traits.rises and setup.config.max_raise > 1 and setup.config.revisit == "events"
    return is_free and not (stage.is_pinned or stage.awakens or stage.has_awakened)


def raise_of(setup: SearchSetup, stage: Stage, observation: Observation, signs: Signs) -> float:
    """Return what the open commit's rate is to be multiplied by from now on.

    The hypergradient of a few steps prefers rates that are too low, as short probes do. So it is never asked to lower a
    rate: where even it asks for a higher one, the rate is too low (docs/decisions/0017). While the rate decays, and
    after something happened on the line, the factor stays. So does that of a pinned rate.

    A net that learned nothing yet is awakened: its rate rises steadily until it learns (docs/decisions/0026).
    """
    if stage.is_pinned or is_in_cooldown(setup, observation.spent):
        return stage.rise
    if stage.awakens:
        return _awakening(setup, stage, signs)
    if not (setup.traits.rises and stage.may_rise):
        return stage.rise
    asked = math.exp(RISE_PER_STEP * trace_of(observation).aligned)
    return _at_least(stage.rise, max(1.0, min(asked, setup.config.max_raise / stage.raised)))


def _awakening(setup: SearchSetup, stage: Stage, signs: Signs) -> float:
    if signs.has_learned:
        return stage.rise
    parts = signs.num_steps / max(PATIENCE_STEPS, AWAKENING_SHARE * (setup.num_steps or 0.0))
    return _at_least(stage.rise, min(AWAKENING_MOST, AWAKENING_FACTOR**parts))


def _at_least(rise: float, asked: float) -> float:
    return asked if max(asked / rise, rise / asked) >= LEAST_RISE else rise
