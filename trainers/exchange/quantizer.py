"""Base of all quantizers: payloads of a fixed size, made of scales and packed codes.

Quantizers are values: they keep nothing between steps. For NaN or infinity, their payloads are meaningless.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainers.exchange.kernels.codes import pack, unpack
from trainers.traffic.sizes import CodedLayout

#: The layers' ranges (start, stop) in a flat vector, one behind the other from 0.
Segments = Sequence[tuple[int, int]]
#: The types of scales, by their bytes.
SCALE_TYPES = {2: torch.float16, 4: torch.float32}


class Quantizer(Protocol):
    """Sends every entry of a vector, with few bits each."""

    @property
    def uses_memory(self) -> bool:
        """Return whether to use error feedback: keep a payload's error, and add it to the next vector."""

    @property
    def num_bytes(self) -> int:
        """The length of a payload; a multiple of 4."""

    def encode(self, values: Tensor, payload: Tensor, generator: torch.Generator) -> None:
        """Write `values` `(d,)` to `payload` `(num_bytes,)` uint8, which starts at a multiple of 4 bytes."""

    def add_decoded(self, payload: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
        """Decode `payload` `(num_bytes,)`, and add `factor` times the result to `out` `(d,)` in place."""

    def combine(self, total: Tensor, num_workers: int) -> None:
        """Turn the sum `total` `(d,)` of the workers' decoded payloads into the gradient to step with, in place."""


class Averaging:
    """Combines payloads by their mean."""

    def combine(self, total: Tensor, num_workers: int) -> None:
        total.div_(num_workers)


@dataclass(frozen=True)
class CodedPayload:
    """Reads and writes payloads of this layout."""

    layout: CodedLayout

    def unit(self, payload: Tensor) -> Tensor:
        """Return a view into `payload` of the number that scales are multiples of, `(1,)`."""
        return payload[: self.layout.unit_bytes].view(torch.float32)

    def scales(self, payload: Tensor) -> Tensor:
        """Return a view `(num_scales,)` into `payload`."""
        return payload[self.layout.unit_bytes : self._scales_end].view(SCALE_TYPES[self.layout.bytes_of_scale])

    def write_codes(self, codes: Tensor, payload: Tensor) -> None:
        """Pack `codes` `(d,)` uint8 into `payload`."""
        pack(codes, self.layout.bits, payload[self._scales_end :])

    def codes(self, payload: Tensor) -> Tensor:
        """Return the codes `(d,)` uint8 in `payload`."""
        codes = payload.new_empty(self.layout.num_entries)
        unpack(payload[self._scales_end :], self.layout.bits, codes)
        return codes

    @property
    def _scales_end(self) -> int:
        return self.layout.unit_bytes + self.layout.scale_bytes


def edges_of(segments: Segments) -> Tensor:
    """Return where layers begin, and where the last one ends `(num_layers + 1,)`."""
    return torch.tensor([0, *(stop for _, stop in segments)])


def sign_codes(values: Tensor) -> Tensor:
    """Return 1 for each of `values` `(d,)` that is >= 0, else 0, as uint8; zero needs a sign too."""
    return (values >= 0).view(torch.uint8)
