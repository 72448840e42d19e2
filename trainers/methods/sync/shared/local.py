"""Rounds of local updates: each rank takes some steps by itself, and then the ranks average."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.exchange.gradients import Gradients
from trainers.exchange.step_result import Exchanged
from trainers.methods.sync.policy import PolicyBase, StateParts, Update
from trainers.methods.sync.shared.averaging import Iterate
from trainers.snapshot import Stateless


class Alone(Stateless):
    """The exchange of a rank that trains by itself: it leaves gradients and loss as they are.

    A value that is not finite is found at the next average. No rank may stop before it.
    """

    threshold = None

    def __init__(self, buffer: Gradients) -> None:
        self._buffer = buffer

    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        self._buffer.wait_for_all()
        return Exchanged(loss=float(loss))


class Local(PolicyBase, ABC):
    """Base of local-update policies. It counts the steps of a round; subclasses implement the average at its end.

    All vectors of their state are `(n,)`, in the order of the iterate.
    """

    #: Whether parameters are equal on all ranks right after an average.
    agrees = True

    def __init__(self, period: int, iterate: Iterate, *, gradients: Exchange, exchange: Exchange) -> None:
        self._period, self._iterate = period, iterate
        self.gradients, self.exchange = gradients, exchange
        self._since = 0  # steps since the last average
        self._left = 0  # steps until the next average, as of the last step
        self._path = 0.0  # sum of the learning rates of the round's steps that this rank has trained
        self._rate: float | None = None  # mean learning rate of the round, equal on all ranks; None: no step yet
        self._has_met = False

    @property
    def is_apart(self) -> bool:
        return self._since > 0 or (self._has_met and not self.agrees)

    @property
    def steps_to_meeting(self) -> int:
        return self._left if self.agrees else 0

    @property
    def steps_since_meeting(self) -> int:
        return self._since

    def advance(self, outcome: Exchanged, update: Update) -> Exchanged:
        is_due = self.will_meet(update)
        self._left = 0 if is_due else self._steps_left(update) - 1
        self._since += 1
        if update.is_trained:
            self._path += update.learning_rate
        self._rate = self._mean_rate(update.learning_rate)
        if not is_due:
            return outcome
        met = self._meet(outcome, update)
        self._since, self._path, self._rate, self._has_met = 0, 0.0, None, True
        return met

    def _mean_rate(self, newest: float) -> float:
        """Return the round's mean rate including the `newest` step, already counted. Equal rates give the same bits."""
        return newest if self._rate is None else self._rate + (newest - self._rate) / self._since

    def will_meet(self, update: Update) -> bool:
        return self._steps_left(update) <= 1

    def _steps_left(self, update: Update) -> int:
        """Return the number of steps until the ranks average, including the step of `update`."""
        return (update.period or self._period) - self._since

    @abstractmethod
    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        """Average the ranks' iterates, as the method prescribes; collective."""

    def divide(self, trained: StateParts) -> tuple[StateParts, StateParts]:
        return {}, trained | {"sync": self}

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the live state tensors by name."""

    def scalars(self) -> dict[str, Any]:
        return {"since": self._since, "path": self._path, "rate": self._rate, "has_met": self._has_met}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._since, self._path, self._has_met = scalars["since"], scalars["path"], scalars["has_met"]
        self._rate = scalars.get("rate")  # missing in old checkpoints
