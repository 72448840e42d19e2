"""Traffic of collectives, from sizes alone: bytes one rank sends, and what it waits for.

The exchange counts its own bytes with these functions, so a prediction and the bill cannot drift apart.
Symbols: N workers, d gradient entries. Pure Python.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trainers.spec.link import EmulateLink
from trainers.traffic.buckets import Bucket
from trainers.traffic.payload_layout import PayloadLayout, ValueFormat
from trainers.traffic.sizes import WORD_BYTES

HALF_BYTES = 2
#: 32-bit words beside the gradient in a dense exchange: the loss.
CONTROL_WORDS = 1
#: The same in one that would have been sparse: the loss, the entries that were wanted, the selector's note.
DENSE_CONTROL_WORDS = 3
#: Before every sparse payload: entries wanted, loss, finite flag, entries wanted of the fullest shard, selector's note.
HEADER_BYTES = 5 * WORD_BYTES
#: What a node's leader tells the others of a step: loss, diverged, density, in 64 bits each.
OUTCOME_BYTES = 3 * 8
#: Room for the next step's entries, relative to what is expected: the plan, or what the fullest rank wanted before.
CAPACITY_MARGIN = 1.2
#: The same where the cut-off is found anew in every step, for each rank by itself.
COUNT_MARGIN = 1.1
#: Capacities are multiples of this, so that they change rarely.
CAPACITY_MULTIPLE = 8
#: Two ranks swap tensors of up to so many bytes: one round instead of two. Larger ones want a ring, which sends parts
#: while it adds others.
SWAP_BYTES = 1 << 16
#: Entries of a block that one rank owns. Small, so that large gradients in one layer are shared out.
SHARD_BLOCK = 64


@dataclass(frozen=True)
class Traffic:
    """One rank's traffic in a collective: bytes sent, and waits for the link's latency.

    Where ranks send in turn, as in a tree, a rank waits for more bytes than it sends: for those `awaited`, too. They
    take time, and are on the others' bills.
    """

    bytes: int
    rounds: int
    awaited: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.bytes + other.bytes, self.rounds + other.rounds, self.awaited + other.awaited)

    def over(self, num_steps: int) -> "MeanTraffic":
        """Return the mean of so many steps of which one has this traffic and the others none."""
        return MeanTraffic(self.bytes / num_steps, self.rounds / num_steps, self.awaited / num_steps)

    def seconds(self, link: EmulateLink) -> float:
        """Return the least time this takes on `link`, full duplex."""
        return self.over(1).seconds(link)


class MeanTraffic(NamedTuple):
    """One rank's mean traffic in a step, as in `Traffic`."""

    bytes: float
    rounds: float
    awaited: float = 0.0

    def seconds(self, link: EmulateLink) -> float:
        """Return the least time this takes on `link`, full duplex."""
        return (self.bytes + self.awaited) * 8 / (link.mbps * 1e6) + self.rounds * link.latency_ms / 1e3


NOTHING = Traffic(0, 0)
#: Maps the bytes of one rank's tensor and the number of workers to traffic.
Collective = Callable[[int, int], Traffic]


def all_reduce(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of an all-reduce of `num_bytes`: 2(N-1)/N of them leave each rank, in a ring or swapped."""
    rounds = 1 if swaps(num_bytes, num_workers) else 2 * (num_workers - 1)
    return Traffic(math.ceil(2 * (num_workers - 1) * num_bytes / num_workers), rounds)


def swaps(num_bytes: int, num_workers: int) -> bool:
    """Return whether ranks reduce a tensor by sending each other all of it: of two, each sends as much in a ring.

    NCCL reduces as it likes, and is counted alike.
    """
    return num_workers == 2 and num_bytes <= SWAP_BYTES


def all_gather(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of a ring all-gather of `num_bytes` per rank: each payload passes each rank once."""
    return Traffic((num_workers - 1) * num_bytes, num_workers - 1)


def all_to_all(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of an all-to-all of `num_bytes` per rank, of which 1/N stays where it is."""
    return Traffic(math.ceil((num_workers - 1) * num_bytes / num_workers), num_workers - 1)


def broadcast(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of a broadcast down a binomial tree, as the ranks' mean: all but one receive it once.

    The last to receive it waits while the whole of it passes from level to level.
    """
    sent, depth = math.ceil((num_workers - 1) * num_bytes / num_workers), math.ceil(math.log2(num_workers))
    return Traffic(sent, depth, depth * num_bytes - sent)


def reduce(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of a sum at one rank, as the ranks' mean: all but one send it once.

    gloo sums around a ring, as long as that takes, and then gathers the parts at the one rank: as many bytes again.
    """
    sent = broadcast(num_bytes, num_workers)
    return replace(sent, awaited=sent.bytes)


def point_to_point(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of one message to one rank."""
    return Traffic(num_bytes, 1)


def num_elements(shapes: Iterable[Sequence[int]]) -> int:
    """Return d for parameters of these shapes."""
    return sum(math.prod(shape) for shape in shapes)


def dense_step(d: int, num_workers: int) -> Traffic:
    """Return the traffic of a dense step: one all-reduce of gradient and loss."""
    return all_reduce(WORD_BYTES * (d + CONTROL_WORDS), num_workers)


def capacity_for(wanted: float, d: int, margin: float = CAPACITY_MARGIN) -> int:
    """Return the entries to make room for when `wanted` were wanted, at most d."""
    return min(d, CAPACITY_MULTIPLE * max(1, math.ceil(margin * wanted / CAPACITY_MULTIPLE)))


def payload_bytes(d: int, capacity: int, values: ValueFormat) -> int:
    """Return the bytes of a sparse payload, header and padding included."""
    return HEADER_BYTES + PayloadLayout(d, capacity, values).num_bytes


def gather(d: int, capacity: int, values: ValueFormat, num_workers: int) -> Traffic:
    """Return the traffic of sending a payload of `capacity` of `d` entries to all."""
    return all_gather(payload_bytes(d, capacity, values), num_workers)


def sharded(size: int, room: int, kept: int, values: ValueFormat, num_workers: int) -> Traffic:
    """Return the traffic of summing by owners of shards of `size` entries.

    `room` entries go from each rank to each owner, and `kept` from each owner to all.
    """
    to_owners = all_to_all(num_workers * payload_bytes(size, room, values), num_workers)
    return to_owners + all_gather(payload_bytes(size, kept, values), num_workers)


def shard_size(d: int, num_owners: int) -> int:
    """Return the entries of the largest shard of `d`: blocks are dealt out in turn."""
    return -(-d // (SHARD_BLOCK * num_owners)) * SHARD_BLOCK


def dense_bucket(bucket: Bucket, num_workers: int) -> Traffic:
    """Return the traffic of a bucket in dense training; the last one takes the loss along."""
    control = CONTROL_WORDS if bucket.start == 0 else 0
    return all_reduce(WORD_BYTES * (bucket.num_elements + control), num_workers)


def dense_instead(d: int, num_workers: int) -> Traffic:
    """Return the traffic of a bucket that goes densely because that takes fewer bytes."""
    return all_reduce(WORD_BYTES * (d + DENSE_CONTROL_WORDS), num_workers)
