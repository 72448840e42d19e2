"""The choices of the blocks that a step trains, and their knobs. Pydantic only: a job is checked without torch."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainers.methods.exchange.auto.spec import JobExchange
from trainers.methods.sync.spec import EveryStepConfig, SyncConfig
from trainers.spec.ranges import Config, Conflict

Share = Annotated[float, Field(gt=0, le=1)]
#: Optimizers that can leave a parameter out of a step: they keep nothing that belongs to all of them together.
LEAVING_OUT = ("sgd", "lars")


class AllBlocksConfig(Config):
    """Every step trains all of the model."""

    kind: Literal["all"] = "all"
    leaves_out: ClassVar[bool] = False  # parameters of a step


class JointSparConfig(Config):
    """A step trains blocks drawn at random, those with large gradients more often (Liu and Mozafari, 2022)."""

    kind: Literal["jointspar"] = "jointspar"
    leaves_out: ClassVar[bool] = True
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


BlocksConfig = Annotated[AllBlocksConfig | JointSparConfig, Field(discriminator="kind")]


def blocks_conflict(blocks: BlocksConfig, exchange: JobExchange, sync: SyncConfig, optimizer: str) -> str | None:
    """Return why `blocks` do not go with the exchange, the policy, or an optimizer of this kind; None: they do."""
    if not blocks.leaves_out:
        return None
    if not exchange.is_exact:
        return (
            f"`{blocks.kind}` sends the gradients of the drawn blocks densely, and `{exchange.kind}` would compress "
            "them: give `exchange: {kind: none}`, or `blocks: {kind: all}`"
        )
    if not isinstance(sync, EveryStepConfig):
        return (
            f"`{blocks.kind}` shares gradients in every step, and `{sync.kind}` averages parameters: give "
            "`sync: {kind: every_step}`, or `blocks: {kind: all}`"
        )
    if optimizer not in LEAVING_OUT:
        return (
            f"`{blocks.kind}` leaves blocks out of a step, which `{optimizer}` cannot: give `optimizer: {{kind: sgd}}` "
            "or `{kind: lars}`"
        )
    return None
