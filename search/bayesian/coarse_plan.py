"""Plan the coarse probes of a wide search: over decades, or around the rate that past runs found best."""

from search.bayesian.regions import bounding_box
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage
from search.past_jobs.prior import Prior
from search.past_jobs.transfer import best_rate
from search.types import Values


def coarse_plan(setup: SearchSetup, stage: Stage) -> list[Values]:
    """Return the values of the coarse probes, the most central rate first.

    If past runs found a best rate, and it is not at an end of the range, they are three rates around it.
    """
    past = past_rate(setup, stage.prior)
    about = [] if past is None else [setup.clip_rate(past * factor) for factor in (0.1, 1.0, 10.0)]
    rates = about if len(set(about)) == 3 else setup.coarse_rates
    middle = (len(rates) - 1) / 2
    central_first = sorted(range(len(rates)), key=lambda index: abs(2 * (index - middle) + 0.1))
    return [setup.opening.model_copy(update={"learning_rate": rates[index]}) for index in central_first]


def past_rate(setup: SearchSetup, prior: Prior) -> float | None:
    """Return the rate that past runs found best; None: there is none, or it lies outside the coarse rates."""
    probed = [probe.values for search in prior.searches for probe in search.probes if probe.reward is not None]
    if not probed:
        return None
    box = bounding_box(setup, probed)
    past, rates = best_rate(prior, box, box.to_unit(setup.opening)), setup.coarse_rates
    return past if past is not None and rates[0] <= past <= rates[-1] else None
