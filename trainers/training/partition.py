"""Share out training samples among workers whose data differ. Pure functions of (labels, seed)."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.spec.partition import ByLabelPartition, DirichletPartition

Labels = NDArray[np.int64]
Indices = NDArray[np.int64]

#: Keeps what is drawn here apart from other draws of the same seed.
_STREAM = 7


def shares(
    config: DirichletPartition | ByLabelPartition, labels: NDArray[Any], *, num_workers: int, seed: int
) -> list[Indices]:
    """Return the samples of each worker, in a random order; each is in one share, sizes differ by 1 at most.

    `labels` `(n,)` are the classes of all training samples. With equal sizes the mean over workers is that over
    all samples.
    """
    classes = np.unique(labels, return_inverse=True)[1]
    rng = np.random.default_rng([seed, _STREAM])
    shuffled = rng.permutation(len(classes))
    sizes = np.array([len(part) for part in np.array_split(shuffled, num_workers)])
    if isinstance(config, DirichletPartition):
        counts = _drawn_counts(np.bincount(classes), sizes, config.alpha, rng)
        dealt = _dealt(classes, shuffled, counts)
    else:
        dealt = shuffled[np.argsort(classes[shuffled], kind="stable")]
    return [rng.permutation(dealt[start:stop]) for start, stop in pairwise([0, *np.cumsum(sizes)])]


def _drawn_counts(available: Labels, sizes: Labels, alpha: float, rng: np.random.Generator) -> Labels:
    """Return how many samples of each class each worker gets, `(num_workers, num_classes)`.

    A worker's mix of classes is drawn from a Dirichlet distribution whose mean is the data's own, as in Hsu, Qi and
    Brown (2019), "Measuring the effects of non-identical data distribution", section 3; a class that is used up leaves
    its part to the others.
    """
    left, counts = available.copy(), np.zeros((len(sizes), len(available)), dtype=np.int64)
    for worker, size in enumerate(sizes):
        mix = rng.dirichlet(alpha * len(available) * available / available.sum())
        while missing := size - counts[worker].sum():
            weights = np.where(left > 0, mix, 0.0)
            if weights.sum() == 0.0:  # all of its classes are used up
                weights = left.astype(np.float64)
            drawn = np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
            counts[worker] += drawn
            left -= drawn
    return counts


def _dealt(classes: Labels, shuffled: Indices, counts: Labels) -> Indices:
    """Return the samples worker by worker, `counts[worker, class]` of each class."""
    members = [shuffled[classes[shuffled] == each] for each in range(counts.shape[1])]
    cuts = [np.split(of_class, np.cumsum(counts[:-1, each])) for each, of_class in enumerate(members)]
    return np.concatenate([parts[worker] for worker in range(len(counts)) for parts in cuts])
