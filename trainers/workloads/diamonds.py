"""The prices of diamonds (ggplot2's table, as plotnine carries it) and a perceptron."""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trainers.segment import Direction
from trainers.spec.workloads import DiamondsMlp
from trainers.traffic.shapes import DIAMONDS_WIDTHS
from trainers.workload import Batch, Workload, WorkloadError
from trainers.workloads import data
from trainers.workloads.perceptron import perceptron
from trainers.workloads.split import stratified_split

NUMBERS = ("carat", "depth", "table", "x", "y", "z")
GRADES = {
    "cut": ("Fair", "Good", "Very Good", "Premium", "Ideal"),
    "color": ("D", "E", "F", "G", "H", "I", "J"),
    "clarity": ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
}


class Diamonds(Workload):
    """53,940 diamonds, split 80 : 20. Batches are features `(b, 26)` and log prices `(b,)`, both standardised."""

    metrics: Mapping[str, Direction] = {"mae": "min"}  # of the natural logarithm of the price
    evaluation_batch_size = 1024

    def __init__(self, config: DiamondsMlp) -> None:
        path = data.find(
            "diamonds.csv",
            installed=data.in_package("plotnine", "data/diamonds.csv"),
            remedy="`pip install --no-deps plotnine`, which carries it",
        )
        features, prices = read_table(path)
        training, validation = stratified_split(np.zeros_like(prices))  # all of one class
        inputs, _ = _standardised(features, training)
        targets, self._std = _standardised(np.log(prices), training)
        self.training = TensorDataset(inputs[training], targets[training])
        self.validation = TensorDataset(inputs[validation], targets[validation])

    def model(self) -> nn.Module:
        return perceptron(DIAMONDS_WIDTHS)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean squared error of the standardised log price."""
        features, prices = batch
        return nn.functional.mse_loss(model(features).squeeze(1), prices)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        features, prices = batch
        errors = model(features).squeeze(1) - prices
        return {"loss": errors.square().mean(), "mae": errors.abs().mean() * float(self._std)}


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return features `(n, 26)`, the grades one-hot, and prices `(n,)` in dollars.

    Raises WorkloadError, with the row at fault, if the file is another table.
    """
    features, prices = [], []
    with path.open(newline="") as file:
        for row in (rows := csv.DictReader(file)):
            try:
                features.append(_features(row))
                prices.append(float(row["price"]))
            except (KeyError, ValueError, TypeError) as error:  # TypeError: a row that ends early
                raise WorkloadError(f"{path}, line {rows.line_num}, is no diamond: {error!r}") from error
    if not prices:
        raise WorkloadError(f"{path} holds no diamonds")
    return np.array(features, dtype=np.float64), np.array(prices)


def _features(row: Mapping[str, str]) -> list[float]:
    one_hot = np.zeros(sum(map(len, GRADES.values())))
    start = 0
    for column, grades in GRADES.items():
        one_hot[start + grades.index(row[column])] = 1.0
        start += len(grades)
    return [*(float(row[column]) for column in NUMBERS), *one_hot]


def _standardised(values: np.ndarray, training: Tensor) -> tuple[Tensor, np.ndarray]:
    """Return `values` `(n, ...)` with mean 0 and deviation 1 over the `training` rows, and their own deviation."""
    mean, std = values[training].mean(axis=0), values[training].std(axis=0)
    std = np.where(std > 0, std, 1.0)  # a grade that does not occur
    return torch.from_numpy((values - mean) / std).float(), std
