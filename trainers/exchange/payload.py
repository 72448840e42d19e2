"""A rank's selection on the wire: a header, and entries padded to a capacity that all ranks know."""

from typing import NamedTuple

import torch
from torch import Tensor

from trainers.exchange.connection import BytesByPurpose
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.pack import pack, sum_unpacked, unpack
from trainers.exchange.memory import Selection
from trainers.traffic import collectives
from trainers.traffic.payload_layout import PayloadLayout, ValueFormat

HEADER_BYTES = collectives.HEADER_BYTES
#: Of a header's words; the others are float32.
NUM_COUNTS = 3


class Header(NamedTuple):
    """The header of a rank's payload, as it is read on the host."""

    wanted: int  # entries that qualified, whether or not there was room for them
    is_finite: bool
    most: int  # entries that the fullest of its shards wanted; where there is one shard, `wanted`
    loss: float
    note: float  # of the selector

    @classmethod
    def read(cls, words: Tensor) -> "Header":
        """Return the header of `words` `(5,)`, which lie in host memory."""
        wanted, is_finite, most = words[:NUM_COUNTS].tolist()
        return cls(wanted, bool(is_finite), most, *words[NUM_COUNTS:].view(torch.float32).tolist())


def header(selection: Selection, loss: Tensor, most: Tensor | None = None) -> Tensor:
    """Return the `Header` of a selection that belongs to `loss`, as words `(5,)` int32 beside them."""
    counts = [selection.wanted, selection.is_finite, selection.wanted if most is None else most]
    numbers = torch.stack([loss, selection.note]).view(torch.int32)
    return torch.cat([torch.stack([each.to(torch.int32) for each in counts]), numbers])


def joined(mine: Tensor, theirs: Tensor) -> Tensor:
    """Return the header of two ranks together: sums, and of `most` the larger one."""
    both = torch.stack([mine, theirs])
    wanted, is_finite, most = both[:, :NUM_COUNTS].unbind(1)
    numbers = both[:, NUM_COUNTS:].view(torch.float32).sum(0).view(torch.int32)
    return torch.cat([torch.stack([wanted.sum(dtype=torch.int32), is_finite.amin(), most.amax()]), numbers])


class Payload:
    """Room for `capacity` of `d` entries, with a header before them."""

    def __init__(self, d: int, capacity: int, values: ValueFormat) -> None:
        self.layout = PayloadLayout(d, capacity, values)

    @property
    def num_bytes(self) -> int:
        return HEADER_BYTES + self.layout.num_bytes

    def pack(self, told: Tensor, entries: Entries) -> tuple[Tensor, Tensor]:
        """Return the payload `(num_bytes,)` uint8, and of each entry what its format on the wire rounds off.

        `told` are the words of its header.
        """
        words = torch.zeros(self.num_bytes, dtype=torch.uint8, device=entries.values.device)
        words[:HEADER_BYTES] = told.view(torch.uint8)
        return words, pack(entries, self.layout, words[HEADER_BYTES:])

    @staticmethod
    def headers(rows: Tensor) -> Tensor:
        """Return the headers `(N, 5)` of payloads in rows `(N, num_bytes)`."""
        return rows[:, :HEADER_BYTES].contiguous().view(torch.int32)

    def sum(self, rows: Tensor, out: Tensor, scale: float) -> None:
        """Overwrite `out` `(d,)` by the sum of payloads in rows `(N, num_bytes)`, times `scale`.

        They are added in the order of the ranks, so that all ranks hold equal bits.
        """
        sum_unpacked(rows[:, HEADER_BYTES:], self.layout, out, scale=scale)

    def entries(self, words: Tensor) -> Entries:
        """Return the entries in a payload."""
        return unpack(words[HEADER_BYTES:], self.layout)

    def parts(self, copies: int = 1) -> BytesByPurpose:
        """Return the bytes by purpose of `copies` payloads whose room is all in use."""
        return {"control": copies * HEADER_BYTES, "gradient": copies * self.layout.num_bytes}

    def unused(self, count: int, copies: int = 1) -> BytesByPurpose:
        """Return how these differ if the payloads have `count` entries together, as they turn out to have."""
        padding = self.layout.unused_bytes(copies * self.layout.capacity - count)
        return {"gradient": -padding, "padding": padding}
