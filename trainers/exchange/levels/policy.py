"""What changes the level from step to step: what all policies have in common."""

from typing import Protocol

from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.levels.level import Level
from trainers.traffic.buckets import Bucket
from trainers.training.snapshot import Inheriting


class LevelPolicy(Inheriting, Protocol):
    """Sets the level of each step, the same on all ranks. Its state changes in `commit` alone: a step may be void."""

    def level(self, asked: float, learning_rate: float) -> Level:
        """Return the level of the coming step, whose stage has the level `asked`."""

    def watch(self, bucket: Bucket, gradient: Tensor) -> None:
        """See the bucket's gradient of this rank, or node, before anything is done to it."""

    def commit(self, connection: Connection) -> None:
        """End a step that was finite on all ranks; collective."""
