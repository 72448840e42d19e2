"""The open stage: what was asked in it and what came back. The one mutable value that a controller holds."""

from dataclasses import dataclass, field
from typing import NamedTuple

from search.calibration import Outcome
from search.config import OPTIMIZER_TRAITS, BoConfig, Budget, OptimizerTraits
from search.reading import Reading
from search.space import SearchSpace
from search.types import Candidate, Decision, Spent, Values

#: A rate that diverged bars those at or above this share of it ...
BARRED_SHARE = 0.7
#: ... at levels within this factor.
BARRED_LEVELS = 3.0


@dataclass(frozen=True)
class Problem:
    """What does not change during a run."""

    space: SearchSpace
    config: BoConfig
    budget: Budget
    seed: int

    @property
    def traits(self) -> OptimizerTraits:
        return OPTIMIZER_TRAITS[self.space.optimizer]

    @property
    def opening(self) -> Values:
        """The guess, with the level that the run opens with."""
        low, high = self.space.level_range or (None, None)
        level = self.space.guess.level
        if low is not None and high is not None:
            level = self.space.level_start or level or (low * high) ** 0.5
            level = min(high, max(low, level))
        return Values(learning_rate=self.space.guess.learning_rate, level=level)

    def shares(self, stage: int) -> list[int]:
        """Return the weights 1 : 2 : 4 : ... of the commits from `stage` on; past the last stage, all is one."""
        return [2**index for index in range(stage, self.config.num_stages)] or [1]


class Probe(NamedTuple):
    candidate: Candidate
    reading: Reading


class Score(NamedTuple):
    """What a probe is worth: the fall of the log loss, and its variance. None: it diverged."""

    values: Values
    reward: float | None
    variance: float


@dataclass
class Stage:
    """Mutable. `level` and `initial` are losses: where the stage starts, and where the run started."""

    index: int
    incumbent: Values
    opened: Spent = field(default_factory=Spent)
    search_before: Spent = field(default_factory=Spent)
    level: float | None = None
    initial: float | None = None
    previous: tuple[Score, ...] = ()  # of the stage before, relative to its own choice
    barred: tuple[Values, ...] = ()  # diverged on the committed line
    may_rise: bool = True  # False: a commit diverged, and none has met its forecast since
    candidates: list[Candidate] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()  # of the last stages that had a forecast
    note: str = ""  # why the incumbent is not what the stage before used
    is_complete: bool = False
    decision: Decision | None = None

    @property
    def probes(self) -> list[Probe]:
        """The finished probes, in the order in which they were asked for."""
        done = [candidate for candidate in self.candidates if candidate.id in self.readings]
        return [Probe(candidate, self.readings[candidate.id]) for candidate in done]

    @property
    def pending(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.id not in self.readings]


def is_barred(values: Values, diverged: tuple[Values, ...]) -> bool:
    """Whether `values` are as likely to diverge as any of those that did."""
    return any(
        values.learning_rate >= BARRED_SHARE * other.learning_rate and _are_near(values.level, other.level)
        for other in diverged
    )


def _are_near(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return True
    return max(first, second) <= BARRED_LEVELS * min(first, second)
