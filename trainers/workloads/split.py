"""Split data without a split of their own: once and for all, so that every job has the same task."""

import numpy as np
import torch
from torch import Tensor

VALIDATION_SHARE = 0.2
#: The split is part of the task, so it does not follow a job's seed.
SPLIT_SEED = 20_260_101


def stratified_split(labels: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return the indices of the training and the validation samples, each class split in the same ratio."""
    rng = np.random.default_rng(SPLIT_SEED)
    training, validation = [], []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cut = round(len(members) * VALIDATION_SHARE)
        validation.append(members[:cut])
        training.append(members[cut:])
    return torch.from_numpy(np.concatenate(training)), torch.from_numpy(np.concatenate(validation))
