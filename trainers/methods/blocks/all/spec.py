"""The trivial choice of blocks. Pydantic only."""

from typing import ClassVar, Literal

from trainers.spec.blocks import BlocksBase
from trainers.spec.method import Method


class AllBlocksConfig(BlocksBase):
    """Every step trains all of the model."""

    leaves_out: ClassVar[bool] = False

    kind: Literal["all"] = "all"


METHOD = Method("blocks", AllBlocksConfig, "trainers.methods.blocks.all.blocks:build")
