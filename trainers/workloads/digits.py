"""Handwritten digits (scikit-learn's copy of UCI's optdigits test set) and a three-layer perceptron."""

from importlib.metadata import distribution

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
#: Read without importing the package, which takes every worker two seconds.
_FILE = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")


class Digits(Classification):
    """1,797 scans of 8x8 pixels in 10 classes, split 80 : 20 by class; pixels in [0, 1]."""

    def __init__(self, config: DigitsMlp) -> None:
        table = np.loadtxt(str(_FILE), delimiter=",", dtype=np.int64)  # 1797 x 65: the pixels, then the class
        pixels, labels = table[:, :-1], table[:, -1]
        inputs = torch.from_numpy((pixels / MAX_PIXEL).astype(np.float32))
        targets = torch.from_numpy(labels)
        training, validation = stratified_split(labels)
        self.training = TensorDataset(inputs[training], targets[training])
        self.validation = TensorDataset(inputs[validation], targets[validation])

    def model(self) -> nn.Module:
        return perceptron(DIGITS_WIDTHS)
