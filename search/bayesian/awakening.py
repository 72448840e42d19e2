"""Wake a model that learns nothing: give its commit up, and let the rate rise from a low one until it learns."""

import math

from search.bayesian.decay import decay_share, is_decaying
from search.bayesian.rewards import diverged_probes
from search.bayesian.setup import FIRST_COMMIT_STEPS, SearchSetup
from search.bayesian.stage import BARRED_SHARE, Stage
from search.budget import spending
from search.curves.events import Signs
from search.types import Observation, Spent

#: A commit that learns nothing is given up after this share of the run's steps, and at least this many. The run's first
#: commit is given up at its end, unless it is so short that the model may well begin later: if a high rate has killed
#: the model, only a rollback of that commit brings it back.
PATIENCE_SHARE, PATIENCE_STEPS = 0.05, 40
#: The next commit begins at the higher of `START_OF_RATE` x the rate and `START_OF_GUESS` x the guess. In a run that is
#: long enough to rise from there, it begins no higher than `MOST_OF_GUESS` x the guess ...
START_OF_RATE, START_OF_GUESS, MOST_OF_GUESS = 1 / 16, 1 / 8, 1 / 4
#: ... and rises by `AWAKENING_FACTOR` in each share `AWAKENING_SHARE` of the run's steps, by at most `AWAKENING_MOST`.
AWAKENING_FACTOR, AWAKENING_SHARE, AWAKENING_MOST = 4.0, 0.08, 256.0
#: A model wakes when its gradients have grown by this factor. Its loss falls a little later.
WAKING_GRADIENTS = 1.5
#: A model whose gradients had grown by this factor, and fell back, was killed while it woke.
AWAKE_GRADIENTS = 3.0


def may_awaken(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether the rate may rise until the model learns: once in a run, if the optimizer and the job allow it.

    A model that is known to have been trained before is awake, however little its loss falls.
    """
    if setup.is_pretrained:
        return False
    is_free = setup.traits.wakes and setup.config.max_raise > 1 and setup.config.revisit == "events"
    return is_free and not (stage.is_pinned or stage.course.awakens or stage.course.has_awakened)


def is_asleep(setup: SearchSetup, stage: Stage, signs: Signs, observation: Observation, *, is_over: bool) -> bool:
    """Return whether to give up a commit because it learns nothing.

    A few steps show nothing about a model that learns nothing at first, so it is unknown which way the rate is wrong. A
    run gives up one commit at most, and only while enough of the budget is left to try other rates. `is_over`: the
    commit ends here.
    """
    if not (signs.is_ignorant and may_awaken(setup, stage)) or is_decaying(setup, observation.spent):
        return False
    if stage.is_on_ramp:
        return False  # its rate is still to come
    if not _has_time_to_rise(setup, stage, observation.spent):
        return False
    is_last_way_back = is_over and not stage.has_incumbent and signs.num_steps > FIRST_COMMIT_STEPS
    patience = max(PATIENCE_STEPS, PATIENCE_SHARE * _run_steps(setup, observation.spent))
    return is_last_way_back or signs.num_steps >= patience


def _has_time_to_rise(setup: SearchSetup, stage: Stage, spent: Spent) -> bool:
    """Return whether the rate could rise to that of the open commit again before it decays."""
    assert stage.decision is not None
    rate, num_steps = stage.decision.values.learning_rate, _run_steps(setup, spent)
    factors = math.log(rate / awakening_start(setup, rate), AWAKENING_FACTOR)
    left = (1 - decay_share(setup) - spending.fraction_spent(setup.budget, spent)) * num_steps
    return left >= factors * max(PATIENCE_STEPS, AWAKENING_SHARE * num_steps)


def awakening_start(setup: SearchSetup, rate: float) -> float:
    """Return the rate to begin with if a model learns nothing at `rate`, or probes showed nothing up to it."""
    guess = min(rate, setup.opening.learning_rate)
    is_long = AWAKENING_SHARE * (setup.num_steps or 0.0) >= PATIENCE_STEPS
    most = MOST_OF_GUESS * guess if is_long else guess
    return setup.clip_rate(min(most, max(START_OF_RATE * rate, START_OF_GUESS * guess)))


def awakening_rise(setup: SearchSetup, stage: Stage, signs: Signs, spent: Spent) -> float:
    """Return the factor of the rate of a commit that awakens the model, which rises steadily until the model learns.

    It never falls: in a budget that has grown, the same steps ask for less.
    """
    if signs.has_learned or _growth(stage, signs, signs.gradient_end) >= WAKING_GRADIENTS:
        return stage.course.rise
    parts = signs.num_steps / max(PATIENCE_STEPS, AWAKENING_SHARE * _run_steps(setup, spent))
    most = math.log(min(AWAKENING_MOST, _most_awakening(setup, stage)), AWAKENING_FACTOR)
    asked: float = AWAKENING_FACTOR ** min(parts, most)
    return max(stage.course.rise, asked)


def was_killed_waking(setup: SearchSetup, stage: Stage, signs: Signs, observation: Observation) -> bool:
    """Return whether a model that woke in an awakening commit learns nothing again: its gradients grew, then fell."""
    if not signs.is_ignorant or is_decaying(setup, observation.spent):
        return False
    had_grown = _growth(stage, signs, signs.gradient_peak) >= AWAKE_GRADIENTS
    return had_grown and _growth(stage, signs, signs.gradient_end) < WAKING_GRADIENTS


def _most_awakening(setup: SearchSetup, stage: Stage) -> float:
    """Return the highest factor, at least 1, that keeps the rate below those at which a probe or a commit diverged.

    One that was given up, or ended dead, may have been too low.
    """
    rates = [values.learning_rate for values in diverged_probes(setup, stage)]
    if not rates:
        return math.inf
    assert stage.decision is not None
    return max(1.0, BARRED_SHARE * min(rates) / stage.decision.values.learning_rate)


def _run_steps(setup: SearchSetup, spent: Spent) -> float:
    """Return how many steps the budget holds, by the cost in the warm-up, or else by the cost so far."""
    if setup.num_steps is not None:
        return setup.num_steps
    part = spending.fraction_spent(setup.budget, spent)
    return spent.steps / part if part > 0 else 0.0


def _growth(stage: Stage, signs: Signs, scale: float | None) -> float:
    """Return a gradient's `scale`, relative to the smaller of the run's first and the commit's first; 0: not known."""
    known = [each for each in (stage.line.gradient_scale, signs.gradient_start) if each is not None]
    return scale / min(known) if scale is not None and known else 0.0
