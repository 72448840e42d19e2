"""The tiles of a bucket's layers, and the layout and size of a payload of their largest coefficients. Pure Python.

A coefficient takes 28 bits: 12 for its place in its tile, 16 for its value.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from trainers.traffic.buckets import Bucket, Layer
from trainers.traffic.chunk_layout import PLACE_BITS
from trainers.traffic.sizes import UNIT_BYTES, consecutive, num_selected, whole_words

#: The longest side of a tile: its coefficients have `PLACE_BITS` for a place.
LONGEST_SIDE = 64
VALUE_BYTES = 2


class Tiling(NamedTuple):
    """A layer as a matrix `(rows, columns)`, a vector as one row, under `down` x `across` tiles `(height, width)`.

    Tiles are as even as their sides allow, so fewer zeros are padded than there are tiles on a side. A divisor of a
    side, which is published, would be 1 of a prime one, and a tile of one entry compresses nothing.
    """

    rows: int
    columns: int
    down: int
    across: int

    @classmethod
    def of(cls, shape: Sequence[int]) -> "Tiling":
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
        return cls(rows, columns, *(-(-side // LONGEST_SIDE) for side in (rows, columns)))

    @property
    def height(self) -> int:
        return -(-self.rows // self.down)

    @property
    def width(self) -> int:
        return -(-self.columns // self.across)

    @property
    def num_tiles(self) -> int:
        return self.down * self.across

    @property
    def size(self) -> int:
        """The coefficients of a tile."""
        return self.height * self.width


class Part(NamedTuple):
    """A layer of a bucket: its tiling, and how many coefficients of each tile are sent."""

    layer: Layer
    tiling: Tiling
    per_tile: int


class TileSections(NamedTuple):
    """Ranges of a payload's bytes, in this order."""

    unit: slice  # float32
    values: slice  # float16
    places: slice  # the lower 8 bits of each
    high_places: slice  # the upper 4 bits of each


@dataclass(frozen=True)
class TileLayout:
    """Room for a share `density` of the coefficients of each tile of a bucket."""

    bucket: Bucket
    density: float

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        tilings = [(layer, Tiling.of(layer.shape)) for layer in self.bucket.layers]
        return tuple(Part(layer, tiling, num_selected(tiling.size, self.density)) for layer, tiling in tilings)

    @property
    def num_coefficients(self) -> int:
        """The coefficients of all tiles, padding included."""
        return sum(part.tiling.num_tiles * part.tiling.size for part in self.parts)

    @property
    def num_sent(self) -> int:
        return sum(part.tiling.num_tiles * part.per_tile for part in self.parts)

    @cached_property
    def sections(self) -> TileSections:
        """The range of each part, one behind the other."""
        return TileSections(*consecutive(self._section_bytes()))

    @property
    def num_bytes(self) -> int:
        """The payload's size, in whole words."""
        return whole_words(sum(self._section_bytes()))

    def _section_bytes(self) -> tuple[int, int, int, int]:
        count = self.num_sent
        return UNIT_BYTES, VALUE_BYTES * count, count, -(-(PLACE_BITS - 8) * count // 8)
