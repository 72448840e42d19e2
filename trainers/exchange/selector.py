"""Select the entries of a bucket to send, and the room they get. All ranks decide alike."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trainers.exchange.aggregate import Report
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.level import Level
from trainers.exchange.memory import Memory, Selection
from trainers.traffic import collectives
from trainers.traffic.buckets import Bucket


class Count(NamedTuple):
    """A rank's report on a bucket that goes densely: scalars beside the gradient."""

    wanted: Tensor  # entries that would have been selected
    note: Tensor  # as that of a `Selection`

    @classmethod
    def of(cls, wanted: Tensor | int, like: Tensor) -> "Count":
        """Return the count of a selector that has no more to say, of a gradient like `like`."""
        return cls(torch.full_like(like[0], wanted) if isinstance(wanted, int) else wanted, torch.zeros_like(like[0]))


def next_capacities(reports: Sequence[Report], sizes: Sequence[int]) -> list[int]:
    """Return for how many entries of each bucket the next step has room: what was `most_wanted` now."""
    return [collectives.capacity_for(each.most_wanted, d) for each, d in zip(reports, sizes, strict=True)]


class Selector(Protocol):
    """Chooses entries of the corrected gradient."""

    @property
    def threshold(self) -> float | None:
        """The cut-off in force, if there is one that all ranks share."""

    @property
    def sends_all(self) -> bool:
        """Return whether the level asks for everything: dense training."""

    def prepare(self, level: Level, buffer: GradientBuffer, memory: Memory, connection: Connection) -> bool:
        """Get ready for a step at `level`; collective. False: a gradient is not finite.

        Raises ValueError for a level that the configuration does not allow.
        """

    def capacity(self, bucket: Bucket) -> int:
        """Return for how many entries to make room; all of the bucket: it is to be sent densely."""

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        """Return the entries to send, at most `capacity` of them."""

    def count(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> Count:
        """Return how many entries would be selected."""

    def observe(self, reports: Sequence[Report]) -> None:
        """Learn what the ranks wanted to send of each bucket."""

    def scalars(self) -> dict[str, Any]: ...
    def load_scalars(self, scalars: dict[str, Any]) -> None: ...
