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
    """An optimizer step that was taken, or left out, as the segment asked for it."""

    number: int  # optimizer steps taken, this one included
    learning_rate: float  # with the ramp of a warm-up
    level: float | None  # of the exchange
    # None from here on: the configuration's
    period: int | None
    outer_learning_rate: float | None = None
    outer_momentum: float | None = None
    is_trained: bool = True  # False: a rank with a pace of its own left the step out, and is where it was


class PolicyBase:
    """The base of policies, with what most of them have nothing to do in."""

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
    """Acts beside each optimizer step; all ranks call the same in the same order, and wait for each other in it."""

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
        """Steps until the ranks' parameters are equal again; 0: they are, or nothing is known to make them so."""

    @property
    def steps_since_meeting(self) -> int:
        """Steps since the ranks last met; 0: they just have, as after every step where they meet in each."""

    def use(self, option: str | None) -> None:
        """Train by this option of `exchange: {kind: auto}` from the next step on; None: the job has no options."""

    def learning_rate(self, learning_rate: float, step: int) -> float:
        """Return the rate of step number `step` (from 0) where `learning_rate` is asked for."""

    def amend(self, gradient: Tensor) -> None:
        """Change the gradient `(d,)` before the optimizer uses it, in place."""

    def will_meet(self, update: Update) -> bool:
        """Return whether `advance` after this update, which the optimizer has taken, is where the ranks average."""

    def advance(self, outcome: Exchanged, update: Update) -> Exchanged:
        """Note that the optimizer has stepped, and average if it is time to; returns what is known of the step then.

        After `diverged`, which all ranks return alike, parameters are of no use until a state is restored.
        """

    def divide(self, trained: StateParts) -> tuple[StateParts, StateParts]:
        """Return what of the state is equal on all ranks, and what is each rank's own; `trained` is either."""

    def settle(self) -> None:
        """Wait for what is under way; nobody may use the connections, or leave them, before."""
