"""The layout and size of a payload of the largest entries of each chunk, with two magnitudes a chunk. Pure Python.

An entry takes 14 bits: 12 for its place in its chunk, a sign, and which of the magnitudes it has.
"""

from dataclasses import dataclass
from typing import NamedTuple

from trainers.traffic.sizes import UNIT_BYTES, consecutive, num_selected, whole_words

#: The most entries of a chunk: places in it take `PLACE_BITS`.
LARGEST_CHUNK = 4096
PLACE_BITS = 12
#: Of a code: negative, and of the larger magnitude.
CODE_BITS = 2
#: Two magnitudes in float16.
BYTES_OF_CHUNK = 4


class ChunkSections(NamedTuple):
    """Ranges of a payload's bytes, in this order."""

    unit: slice  # float32
    magnitudes: slice  # float16: of each chunk the smaller one and the larger one
    codes: slice  # 2 bits each
    places: slice  # the lower 8 bits of each
    high_places: slice  # the upper 4 bits of each


@dataclass(frozen=True)
class ChunkLayout:
    """Room for a share `density` of each chunk of `chunk` entries; the last chunk may be shorter."""

    num_entries: int
    chunk: int
    density: float

    @property
    def num_chunks(self) -> int:
        return -(-self.num_entries // self.chunk)

    @property
    def per_chunk(self) -> int:
        """Return how many entries of a whole chunk are sent."""
        return num_selected(self.chunk, self.density)

    @property
    def num_sent(self) -> int:
        """Return how many entries of all chunks are sent."""
        whole, rest = divmod(self.num_entries, self.chunk)
        return whole * self.per_chunk + (num_selected(rest, self.density) if rest else 0)

    @property
    def sections(self) -> ChunkSections:
        """Return where everything lies."""
        return ChunkSections(*consecutive(self._section_bytes()))

    @property
    def num_bytes(self) -> int:
        """Return the payload's size, in whole words."""
        return whole_words(sum(self._section_bytes()))

    def _section_bytes(self) -> tuple[int, int, int, int, int]:
        count = self.num_sent
        codes, high = (-(-bits * count // 8) for bits in (CODE_BITS, PLACE_BITS - 8))
        return UNIT_BYTES, BYTES_OF_CHUNK * self.num_chunks, codes, count, high
