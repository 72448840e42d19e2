"""Workloads whose loss brings numbers of their own; the tests name them in a job."""

from collections.abc import Mapping
from typing import Any

import torch
from own_models import Regression
from torch import nn

from trainers.segment import Direction
from trainers.workload import Workload


class Numbered(Regression):
    """Returns twice its loss, which is averaged as the loss is, and a number that is never finite."""

    metrics: Mapping[str, Direction] = {}
    evaluate = Workload.evaluate

    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss = super().loss(model, batch)
        return loss, {"twice": 2 * loss, "never": float("nan")}


class Changing(Regression):
    """Returns another name from the third loss on."""

    def __init__(self) -> None:
        super().__init__()
        self.num_losses = 0

    def loss(self, model: nn.Module, batch: Any) -> Any:
        self.num_losses += 1
        return super().loss(model, batch), {"late" if self.num_losses > 2 else "early": 1.0}


class ByRank(Regression):
    """Returns another name on every rank that is not the first."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return super().loss(model, batch), {f"of_rank_{rank}": 1.0}


NAMES: dict[str, Any] = {
    "capital": {"Aux": 1.0},
    "slash": {"f1/macro": 1.0},
    "long": {"a" * 51: 1.0},
    "not a name": {3: 1.0},
    "seventeen": {f"n{index}": 1.0 for index in range(17)},
    "vector": {"aux": torch.ones(2)},
    "text": {"aux": "much"},
}


class Misnamed(Regression):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.own = NAMES[fault]

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return super().loss(model, batch), self.own
