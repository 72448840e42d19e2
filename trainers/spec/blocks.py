"""The base of every configuration of the blocks that a step trains, and what it goes with. Pydantic only."""

from typing import ClassVar

from trainers.spec.exchange import ExchangeBase
from trainers.spec.ranges import Config
from trainers.spec.sync import SyncBase

#: Optimizers that can leave a parameter out of a step: they keep nothing that belongs to all of them together.
LEAVING_OUT = ("sgd", "lars")


class BlocksBase(Config):
    """A choice of the blocks that a step trains."""

    #: Whether steps leave out parameters.
    leaves_out: ClassVar[bool] = True

    kind: str

    def conflict(self, exchange: ExchangeBase, sync: SyncBase, optimizer: str) -> str | None:
        """Return why this does not go with the exchange, the policy, or an optimizer of this kind; None: it does."""
        if not self.leaves_out:
            return None
        if not exchange.is_exact:
            return (
                f"`{self.kind}` sends the gradients of the drawn blocks densely, and `{exchange.kind}` would compress "
                "them: give `exchange: {kind: none}`, or `blocks: {kind: all}`"
            )
        if sync.kind != "every_step":
            return (
                f"`{self.kind}` shares gradients in every step, and `{sync.kind}` averages parameters: give "
                "`sync: {kind: every_step}`, or `blocks: {kind: all}`"
            )
        if optimizer not in LEAVING_OUT:
            return (
                f"`{self.kind}` leaves blocks out of a step, which `{optimizer}` cannot: give "
                "`optimizer: {kind: sgd}` or `{kind: lars}`"
            )
        return None
