"""Handwritten digits (scikit-learn's copy of UCI's optdigits test set) and a three-layer perceptron."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trainers.config import DigitsMlp
from trainers.workloads.classification import Classification

MAX_PIXEL = 16.0
VALIDATION_SHARE = 0.2
#: The split is part of the task, so it does not follow a job's seed.
SPLIT_SEED = 20_260_101


class Digits(Classification):
    """1,797 scans of 8x8 pixels in 10 classes, split 80 : 20 by class; pixels in [0, 1]."""

    def __init__(self, config: DigitsMlp) -> None:
        self.batch_size = config.batch_size
        pixels, labels = load_digits(return_X_y=True)
        inputs = torch.from_numpy((pixels / MAX_PIXEL).astype(np.float32))  # 1797 x 64
        targets = torch.from_numpy(labels.astype(np.int64))
        training, validation = stratified_split(labels)
        self.training = TensorDataset(inputs[training], targets[training])
        self.validation = TensorDataset(inputs[validation], targets[validation])

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


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
