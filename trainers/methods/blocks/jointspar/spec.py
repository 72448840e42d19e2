"""JointSPAR's knobs. Pydantic only."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainers.spec.blocks import BlocksBase
from trainers.spec.method import Method, Paper
from trainers.spec.ranges import Conflict

Share = Annotated[float, Field(gt=0, le=1)]


class JointSparConfig(BlocksBase):
    """A step trains blocks drawn at random, those with large gradients more often (Liu and Mozafari, 2022)."""

    kind: Literal["jointspar"] = "jointspar"
    share: Share | tuple[Share, Share] = Field(0.5, description="of all blocks, those that a step trains on average")
    min_chance: float = Field(0.05, gt=0, le=1, description="smallest chance of a block to be drawn; at most `share`")
    adaptation: float = Field(
        0.01, ge=0, le=1, description="step size by which chances follow gradients; 0: all blocks keep equal ones"
    )

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        lowest = min(self.share) if isinstance(self.share, tuple) else self.share
        if self.min_chance > lowest:
            message = f"`min_chance` must be at most `share`, which goes down to {lowest:g}, got {self.min_chance:g}"
            yield Conflict("/min_chance", self.min_chance, message)


PAPER = Paper(
    "Liu, Mozafari", "Communication-efficient distributed learning for large batch optimization", "ICML", 2022
)
METHOD = Method(
    "blocks",
    JointSparConfig,
    "trainers.methods.blocks.jointspar.jointspar:build",
    papers=(PAPER,),
    beside={"optimizer": {"kind": "sgd"}},
)
