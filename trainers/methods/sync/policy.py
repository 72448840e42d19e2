"""The protocol of a sync policy, which keeps the ranks' parameters together."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.exchange.step_result import Exchanged
from trainers.snapshot import Stateful

StateParts = dict[str, Stateful]


@dataclass(frozen=True)
class Update:
    """An optimizer step that was taken or left out, with the values that the segment asked for."""

    number: int  # optimizer steps taken, this one included
    learning_rate: float  # with the ramp of a warm-up
    level: float | None  # of the exchange
    # None from here on: the configuration's
    period: int | None
    outer_learning_rate: float | None = None
    outer_momentum: float | None = None
    is_trained: bool = True  # False: a rank with a pace of its own left the step out, and is where it was


class PolicyBase:
    """Base of policies, with empty defaults for methods that most of them do not need."""

    def use(self, option: str | None) -> None:
        return

    def learning_rate(self, learning_rate: float, step: int) -> float:
        return learning_rate

    def amend(self, gradient: Tensor) -> None:
        return

    def will_meet(self, update: Update) -> bool:
        return False

    @property
    def steps_to_meeting(self) -> int:
        return 0

    @property
    def steps_since_meeting(self) -> int:
        return 0

    def settle(self) -> None:
        return


class SyncPolicy(Protocol):
    """Acts around each optimizer step. All ranks make the same calls in the same order; these may be collective."""

    @property
    def gradients(self) -> Exchange:
        """The exchange of each step's gradients."""

    @property
    def exchange(self) -> Exchange:
        """The job's exchange, whatever goes through it."""

    @property
    def is_apart(self) -> bool:
        """True while the ranks' parameters may differ."""

    @property
    def steps_to_meeting(self) -> int:
        """Steps until the ranks' parameters are equal again; 0: they are, or it is not known when they will be."""

    @property
    def steps_since_meeting(self) -> int:
        """Steps since the last average; 0 right after one, so always 0 if the ranks exchange in every step."""

    def use(self, option: str | None) -> None:
        """Train by this option of `exchange: {kind: auto}` from the next step on; None: the job has no options."""

    def learning_rate(self, learning_rate: float, step: int) -> float:
        """Return the rate to use for step number `step` (from 0) if the segment asks for `learning_rate`."""

    def amend(self, gradient: Tensor) -> None:
        """Change the gradient `(d,)` before the optimizer uses it, in place."""

    def will_meet(self, update: Update) -> bool:
        """Return whether `advance` will average after this update, which the optimizer has taken."""

    def advance(self, outcome: Exchanged, update: Update) -> Exchanged:
        """Count an optimizer step, and average if that is due. Returns the step's result after the average.

        If it is `diverged`, it is so on all ranks, and the parameters are useless until a state is restored.
        """

    def divide(self, trained: StateParts) -> tuple[StateParts, StateParts]:
        """Divide the state into parts that are equal on all ranks, and each rank's own. `trained` may be either."""

    def settle(self) -> None:
        """Wait for an average that is under way. Before that, nobody may use or close the connections."""
