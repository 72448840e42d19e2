"""The strategies that do not search: the user's guess, held constant or annealed."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel

from search.budget import spending
from search.config import OPTIMIZER_TRAITS, Budget, OffConfig, PolynomialConfig
from search.space import SearchSpace
from search.types import Allowance, Candidate, Course, Decision, Observation, Piece, Spent, Steer, Values

C = TypeVar("C", bound=BaseModel)


class Fixed:
    """The guess, held constant: a `search.protocol.Strategy` of a single stage."""

    kind: ClassVar[str] = "fixed"
    reason: ClassVar[str] = "the guess, held constant"

    def __init__(self, space: SearchSpace, budget: Budget) -> None:
        self._space = space
        self._budget = budget
        self._num_closed = 0

    def steer(self, steers: Sequence[Steer]) -> None:
        """Take no notice: nothing is searched."""

    def ask(self) -> Candidate | None:
        """Return None: nothing is probed."""
        return None

    def tell(self, observation: Observation) -> None:
        """Close the stage; what was measured changes nothing.

        Raises:
            ValueError: `observation` is a probe's.
        """
        if observation.candidate_id is not None:
            raise ValueError(f"`candidate_id` must be None: nothing was asked, got {observation.candidate_id!r}.")
        self._num_closed += 1

    def watch(self, observation: Observation) -> Course:
        """Return `go_on`: nothing that is measured changes anything."""
        return "go_on"

    def leading(self) -> str | None:
        """Return None: nothing is probed."""
        return None

    def decide(self, held: Collection[str] = ()) -> Decision:
        """Return the guess, until the budget's end."""
        budget = self._budget
        return Decision(
            stage=self._num_closed,
            values=self._space.opening,
            reason=self.reason,
            switched=False,
            commit_until=Allowance(steps=budget.steps, bytes=budget.bytes, seconds=budget.seconds),
        )

    def values(self, spent: Spent) -> Values:
        """Return the guess, as far as it is annealed by now."""
        guess = self._space.opening
        factor = self.factor(spending.fraction_spent(self._budget, spent))
        return guess.model_copy(update={"learning_rate": guess.learning_rate * factor})

    def anneals(self, spent: Spent) -> bool:
        """Return whether the rate at these totals depends on where the budget ends."""
        return self.factor(spending.fraction_spent(self._budget, spent)) < 1

    def piece(self, spent: Spent) -> Piece | None:
        """Return None: rates follow from what is spent."""
        return None

    def factor(self, fraction: float) -> float:
        """Return what the guess is multiplied by when `fraction` of the budget is spent."""
        return 1.0

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as JSON-compatible data."""
        return {
            "kind": self.kind,
            "space": self._space.model_dump(mode="json"),
            "budget": self._budget.model_dump(mode="json"),
            "num_closed": self._num_closed,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Restore from `state_dict`'s answer."""
        restored = cls(SearchSpace.model_validate(state["space"]), Budget.model_validate(state["budget"]))
        restored._num_closed = state["num_closed"]
        return restored


class Cosine(Fixed):
    """The guess x (1 + cos(pi f)) / 2, f the fraction of the budget spent (Loshchilov & Hutter, 2017, eq. 5)."""

    kind: ClassVar[str] = "cosine"
    reason: ClassVar[str] = "the guess, annealed to zero by half a cosine over the budget"

    def factor(self, fraction: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * fraction))


class Linear(Fixed):
    """The guess x (1 - f), f the fraction of the budget spent."""

    kind: ClassVar[str] = "linear"
    reason: ClassVar[str] = "the guess, decayed linearly to zero over the budget"

    def factor(self, fraction: float) -> float:
        return 1 - fraction


class Configured(Fixed, Generic[C]):
    """A baseline with knobs, which are part of its state."""

    config_type: type[C]

    def __init__(self, space: SearchSpace, budget: Budget, config: C) -> None:
        super().__init__(space, budget)
        self._config = config

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as JSON-compatible data."""
        return {**super().state_dict(), "config": self._config.model_dump(mode="json")}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Restore from `state_dict`'s answer."""
        space, budget = SearchSpace.model_validate(state["space"]), Budget.model_validate(state["budget"])
        restored = cls(space, budget, cls.config_type.model_validate(state["config"]))
        restored._num_closed = state["num_closed"]
        return restored


class Polynomial(Configured[PolynomialConfig]):
    """The guess x (1 - f)^power, f the fraction of the budget spent."""

    kind: ClassVar[str] = "polynomial"
    reason: ClassVar[str] = "the guess, decayed to zero over the budget by a power"
    config_type = PolynomialConfig

    def factor(self, fraction: float) -> float:
        return math.pow(max(0.0, 1 - fraction), self._config.power)


class Off(Configured[OffConfig]):
    """The guess held constant; for a plain optimizer decayed linearly to 0 over the budget's last `cooldown` share."""

    kind: ClassVar[str] = "off"
    reason: ClassVar[str] = "the guess, without a search"
    config_type = OffConfig

    def factor(self, fraction: float) -> float:
        cools_down = OPTIMIZER_TRAITS[self._space.optimizer].cools_down
        return spending.cooldown_factor(fraction, share=self._config.cooldown if cools_down else 0.0)
