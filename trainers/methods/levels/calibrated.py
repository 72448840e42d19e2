"""Lambda from the number of entries to send, without a look at the gradient (Sahu et al., 2021)."""

import math


def threshold_for(num_entries: float) -> float:
    """Return lambda = 1 / (2 sqrt(k)) for `num_entries` k of the whole gradient per step.

    From the authors' code, with which they set lambda for pictures; it is a rule of thumb, and not free of scale: it
    is about mean gradients of losses of about 1.
    """
    return 1 / (2 * math.sqrt(num_entries))
