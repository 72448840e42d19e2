"""Sums that go up a tree of ranks: two ranks' entries become one's, of which the largest go on (Shi et al., 2019)."""

import math
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from trainers.exchange.aggregate import Forgetful, Report, Unread, num_used
from trainers.exchange.compressors.gtopk import merge, merge_rounds
from trainers.exchange.config import GTopKConfig
from trainers.exchange.connection import Connection
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.payload import Header, Payload, header, joined
from trainers.traffic import cost
from trainers.traffic.buckets import Bucket


class Tree(Forgetful):
    """Every rank but the first sends one payload up, and all get the first one's: bytes that do not grow with N.

    Who merges keeps in its own memory what it drops, and who sends keeps what rounding takes, so that nothing is lost.
    """

    def __init__(self, config: GTopKConfig, bucket: Bucket, connection: Connection) -> None:
        self._bucket, self._connection, self._dtype = bucket, connection, config.values
        self._transfers = list(chain(*merge_rounds(connection.num_workers)))

    def num_bytes(self, capacity: int) -> int:
        return cost.tree(self._bucket.num_elements, capacity, self._dtype, self._connection.num_workers).bytes

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
        d = self._bucket.num_elements
        for below in (each.sender for each in self._transfers if each.receiver == self._connection.rank):
            words = self._connection.receive(_room(payload, entries), below)
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
            self._connection.charge(payload.unused(sent), cost.point_to_point)
        self._connection.charge(payload.unused(count), cost.broadcast)
        told, num_workers = Header.read(words[2:]), self._connection.num_workers
        return Report(
            loss=told.loss / num_workers,
            is_finite=told.is_finite and math.isfinite(told.loss),
            most_wanted=told.most,
            sent=count,
        )


def _room(payload: Payload, like: Entries) -> Tensor:
    return torch.empty(payload.num_bytes, dtype=torch.uint8, device=like.values.device)
