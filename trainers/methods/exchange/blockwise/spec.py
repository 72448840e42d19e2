"""Blockwise integers: whole numbers of a few bits times a scale per block, to a server and back. Pydantic only."""

import math
from typing import ClassVar, Literal

from pydantic import Field

from trainers.methods.exchange.doublesqueeze import spec as doublesqueeze
from trainers.spec.method import Method, Paper
from trainers.spec.two_way import TwoWayConfig
from trainers.traffic.collectives import HALF_BYTES
from trainers.traffic.sizes import UNIT_BYTES, CodedLayout


class BlockwiseConfig(TwoWayConfig):
    """Integers of 4 or 8 bits in blocks, to a server and back, with error feedback (blocks: Dettmers et al., 2022).

    Two workers have no server: each sends its integers to the other.
    """

    follows_rate: ClassVar[bool] = False

    kind: Literal["blockwise"] = "blockwise"
    bits: Literal[4, 8] = Field(4, description="of an entry, in either direction")
    block: int = Field(64, ge=8, le=65_536, description="neighbouring entries that share a scale, at most")

    def has_server(self, num_workers: int) -> bool:
        # Two workers send as much without one, in one round instead of two, and no sum is rounded again.
        return num_workers != 2

    def layout(self, num_entries: int, block: int) -> CodedLayout:
        """Return the layout of an integer for each entry, a float16 for each `block` entries, and their unit."""
        num_blocks = math.ceil(num_entries / block)
        return CodedLayout(
            num_entries, self.bits, num_scales=num_blocks, bytes_of_scale=HALF_BYTES, unit_bytes=UNIT_BYTES
        )


METHOD = Method(
    "exchange",
    BlockwiseConfig,
    "trainers.methods.exchange.blockwise.exchange:build",
    papers=(
        Paper(
            "Dettmers, Lewis, Shleifer, Zettlemoyer",
            "8-bit optimizers via block-wise quantization",
            "ICLR",
            2022,
        ),
        *doublesqueeze.METHOD.papers,
    ),
)
