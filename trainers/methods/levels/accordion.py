"""Accordion: more is sent in critical regimes, and after the learning rate has fallen (Agarwal et al., MLSys 2021)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.level import LayerLevels, Level
from trainers.methods.levels.regimes import DECIDER, Part, Regimes
from trainers.snapshot import Kept
from trainers.spec.levels import AccordionConfig
from trainers.traffic.buckets import Bucket


class Accordion:
    """Layers that are judged together have one level. A fall of the rate, which all ranks see, makes all critical."""

    def __init__(self, config: AccordionConfig, parts: Sequence[Part], like: Tensor) -> None:
        self._config, self._parts = config, parts
        self._regimes = Regimes(config, parts, like)
        self._learning_rate: float | None = None  # of the step before
        self._coming = (self._regimes.critical, 0.0)  # in the running step: what is critical, and its rate

    def level(self, asked: float, learning_rate: float) -> Level:
        critical, before = self._regimes.critical, self._learning_rate
        if self._config.follow_decay and before is not None and learning_rate < before:
            critical = (True,) * len(self._parts)
        self._coming = critical, learning_rate
        levels = [self._config.critical if each else asked for each in critical]
        if len(set(levels)) == 1:
            return levels[0]
        return LayerLevels(
            {layer.start: level for part, level in zip(self._parts, levels, strict=True) for layer in part}
        )

    def watch(self, bucket: Bucket, gradient: Tensor) -> None:
        self._regimes.watch(bucket, gradient)

    def commit(self, connection: Connection) -> None:
        critical, self._learning_rate = self._coming
        self._regimes.commit(critical, lambda told: connection.broadcast(told, DECIDER, {"control": told.nbytes}))

    def tensors(self) -> dict[str, Tensor]:
        return self._regimes.tensors()

    def scalars(self) -> dict[str, Any]:
        return {"regimes": self._regimes.scalars(), "learning_rate": self._learning_rate}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._learning_rate = scalars["learning_rate"]
        self._regimes.load_scalars(scalars["regimes"])

    def inherit(self, kept: Kept) -> None:
        if kept.index == DECIDER:
            self.load_scalars(dict(kept.scalars))
            self._regimes.tensors()["sum"].copy_(kept.tensors["sum"])
