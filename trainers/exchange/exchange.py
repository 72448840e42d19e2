"""The protocol of all gradient exchanges."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from trainers.exchange.step_result import Exchanged
from trainers.snapshot import Kept


class Exchange(Protocol):
    """An exchange: replaces the local gradient in the buffer by the mean over the ranks.

    Two kinds leave something else in the buffer. If ranks drift apart (`ExchangeBase.drifts`), it is this rank's own
    step. If the exchange makes the update (`trainers.spec.exchange.UpdateConfig`), it is the direction of all ranks.
    """

    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Exchange the gradient of the scalar `loss`, bucket by bucket as backward fills them; collective.

        `learning_rate` is the rate of the coming update. Raises ValueError for a level that is not allowed.
        """

    @property
    def threshold(self) -> float | None:
        """The threshold in force, if there is one."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the live state of this rank, by name."""

    def scalars(self) -> dict[str, Any]:
        """Return the state outside tensors, JSON-compatible."""

    def load_scalars(self, scalars: dict[str, Any]) -> None: ...

    def inherit(self, kept: Kept) -> None:
        """Take over this rank's share of the memory that one node of a checkpoint had.

        Called for every old node in order, before the first step. The gradient is a mean over nodes, so every rank
        starts with the mean of the old residuals.
        """


@runtime_checkable
class Keeping(Protocol):
    """An exchange that keeps what it does not send, and can give it back."""

    def release(self, values: Tensor) -> None:
        """Add the residual to `values` `(d,)`, and reset it to zero."""
