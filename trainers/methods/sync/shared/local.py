"""The rounds of local-update methods: each rank takes some steps by itself, and then the ranks meet."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.exchange import Exchange
from trainers.exchange.step_result import Exchanged
from trainers.methods.sync.policy import PolicyBase, StateParts, Update
from trainers.methods.sync.shared.averaging import Iterate
from trainers.snapshot import Stateless


class Alone(Stateless):
    """Gradients of a rank that trains by itself: they stay as they are, and so does its loss.

    One that is not finite is found when the ranks next meet: until then none of them may stop.
    """

    threshold = None

    def __init__(self, buffer: GradientBuffer) -> None:
        self._buffer = buffer

    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        self._buffer.wait_for_all()
        return Exchanged(loss=float(loss))


class Local(PolicyBase, ABC):
    """Counts the steps of a round; subclasses say what happens at its end, and hold the state that this needs.

    All their vectors are `(n,)`, in the order of the iterate.
    """

    #: Whether parameters are equal on all ranks right after they have met.
    agrees = True

    def __init__(self, period: int, iterate: Iterate, *, gradients: Exchange, exchange: Exchange) -> None:
        self._period, self._iterate = period, iterate
        self.gradients, self.exchange = gradients, exchange
        self._since = 0  # steps since the ranks last met
        self._left = 0  # until they meet again, as of the last step
        self._path = 0.0  # sum of the learning rates of those that this rank has trained
        self._rate: float | None = None  # mean learning rate of all, equal on all ranks; None: it begins with the next
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
        """Return the mean rate with the `newest` step, which has been counted; that of equal rates has their bits."""
        return newest if self._rate is None else self._rate + (newest - self._rate) / self._since

    def will_meet(self, update: Update) -> bool:
        return self._steps_left(update) <= 1

    def _steps_left(self, update: Update) -> int:
        """Return after how many steps the ranks meet, that of the `update` included."""
        return (update.period or self._period) - self._since

    @abstractmethod
    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        """Bring the ranks' iterates together, as far as the method does; collective."""

    def divide(self, trained: StateParts) -> tuple[StateParts, StateParts]:
        return {}, trained | {"sync": self}

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the live state tensors by name."""

    def scalars(self) -> dict[str, Any]:
        return {"since": self._since, "path": self._path, "rate": self._rate, "has_met": self._has_met}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._since, self._path, self._has_met = scalars["since"], scalars["path"], scalars["has_met"]
        self._rate = scalars.get("rate")  # which was not always saved
