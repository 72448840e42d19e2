"""CAT: as many entries as promise the most descent per unit of cost (Khirirat et al., 2021).

Symbols: v the vector to send, with entries sorted by falling magnitude, m_1 >= .. >= m_n; T the entries that are sent;
C(T) what that costs. A step along what is sent, of the length that is best for it, descends by gain(T) ||v||^2 / (2 L)
on an L-smooth function, at least or on average. `m` is `(n,)` throughout, and so is a result: its place T-1 is about T.
"""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

#: Ratios that differ by less are equal but for rounding.
TIE = 1e-12


def gain_of_largest(m: Numbers) -> Numbers:
    """Return alpha(T) = (m_1^2 + .. + m_T^2) / ||v||^2: the T largest entries as they are."""
    return np.cumsum(m**2) / np.sum(m**2)


def gain_of_signs(m: Numbers) -> Numbers:
    """Return beta(T) = (m_1 + .. + m_T)^2 / (T ||v||^2): signs of the T largest, and one magnitude."""
    return np.cumsum(m) ** 2 / (np.arange(1, len(m) + 1) * np.sum(m**2))


def gain_of_drawn(m: Numbers) -> Numbers:
    """Return omega(T) = ||v||^2 / sum_j(m_j^2 / p_j): T entries on average.

    They are drawn with the chances p_j = min(1, c m_j) of `scale_of_draws`.
    """
    counts = np.arange(1.0, len(m) + 1)
    certain, rest = _certain(m, counts)
    drawn = np.maximum(counts - certain, np.finfo(np.float64).tiny)
    second_moment = np.cumsum(np.append(0.0, m**2))[certain] + np.where(rest > 0, rest**2 / drawn, 0.0)
    return np.sum(m**2) / second_moment


def scale_of_draws(m: Numbers, count: int) -> float:
    """Return c, with which probabilities min(1, c m_j) add up to `count`, of the best mean; inf: all are certain."""
    certain, rest = _certain(m, np.array([float(count)]))
    return float((count - certain[0]) / rest[0]) if rest[0] > 0 else np.inf


def _certain(m: Numbers, counts: Numbers) -> tuple[NDArray[np.intp], Numbers]:
    """Return for each of `counts` how many entries are sent with certainty, and the sum of the other magnitudes.

    n are enough for T where those left are drawn with (T - n) m_{n+1} <= m_{n+1} + m_{n+2} + .. ; the T up to which n
    are enough grow with n.
    """
    rest = np.append(np.cumsum(m[::-1])[::-1], 0.0)
    up_to = np.arange(len(m)) + np.divide(rest[:-1], m, out=np.full(len(m), np.inf), where=m > 0)
    certain = np.searchsorted(np.maximum.accumulate(up_to), counts * (1 - TIE))
    return certain, rest[certain]


def best_count(gains: Numbers, costs: Numbers) -> int:
    """Return the T of the highest gain per cost, or, where nothing costs, gain; the smallest of those that tie."""
    if not np.all(np.isfinite(gains)):
        return 1  # of a vector of zeros, or one whose step is void
    ratios = gains if not np.all(costs > 0) else gains / costs
    return 1 + int(np.argmax(ratios >= (1 - TIE) * np.max(ratios)))
