"""Raise the rate of a commit whose own gradients ask for more, without a probe: a pure function."""

import math

from search.bayesian.probe_costs import is_in_cooldown
from search.bayesian.stage import SearchSetup, Stage
from search.curves.curve_summary import trace_of
from search.types import Observation

#: By so much the log of the rate rises with a step that points just where the update before went.
RISE_PER_STEP = 0.05
#: A smaller change of the rate is none.
LEAST_RISE = 1.01


def raise_of(setup: SearchSetup, stage: Stage, observation: Observation) -> float:
    """Return what the open commit's rate is to be multiplied by from now on.

    The hypergradient of a few steps prefers rates that are too low, as short probes do. So it is never asked to lower a
    rate: where even it asks for a higher one, the rate is too low (docs/decisions/0017). While the rate decays, and
    after something happened on the line, the factor stays. So does that of a pinned rate.
    """
    if not (setup.traits.rises and stage.may_rise) or stage.is_pinned or is_in_cooldown(setup, observation.spent):
        return stage.rise
    asked = math.exp(RISE_PER_STEP * trace_of(observation).aligned)
    rise = max(1.0, min(asked, setup.config.max_raise / stage.raised))
    return rise if max(rise / stage.rise, stage.rise / rise) >= LEAST_RISE else stage.rise
