"""Warm-up: the density falls exponentially to its level (Lin et al., 2018, section 3.3)."""

from typing import Any

from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.snapshot import Kept
from trainers.spec.levels import WarmupConfig
from trainers.traffic.buckets import Bucket


def density_at(step: int, target: float, config: WarmupConfig) -> float:
    """Return the density of step number `step` (from 0).

    Stage e of W has max(c^(e+1), target) with c = target^(1/(W+1)), as the authors' code has epoch e: 25, 6.3, 1.6 and
    0.4 % for a target of 0.1 %.
    """
    stage = step * config.stages // config.steps
    if stage >= config.stages:
        return target
    exponent = (stage + 1) / (config.stages + 1)
    return float(max(target**exponent, target))


class Warmup:
    """Counts the steps."""

    def __init__(self, config: WarmupConfig) -> None:
        self._config = config
        self._taken = 0

    def level(self, asked: float, learning_rate: float) -> float:
        return density_at(self._taken, asked, self._config)

    def watch(self, bucket: Bucket, gradient: Tensor) -> None:
        return

    def commit(self, connection: Connection) -> None:
        self._taken += 1

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def scalars(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._taken = scalars["taken"]

    def inherit(self, kept: Kept) -> None:
        if kept.index == 0:
            self.load_scalars(dict(kept.scalars))
