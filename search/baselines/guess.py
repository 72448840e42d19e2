"""The strategies that do not search: the user's guess, held constant or annealed."""

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel

from search.budget import spending
from search.config import Budget, CosineConfig, FixedConfig, LinearConfig, OffConfig, PolynomialConfig
from search.optimizer_traits import OPTIMIZER_TRAITS
from search.protocol import Strategy
from search.space import SearchSpace
from search.types import Allowance, Candidate, Decision, Observation, Spent, Values

C = TypeVar("C", bound=BaseModel)


class Baseline(Strategy, Generic[C]):
    """The guess, held constant or annealed: a strategy of a single stage."""

    kind: ClassVar[str]
    reason: ClassVar[str]
    config_type: type[C]

    def __init__(self, space: SearchSpace, budget: Budget, config: C) -> None:
        self._space = space
        self._budget = budget
        self._config = config
        self._num_closed = 0

    def ask(self) -> Candidate | None:
        """Return None: nothing is probed."""
        return None

    def tell(self, observation: Observation) -> None:
        """Close the stage. Measurements change nothing.

        Raises:
            ValueError: `observation` is a probe's.
        """
        if observation.candidate_id is not None:
            raise ValueError(f"`candidate_id` must be None: nothing was asked, got {observation.candidate_id!r}.")
        self._num_closed += 1

    def decide(self, held: Collection[str] = ()) -> Decision:
        """Return the guess, until the budget's end."""
        budget = self._budget
        return Decision(
            stage=self._num_closed,
            values=self._space.opening,
            reason="; ".join(filter(None, [self.reason, self._space.chosen_because])),
            switched=False,
            commit_until=Allowance(steps=budget.steps, bytes=budget.bytes, seconds=budget.seconds),
        )

    def values(self, spent: Spent) -> Values:
        """Return the guess with its annealing applied."""
        guess = self._space.opening
        factor = self.factor(spending.fraction_spent(self._budget, spent))
        return guess.model_copy(update={"learning_rate": guess.learning_rate * factor})

    def anneals(self, spent: Spent) -> bool:
        """Return whether the rate at these totals depends on where the budget ends."""
        return self.factor(spending.fraction_spent(self._budget, spent)) < 1

    def factor(self, fraction: float) -> float:
        """Return the factor of the guess when `fraction` of the budget is spent."""
        return 1.0

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as JSON-compatible data."""
        return {
            "kind": self.kind,
            "config": self._config.model_dump(mode="json"),
            "space": self._space.model_dump(mode="json"),
            "budget": self._budget.model_dump(mode="json"),
            "num_closed": self._num_closed,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Restore from `state_dict`'s answer."""
        space, budget = SearchSpace.model_validate(state["space"]), Budget.model_validate(state["budget"])
        config = cls.config_type.model_validate(state.get("config", {}))  # an earlier release left out an empty one
        restored = cls(space, budget, config)
        restored._num_closed = state["num_closed"]
        return restored


class Fixed(Baseline[FixedConfig]):
    """The guess, held constant."""

    kind: ClassVar[str] = "fixed"
    reason: ClassVar[str] = "the guess, held constant"
    config_type = FixedConfig


class Cosine(Baseline[CosineConfig]):
    """The guess x (1 + cos(pi f)) / 2, f the fraction of the budget spent (Loshchilov & Hutter, 2017, eq. 5)."""

    kind: ClassVar[str] = "cosine"
    reason: ClassVar[str] = "the guess, annealed to zero by half a cosine over the budget"
    config_type = CosineConfig

    def factor(self, fraction: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * fraction))


class Linear(Baseline[LinearConfig]):
    """The guess x (1 - f), f the fraction of the budget spent."""

    kind: ClassVar[str] = "linear"
    reason: ClassVar[str] = "the guess, decayed linearly to zero over the budget"
    config_type = LinearConfig

    def factor(self, fraction: float) -> float:
        return 1 - fraction


class Polynomial(Baseline[PolynomialConfig]):
    """The guess x (1 - f)^power, f the fraction of the budget spent."""

    kind: ClassVar[str] = "polynomial"
    reason: ClassVar[str] = "the guess, decayed to zero over the budget by a power"
    config_type = PolynomialConfig

    def factor(self, fraction: float) -> float:
        return math.pow(max(0.0, 1 - fraction), self._config.power)


class Off(Baseline[OffConfig]):
    """The guess held constant; for a plain optimizer decayed linearly to 0 over the budget's last `cooldown` share."""

    kind: ClassVar[str] = "off"
    reason: ClassVar[str] = "the guess, without a search"
    config_type = OffConfig

    def factor(self, fraction: float) -> float:
        decays = OPTIMIZER_TRAITS[self._space.optimizer].decays
        return spending.decay_factor(fraction, share=self._config.cooldown if decays else 0.0)
