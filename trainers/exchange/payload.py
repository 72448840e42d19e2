"""A rank's selection on the wire: a header, and entries padded to a capacity that all ranks know."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers import cost
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.pack import pack, sum_unpacked, unpack
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.layout import PayloadLayout, ValueFormat
from trainers.exchange.memory import Selection
from trainers.exchange.wire import Parts

HEADER_BYTES = cost.HEADER_BYTES


@dataclass(frozen=True)
class Header:
    """What a rank tells all others beside its entries."""

    wanted: int  # entries that qualified, whether or not there was room for them
    loss: float
    is_finite: bool
    most: int  # entries that the fullest of its shards wanted; where there is one shard, `wanted`
    note: float = 0.0  # of the selector

    @classmethod
    def of(cls, selection: Selection, loss: float, most: int | None = None) -> "Header":
        """Return the header of a selection that belongs to `loss`."""
        most = selection.wanted if most is None else most
        return cls(selection.wanted, loss, selection.is_finite, most, selection.note)

    def words(self) -> Tensor:
        """Return the header as `(5,)` int32."""
        loss, note = torch.tensor([self.loss, self.note], dtype=torch.float32).view(torch.int32).tolist()
        return torch.tensor([self.wanted, loss, self.is_finite, self.most, note], dtype=torch.int32)

    @classmethod
    def read(cls, words: Tensor) -> "Header":
        """Return the header that `words` `(5,)` int32 hold."""
        wanted, _, flag, most, _ = words.tolist()
        loss, note = words[[1, 4]].view(torch.float32).tolist()
        return cls(wanted, loss, bool(flag), most, note)


class Payload:
    """Room for `capacity` of `d` entries, with a header before them."""

    def __init__(self, d: int, capacity: int, values: ValueFormat) -> None:
        self.layout = PayloadLayout(d, capacity, values)

    @property
    def num_bytes(self) -> int:
        return HEADER_BYTES + self.layout.num_bytes

    def pack(self, header: Header, entries: Entries) -> tuple[Tensor, Tensor]:
        """Return the payload `(num_bytes,)` uint8, and of each entry what its format on the wire rounds off."""
        words = torch.zeros(self.num_bytes, dtype=torch.uint8, device=entries.values.device)
        words[:HEADER_BYTES] = header.words().view(torch.uint8)
        return words, pack(entries, self.layout, words[HEADER_BYTES:])

    @staticmethod
    def headers(rows: Tensor) -> list[Header]:
        """Return the headers of payloads in rows `(N, num_bytes)`."""
        return [Header.read(row[:HEADER_BYTES].contiguous().view(torch.int32)) for row in rows.cpu()]

    def sum(self, rows: Tensor, out: Tensor, scale: float) -> None:
        """Overwrite `out` `(d,)` by the sum of payloads in rows `(N, num_bytes)`, times `scale`.

        They are added in the order of the ranks, so that all ranks hold equal bits.
        """
        sum_unpacked(rows[:, HEADER_BYTES:], self.layout, out, scale=scale)

    def entries(self, words: Tensor) -> Entries:
        """Return the entries in a payload."""
        return unpack(words[HEADER_BYTES:], self.layout)

    def add_to(self, out: Tensor, words: Tensor, scale: float) -> None:
        """Add the entries in a payload, times `scale`, to `out` `(d,)`."""
        scatter_add(out, self.entries(words), scale)

    def parts(self, count: int, copies: int = 1) -> Parts:
        """Return the bytes by purpose of `copies` payloads that have `count` entries together."""
        padding = self.layout.unused_bytes(copies * self.layout.capacity - count)
        gradient = copies * self.layout.num_bytes - padding
        return {"control": copies * HEADER_BYTES, "gradient": gradient, "padding": padding}
