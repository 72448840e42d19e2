"""Select the entries of a bucket to send, and the room that they get. All ranks decide the same."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trainers.exchange.aggregate import Report
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.level import Level
from trainers.exchange.memory import Memory, Selection
from trainers.traffic import collectives
from trainers.traffic.buckets import Bucket


class Count(NamedTuple):
    """A rank's report on a bucket that is sent densely: scalars on the gradient's device."""

    wanted: Tensor  # entries that would have been selected
    note: Tensor  # as that of a `Selection`

    @classmethod
    def of(cls, wanted: Tensor | int, like: Tensor) -> "Count":
        """Return a count without a note, on the device of the gradient `like`."""
        return cls(torch.full_like(like[0], wanted) if isinstance(wanted, int) else wanted, torch.zeros_like(like[0]))


def next_capacities(reports: Sequence[Report], sizes: Sequence[int]) -> list[int]:
    """Return the capacity of each bucket in the next step, from what was `most_wanted` in this one."""
    return [collectives.capacity_for(each.most_wanted, d) for each, d in zip(reports, sizes, strict=True)]


class Selector(Protocol):
    """Chooses entries of the corrected gradient."""

    @property
    def threshold(self) -> float | None:
        """The threshold in force, if all ranks share one."""

    @property
    def sends_all(self) -> bool:
        """Return whether the level asks for everything: dense training."""

    def prepare(self, level: Level, buffer: Gradients, memory: Memory, connection: Connection) -> bool:
        """Prepare a step at `level`; collective. Returns False if a gradient is not finite.

        Raises ValueError for a level that the configuration does not allow.
        """

    def capacity(self, bucket: Bucket) -> int:
        """Return the number of entries to make room for. If it is the whole bucket, the bucket is sent densely."""

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        """Return the entries to send, at most `capacity` of them."""

    def count(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> Count:
        """Return how many entries would be selected."""

    def observe(self, reports: Sequence[Report]) -> None:
        """Learn how many entries of each bucket the ranks wanted to send."""

    def scalars(self) -> dict[str, Any]: ...
    def load_scalars(self, scalars: dict[str, Any]) -> None: ...
