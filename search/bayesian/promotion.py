"""Choose the probe whose steps a commit may begin with: a later stage's winner, or the best finalist."""

import math

from search.bayesian.decision import choose
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Probe, Stage
from search.bayesian.wide_optimum import steady_scores
from search.curves.curve_summary import Reading
from search.space import distance
from search.types import Spent, Values

#: A finalist within this factor of the chosen values has trained as they would.
PROMOTABLE_FACTOR = 4.0


def winner(setup: SearchSetup, stage: Stage, chosen: Values) -> Probe | None:
    """Return the probe that trained the `chosen` values to its end, if its steps may stay.

    In the wide search it is the best finalist, if its values are near the chosen ones. Its rate fell to 0 as the run's
    will, so its end is a good place to go on from.
    """
    if not setup.config.promote:
        return None
    judged = zip(stage.probes, steady_scores(stage), strict=True)
    whole = [(probe, score.reward) for probe, score in judged if score.reward is not None and not probe.reading.is_cut]
    if stage.has_incumbent:
        return next((probe for probe, _ in whole if probe.candidate.values == chosen), None)
    finalists = [each for each in whole if each[0].candidate.rung and each[0].candidate.decay]
    best = max(finalists, key=lambda each: each[1], default=(None, 0.0))[0]
    return best if best and distance(best.candidate.values, chosen) <= math.log(PROMOTABLE_FACTOR) else None


def leading(setup: SearchSetup, stage: Stage) -> str | None:
    """Return the id of the probe that would be promoted if the stage were decided now."""
    if not stage.probes or not (stage.has_incumbent or stage.rung):
        return None
    probe = winner(setup, stage, choose(setup, stage).values)
    return probe.candidate.id if probe else None


def cost(reading: Reading | None) -> Spent:
    """Return the cost of a promoted probe's steps; 0 if `reading` is None: nothing was promoted."""
    if reading is None:
        return Spent()
    seconds = reading.num_steps * (reading.step_seconds or 0.0)
    return Spent(steps=reading.num_steps, bytes=reading.bytes_sent, seconds=seconds)
