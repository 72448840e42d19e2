"""Adapt the width of the trust region to success, as TuRBO does (Eriksson et al., 2019), on logarithmic axes.

The *width* is the exponent of the most that a stage may move a value by: at 1 the limits hold themselves, at 0.5 their
square roots.
"""

from search.bayesian.stage import SearchSetup, Stage

WIDEST = 1.0
#: Values nearer than this allows are not told apart by probes.
NARROWEST = 0.25
FACTOR = 2.0


def next_width(setup: SearchSetup, stage: Stage, *, has_lasted: bool) -> float:
    """Return the width after a decided stage: twice its own if its switch `has_lasted`, half if it found none.

    TuRBO counts several failures first; a run has too few stages for that. The wide search, and a stage without
    probes, show neither. Controllers without a surrogate keep the width.
    """
    assert stage.decision is not None
    if not setup.config.has_surrogate or not stage.has_incumbent or not stage.probes:
        return stage.width
    is_success = stage.decision.switched and has_lasted
    return min(WIDEST, stage.width * FACTOR) if is_success else max(NARROWEST, stage.width / FACTOR)
