"""Global top-k: sum the ranks' largest entries pair by pair, up a tree (Shi et al., ICDCS 2019).

In the published method, a rank takes back only entries that are absent from the result. From four ranks on, an entry
that one merge drops and another keeps is lost. Here the rank that merges keeps what it drops, so the memories and the
result always add up to the input.
"""

import math
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from trainers.exchange.aggregate import Forgetful, Report, Unread, num_used
from trainers.exchange.by_count import ByCount
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.largest import largest
from trainers.exchange.kernels.scatter import clear, places, scatter_add, take
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.payload import Header, Payload, header, joined
from trainers.exchange.sparse import SparseExchange
from trainers.methods.exchange.gtopk.spec import GTopKConfig, tree_traffic
from trainers.traffic import collectives
from trainers.traffic.buckets import Bucket


class Transfer(NamedTuple):
    """A rank sends its sum, and is done."""

    sender: int
    receiver: int


def merge_rounds(num_workers: int) -> list[list[Transfer]]:
    """Return who sends to whom in each of ceil(log2 N) rounds, for any N. Rank 0 ends up with the sum."""
    strides = [2**power for power in range((num_workers - 1).bit_length())]
    return [
        [Transfer(receiver + stride, receiver) for receiver in range(0, num_workers - stride, 2 * stride)]
        for stride in strides
    ]


def merge(mine: Entries, theirs: Entries, count: int, d: int) -> tuple[Entries, Entries]:
    """Return the `count` largest entries of the sum of two sparse vectors `(d,)`, and the others, for the memory."""
    indices, order = torch.cat([mine.indices, theirs.indices]).sort()
    values = torch.where(indices < d, torch.cat([mine.values, theirs.values])[order], 0.0)
    # What both have is there twice in succession: the second of them moves to the first, and is 0 then.
    is_second = indices.diff(prepend=indices.new_full((1,), -1)) == 0
    sums = values + torch.where(is_second, values, 0.0).roll(-1)
    sums = torch.where(is_second, 0.0, sums)
    kept = largest(sums, count)
    dropped = sums.clone()
    clear(dropped, kept)
    others = places(dropped != 0, len(dropped))
    return _at(kept, indices, sums, d), _at(others, indices, sums, d)


def _at(chosen: Tensor, indices: Tensor, values: Tensor, d: int) -> Entries:
    """Return those of some entries that are at `chosen`; one behind them is an unused slot."""
    return Entries(torch.cat([indices, indices.new_full((1,), d)])[chosen], take(values, chosen).values)


class Tree(Forgetful):
    """Every rank but the first sends one payload up, and all receive the first one's. The bytes do not grow with N.

    A rank that merges keeps what it drops in its memory, and a rank that sends keeps its rounding errors: nothing is
    lost.
    """

    def __init__(self, config: GTopKConfig, bucket: Bucket, connection: Connection) -> None:
        self._bucket, self._connection, self._dtype = bucket, connection, config.values
        self._transfers = list(chain(*merge_rounds(connection.num_workers)))

    def num_bytes(self, capacity: int) -> int:
        return tree_traffic(self._bucket.num_elements, capacity, self._dtype, self._connection.num_workers).bytes

    def reduce(self, selection: Selection, capacity: int, *, loss: Tensor, memory: Memory, out: Tensor) -> Unread:
        payload = Payload(self._bucket.num_elements, capacity, self._dtype)
        words, sent = self._climb(header(selection, loss), selection.entries, payload, memory)
        self._connection.broadcast(words, 0, payload.parts())
        told, entries = payload.headers(words.unsqueeze(0))[0], payload.entries(words)
        scatter_add(out.zero_(), entries, 1 / self._connection.num_workers)
        counts = [sent, num_used(entries.indices, len(out))]
        return Unread(torch.cat([*counts, told]), partial(self._read, payload))

    def _climb(self, told: Tensor, entries: Entries, payload: Payload, memory: Memory) -> tuple[Tensor, Tensor]:
        """Add what the ranks below send, and send the sum up.

        Returns the sum, which for the first rank is of all, and how many entries it has `(1,)`.
        """
        d, room = self._bucket.num_elements, told.new_empty(payload.num_bytes, dtype=torch.uint8)
        for below in (each.sender for each in self._transfers if each.receiver == self._connection.rank):
            words = self._connection.receive(room, below)
            told = joined(told, payload.headers(words.unsqueeze(0))[0])
            entries, dropped = merge(entries, payload.entries(words), payload.layout.capacity, d)
            memory.keep(self._bucket.span, dropped)
        words, errors = payload.pack(told, entries)
        memory.keep(self._bucket.span, Entries(entries.indices, errors))
        for above in self._above():
            self._connection.send(words, above, payload.parts())
        return words, num_used(entries.indices, d)

    def _above(self) -> list[int]:
        """Return whom this rank sends its sum; there is nobody above the first one."""
        return [each.receiver for each in self._transfers if each.sender == self._connection.rank]

    def _read(self, payload: Payload, words: Tensor) -> Report:
        sent, count = words[:2].tolist()
        for _ in self._above():
            self._connection.charge(payload.unused(sent), collectives.point_to_point)
        self._connection.charge(payload.unused(count), collectives.broadcast)
        told, num_workers = Header.read(words[2:]), self._connection.num_workers
        return Report(
            loss=told.loss / num_workers,
            is_finite=told.is_finite and math.isfinite(told.loss),
            most_wanted=told.most,
            sent=count,
        )


def build(config: GTopKConfig, buffer: Gradients, connection: Connection, *, seed: int) -> SparseExchange:
    """Return the exchange of `config`."""
    selector = ByCount(config, exact=True, by_layer=False)
    return SparseExchange(
        config, selector, buffer, connection, aggregator=lambda bucket: Tree(config, bucket, connection)
    )
