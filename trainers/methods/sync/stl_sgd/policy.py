"""STL-SGD: local SGD in stages, whose periods grow as the learning rate falls.

Shen, Cheng, Liu and Xu (2021), "STL-SGD: speeding up local SGD with stagewise communication period". The rate that a
segment asks for is that of the first stage. Ranks meet at the end of every stage, whatever the period.
"""

import math
from typing import NamedTuple

from torch import Tensor

from trainers.exchange.step_result import Exchanged
from trainers.methods.sync.local_sgd.policy import LocalSgd
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.stl_sgd.spec import StlSgdConfig
from trainers.spec.partition import IidPartition


class Stage(NamedTuple):
    """A stage of the method."""

    start: int  # its first step, from 0
    end: int  # the first step of the next one
    factor: int  # by which the first stage's learning rate is divided


def stage_at(step: int, config: StlSgdConfig) -> Stage:
    """Return the stage that holds optimizer step `step` (from 0)."""
    start, number = 0, 1
    while True:
        factor = 2 ** (number - 1) if config.growth == "double" else number
        end = start + factor * config.first_stage
        if step < end:
            return Stage(start, end, factor)
        start, number = end, number + 1


def period_at(stage: Stage, first_period: int, *, is_iid: bool) -> int:
    """Return the period in `stage`: rate x period, or rate x period^2 if data differ, is that of the first stage."""
    return math.floor(first_period * (stage.factor if is_iid else math.sqrt(stage.factor)))


class StlSgd(LocalSgd):
    """With `gamma`, keeps the parameters `(d,)` that its stage began with, as the centre that it is drawn to."""

    def __init__(self, config: StlSgdConfig, parts: PolicyParts) -> None:
        super().__init__(config, parts)
        self._config = config
        is_dealt_iid = isinstance(parts.config.partition, IidPartition)
        self._is_iid = config.data == "iid" or (config.data == "auto" and is_dealt_iid)
        self._center = self._parameters().clone() if config.gamma else self._anchor.new_zeros(0)

    def _parameters(self) -> Tensor:
        return self._iterate.read()[: self._iterate.num_parameters]

    def learning_rate(self, learning_rate: float, step: int) -> float:
        return learning_rate / stage_at(step, self._config).factor

    def amend(self, gradient: Tensor) -> None:
        if self._config.gamma:
            gradient.add_(self._parameters() - self._center, alpha=1 / self._config.gamma)

    def _steps_left(self, update: Update) -> int:
        stage = stage_at(update.number - 1, self._config)
        period = period_at(stage, update.period or self._period, is_iid=self._is_iid)
        return min(period - self._since, stage.end - update.number + 1)

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        met = super()._meet(outcome, update)
        if self._config.gamma and update.number == stage_at(update.number - 1, self._config).end:
            self._center.copy_(self._parameters())
        return met

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"center": self._center}
