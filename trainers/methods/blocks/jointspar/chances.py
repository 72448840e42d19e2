"""The chance of each block to be drawn, which follows the blocks' gradients. Pure functions.

After Liu and Mozafari, "Communication-efficient distributed learning for large batch optimization" (ICML 2022): mirror
descent, from what a draw shows (a bandit), on the variance sum_d ||g_d||^2 / p_d of the update, over chances p that add
up to S. Chances `(D,)` are float64.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Most that a step may add to the logarithm of a chance, before all are brought back to their sum.
MAX_GAIN = 1.0


def drawn(chances: Array, place: Sequence[int]) -> NDArray[np.bool_]:
    """Draw blocks, each with its own chance, and again while there is none; the draw is a function of `place`."""
    rng = np.random.default_rng(place)
    while not (found := rng.random(len(chances)) < chances).any():
        pass
    return found


def inclusion(chances: Array) -> Array:
    """Return the probability of each block to be in what `drawn` returns, which is never empty."""
    return chances / (1.0 - np.prod(1.0 - chances))


def adapted(chances: Array, norms: Array, *, largest: float, step_size: float) -> Array:
    """Return the weights of which the chances after a step are the projection, as logarithms.

    `norms` are those of the blocks' gradients, 0 where a block was not drawn, and `largest` is the largest so far. A
    drawn block's gain is the bandit's estimate of -d/dp_d ||g_d||^2 / p_d, in units of `largest`. It divides by p_d,
    where `inclusion` would be exact: their ratio, between 1 - (1 - S/D)^D and 1, is the same for all blocks, and so
    part of the step size.
    """
    gains = step_size * (norms / largest) ** 2 / chances**3 if largest else np.zeros_like(chances)
    return np.log(chances) + np.minimum(gains, MAX_GAIN)


def projected(log_weights: Array, total: float, *, least: float) -> Array:
    """Return the chances in [`least`, 1] with this sum that are nearest to the weights: in Kullback-Leibler divergence.

    These are clip(c w, least, 1). As a function of c their sum is linear between places where one meets a bound.
    """
    edges = np.sort(np.concatenate([np.log(least) - log_weights, -log_weights]))  # of log c
    sums = _clipped(edges[:, None] + log_weights, least).sum(axis=1)
    above = int(np.clip(np.searchsorted(sums, total), 1, len(edges) - 1))
    low, high = sums[above - 1 : above + 1]
    part = 1.0 if high <= low else min(1.0, max(0.0, (total - low) / (high - low)))
    shift = edges[above] + np.log(part + (1.0 - part) * np.exp(edges[above - 1] - edges[above]))
    return _clipped(shift + log_weights, least)


def _clipped(log_chances: Array, least: float) -> Array:
    chances: Array = np.exp(np.clip(log_chances, np.log(least), 0.0))
    return chances
