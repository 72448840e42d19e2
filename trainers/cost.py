"""What an optimizer step costs on the wire, from shapes alone: bytes one rank sends, rounds, seconds.

The exchange counts its own bytes with these functions, so a prediction and the bill cannot drift apart.
Symbols: N workers, d gradient entries. Pure Python.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainers.config import EmulateLink, ExchangeConfig, NoneConfig

#: 32-bit words beside the gradient in every exchange: loss, finite flag, entries at or above the threshold.
CONTROL_WORDS = 3
WORD_BYTES = 4
#: A sparse entry is an int32 index and a float32 value.
ENTRY_BYTES = 2 * WORD_BYTES
#: Room for the next step's entries, relative to what the fullest rank wanted to send in this one.
CAPACITY_MARGIN = 1.25
#: Capacities are multiples of this, so that they change rarely.
CAPACITY_MULTIPLE = 8


@dataclass(frozen=True)
class Traffic:
    """What one rank sends in a collective, and how many times it waits for the link's latency."""

    bytes: int
    rounds: int

    def seconds(self, link: EmulateLink) -> float:
        """Return the least time this takes on `link`, full duplex."""
        return self.bytes * 8 / (link.mbps * 1e6) + self.rounds * link.latency_ms / 1e3


#: Maps the bytes of one rank's tensor and the number of workers to traffic.
Collective = Callable[[int, int], Traffic]


def all_reduce(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of a ring all-reduce of `num_bytes`: 2(N-1)/N of them leave each rank."""
    return Traffic(math.ceil(2 * (num_workers - 1) * num_bytes / num_workers), 2 * (num_workers - 1))


def all_gather(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of a ring all-gather of `num_bytes` per rank: each payload passes each rank once."""
    return Traffic((num_workers - 1) * num_bytes, num_workers - 1)


def num_elements(shapes: Iterable[Sequence[int]]) -> int:
    """Return d for parameters of these shapes."""
    return sum(math.prod(shape) for shape in shapes)


def dense_step(d: int, num_workers: int) -> Traffic:
    """Return the traffic of a dense step: one all-reduce of gradient and control words."""
    return all_reduce(WORD_BYTES * (d + CONTROL_WORDS), num_workers)


def sparse_step(capacity: int, num_workers: int) -> Traffic:
    """Return the traffic of a sparse step: one all-gather of control words and `capacity` entries."""
    return all_gather(WORD_BYTES * CONTROL_WORDS + ENTRY_BYTES * capacity, num_workers)


def capacity_for(wanted: float, d: int) -> int:
    """Return the entries to make room for when `wanted` were wanted, at most d."""
    return min(d, CAPACITY_MULTIPLE * max(1, math.ceil(CAPACITY_MARGIN * wanted / CAPACITY_MULTIPLE)))


def prefers_dense(capacity: int, d: int, num_workers: int) -> bool:
    """Whether a dense step sends fewer bytes than a sparse one of this capacity."""
    return sparse_step(capacity, num_workers).bytes > dense_step(d, num_workers).bytes


def step_traffic(
    shapes: Iterable[Sequence[int]],
    *,
    num_workers: int,
    exchange: ExchangeConfig,
    density: float | None = None,
) -> Traffic:
    """Return the traffic of one optimizer step.

    `density` is the planned, or measured, share of entries that are sent; a threshold exchange needs it.
    Calibrations (one number, now and then) are not in it.
    """
    d = num_elements(shapes)
    if isinstance(exchange, NoneConfig):
        return dense_step(d, num_workers)
    if density is None or not 0 < density <= 1:
        raise ValueError(f"`density` must be in (0, 1] for a threshold exchange, got {density}")
    capacity = capacity_for(density * d, d)
    if density == 1 or prefers_dense(capacity, d, num_workers):
        return dense_step(d, num_workers)
    return sparse_step(capacity, num_workers)
