"""One step's gradient exchange: what all kinds have in common."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from trainers.exchange.step_result import Exchanged
from trainers.snapshot import Kept


class Exchange(Protocol):
    """Replace the local gradient in the buffer by the mean over the ranks.

    Kinds whose ranks drift apart (`ExchangeBase.drifts`) leave what this rank is to step by. Kinds that make the update
    (`trainers.spec.exchange.UpdateConfig`) leave the direction that all ranks step by.
    """

    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Exchange the buffer's gradient, which belongs to the scalar `loss`, as buckets fill; collective.

        `learning_rate` is that of the update to come. Raises ValueError for a level that is not allowed.
        """

    @property
    def threshold(self) -> float | None:
        """The cut-off in force, if there is one."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the live state of this rank, by name."""

    def scalars(self) -> dict[str, Any]:
        """Return the state outside tensors, JSON-compatible."""

    def load_scalars(self, scalars: dict[str, Any]) -> None: ...

    def inherit(self, kept: Kept) -> None:
        """Take over this rank's share of what one node of a checkpoint kept.

        Called for every old node in order, before the first step. The gradient is a mean over nodes, so every rank goes
        on with the mean of the old residuals.
        """


@runtime_checkable
class Keeping(Protocol):
    """An exchange that keeps what it does not send, and can give it back."""

    def release(self, values: Tensor) -> None:
        """Add to `values` `(d,)` what was not sent yet, and keep nothing of it any more."""
