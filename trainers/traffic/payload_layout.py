"""The layout and size of a sparse payload on the wire: a function of (d, capacity, value format) alone.

All ranks know these numbers before a step, so payloads of all ranks have one size. Indices are uint16, relative
to their block of 65,536 entries; where a bitmap over all d entries is smaller, it takes their place. Pure Python.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from trainers.traffic.sizes import UNIT_BYTES, consecutive, whole_words

#: sign: a bit, and one magnitude for all.
ValueFormat = Literal["float32", "float16", "sign"]

#: Entries whose index fits 16 bits.
BLOCK = 65_536
INDEX_BYTES = 2
COUNT_BYTES = 4
VALUE_BITS: dict[ValueFormat, int] = {"float32": 32, "float16": 16, "sign": 1}


class Sections(NamedTuple):
    """Ranges of a payload's bytes, in this order; one that a format does not need is empty."""

    unit: slice  # float32
    bitmap: slice  # bit j of byte i stands for entry 8 i + j
    counts: slice  # int32: entries in each block
    values: slice  # float32, float16 or bits (1: negative), in ascending order of index
    indices: slice  # uint16


@dataclass(frozen=True)
class PayloadLayout:
    """Room for `capacity` of `d` entries. Raises ValueError for numbers that do not fit."""

    d: int
    capacity: int
    values: ValueFormat = "float32"

    def __post_init__(self) -> None:
        if not 1 <= self.d < 2**31:
            raise ValueError(f"`d` must be in [1, 2^31), since indices are int32, got {self.d}")
        if not 0 <= self.capacity <= self.d:
            raise ValueError(f"`capacity` must be in [0, {self.d}], the number of entries, got {self.capacity}")
        if self.values not in VALUE_BITS:
            raise ValueError(f"`values` must be one of {', '.join(VALUE_BITS)}, got {self.values!r}")

    @property
    def num_blocks(self) -> int:
        return -(-self.d // BLOCK)

    @property
    def uses_bitmap(self) -> bool:
        """Return whether a bitmap takes fewer bytes than counts and 16-bit indices."""
        return self._bitmap_bytes < COUNT_BYTES * self.num_blocks + INDEX_BYTES * self.capacity

    def unused_bytes(self, num_entries: int) -> int:
        """Return what so many entries of the capacity waste that nothing is put in, in whole bytes."""
        return self._value_bytes(num_entries) + (0 if self.uses_bitmap else INDEX_BYTES * num_entries)

    @property
    def sections(self) -> Sections:
        """Return where everything lies."""
        return Sections(*consecutive(self._section_bytes()))

    @property
    def num_bytes(self) -> int:
        """Return the payload's size, padding to the capacity and to whole words included."""
        return whole_words(sum(self._section_bytes()))

    def _section_bytes(self) -> tuple[int, int, int, int, int]:
        unit = 0 if self.values == "float32" else UNIT_BYTES
        values = self._value_bytes(self.capacity)
        if self.values == "sign":
            values = whole_words(values)  # indices are to be aligned
        if self.uses_bitmap:
            return unit, self._bitmap_bytes, 0, values, 0
        return unit, 0, COUNT_BYTES * self.num_blocks, values, INDEX_BYTES * self.capacity

    def _value_bytes(self, num_entries: int) -> int:
        return -(-VALUE_BITS[self.values] * num_entries // 8)

    @property
    def _bitmap_bytes(self) -> int:
        return whole_words(-(-self.d // 8))
