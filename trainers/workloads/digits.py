"""Handwritten digits (scikit-learn's copy of UCI's optdigits test set) and a three-layer perceptron."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainers.spec.workloads import DigitsMlp
from trainers.traffic.shapes import DIGITS_WIDTHS
from trainers.workloads.classification import Classification
from trainers.workloads.perceptron import perceptron
from trainers.workloads.split import stratified_split

MAX_PIXEL = 16.0


class Digits(Classification):
    """1,797 scans of 8x8 pixels in 10 classes, split 80 : 20 by class; pixels in [0, 1]."""

    def __init__(self, config: DigitsMlp) -> None:
        from sklearn.datasets import load_digits  # here: other workloads need not wait a second for it

        pixels, labels = load_digits(return_X_y=True)
        inputs = torch.from_numpy((pixels / MAX_PIXEL).astype(np.float32))  # 1797 x 64
        targets = torch.from_numpy(labels.astype(np.int64))
        training, validation = stratified_split(labels)
        self.training = TensorDataset(inputs[training], targets[training])
        self.validation = TensorDataset(inputs[validation], targets[validation])

    def model(self) -> nn.Module:
        return perceptron(DIGITS_WIDTHS)
