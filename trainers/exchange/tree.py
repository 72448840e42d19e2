"""Sums that go up a tree of ranks: two ranks' entries become one's, of which the largest go on (Shi et al., 2019)."""

import math
from itertools import chain

import torch
from torch import Tensor

from trainers import cost
from trainers.exchange.aggregate import Forgetful, Report
from trainers.exchange.buckets import Bucket
from trainers.exchange.compressors.gtopk import merge, merge_rounds
from trainers.exchange.config import GTopKConfig
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.payload import Header, Payload
from trainers.exchange.wire import Wire


class Tree(Forgetful):
    """Every rank but the first sends one payload up, and all get the first one's: bytes that do not grow with N.

    Who merges keeps in its own memory what it drops, and who sends keeps what rounding takes, so that nothing is lost.
    """

    def __init__(self, config: GTopKConfig, bucket: Bucket, wire: Wire) -> None:
        self._bucket, self._wire, self._dtype = bucket, wire, config.values

    def num_bytes(self, capacity: int) -> int:
        return cost.tree(self._bucket.num_elements, capacity, self._dtype, self._wire.num_workers).bytes

    def reduce(self, selection: Selection, capacity: int, *, loss: float, memory: Memory, out: Tensor) -> Report:
        payload, num_workers = Payload(self._bucket.num_elements, capacity, self._dtype), self._wire.num_workers
        words = self._climb(Header.of(selection, loss), selection.entries, payload, memory)
        # How many entries are in use, only the source knows; it is all but where most of a gradient is zero.
        self._wire.broadcast(words, 0, payload.parts(capacity))
        [header], entries = payload.headers(words.unsqueeze(0)), payload.entries(words)
        scatter_add(out.zero_(), entries, 1 / num_workers)
        return Report(
            loss=header.loss / num_workers,
            is_finite=header.is_finite and math.isfinite(header.loss),
            most_wanted=header.most,
            sent=len(entries.indices),
        )

    def _climb(self, header: Header, entries: Entries, payload: Payload, memory: Memory) -> Tensor:
        """Add what the ranks below send, and send the sum up; returns it, which for the first rank is of all."""
        rank, transfers = self._wire.rank, list(chain(*merge_rounds(self._wire.num_workers)))
        for below in (each.sender for each in transfers if each.receiver == rank):
            words = self._wire.receive(_room(payload, entries), below)
            [theirs] = payload.headers(words.unsqueeze(0))
            header = _joined(header, theirs)
            kept, dropped = merge(entries, payload.entries(words), payload.layout.capacity)
            entries = Entries(*kept)
            memory.keep(self._bucket.span, *dropped)
        words, errors = payload.pack(header, entries)
        memory.keep(self._bucket.span, entries.indices, errors)
        for above in (each.receiver for each in transfers if each.sender == rank):
            self._wire.send(words, above, payload.parts(len(entries.indices)))
        return words


def _room(payload: Payload, like: Entries) -> Tensor:
    return torch.empty(payload.num_bytes, dtype=torch.uint8, device=like.values.device)


def _joined(mine: Header, theirs: Header) -> Header:
    """Return the sums over the ranks of both; of `most`, the largest."""
    return Header(
        wanted=mine.wanted + theirs.wanted,
        loss=mine.loss + theirs.loss,
        is_finite=mine.is_finite and theirs.is_finite,
        most=max(mine.most, theirs.most),
    )
