"""How wide the trust region is: it follows success, as in TuRBO (Eriksson et al., 2019), on logarithmic axes.

The *width* is the exponent of the most that a stage may move a value by: at 1 the limits hold themselves, at 0.5 their
square roots.
"""

WIDEST = 1.0
#: Values nearer than this allows are not told apart by probes.
NARROWEST = 0.25
FACTOR = 2.0


def next_width(width: float, *, has_probes: bool, has_switched: bool) -> float:
    """Return the width after a stage: twice that before if its switch lasted, half if it found nothing better.

    TuRBO counts several failures first; a run has too few stages for that. One without probes shows neither.
    """
    if not has_probes:
        return width
    return min(WIDEST, width * FACTOR) if has_switched else max(NARROWEST, width / FACTOR)
