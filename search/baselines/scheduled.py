"""Replay a learned schedule: the same values at the same steps, whatever the run measures."""

from bisect import bisect_right
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any, ClassVar, Self

from search.baselines.guess import Baseline
from search.config import Budget, ScheduleConfig
from search.schedule_file import Entry, ScheduleFile
from search.space import SearchSpace
from search.types import Allowance, Decision, Observation, Piece, Spent, Values

#: A rate that jumps by at most this many steps of a decay continues that decay.
LARGEST_JUMP = 2.0


class Scheduled(Baseline[ScheduleConfig]):
    """A strategy with a stage for each piece of the schedule, and one that holds its last values."""

    kind: ClassVar[str] = "schedule"
    config_type = ScheduleConfig

    def __init__(self, space: SearchSpace, budget: Budget, config: ScheduleConfig) -> None:
        """Begin a run at its first step.

        Raises:
            ValueError: the schedule was learned by another optimizer: its rates mean nothing to this one.
        """
        if config.schedule.optimizer != space.optimizer:
            raise ValueError(f"`schedule.optimizer` must be {space.optimizer!r}, got {config.schedule.optimizer!r}.")
        super().__init__(space, budget, config)
        self._step = 0  # at which the last stage that was kept ended
        self._starts = (*stage_starts(config.schedule), config.schedule.num_steps)

    def tell(self, observation: Observation) -> None:
        """Close the stage. After a divergence the next one repeats it, since the schedule has nothing else to offer.

        Raises:
            ValueError: `observation` is a probe's.
        """
        super().tell(observation)
        self._step = self._step if observation.diverged else observation.spent.steps

    def decide(self, held: Collection[str] = ()) -> Decision:
        """Return the values of the schedule's next piece, until its end; of the last, until the budget's.

        A job that is extended goes on inside a piece.
        """
        budget, index = self._budget, bisect_right(self._starts, self._step) - 1
        step, ends = min(self._step, self._starts[-1]), self._starts[index + 1 :]
        reason = f"the schedule given, from its step {step} on"
        if not ends:
            reason = f"the schedule given ends at step {step}: its last values stay"
        return Decision(
            stage=self._num_closed,
            values=self._values_at(step),
            reason=reason,
            switched=index > 0 and self._step == self._starts[index],
            commit_until=Allowance(steps=ends[0] if ends else budget.steps, bytes=budget.bytes, seconds=budget.seconds),
        )

    def values(self, spent: Spent) -> Values:
        """Return the values at the run's total of steps, which includes steps that were rolled back."""
        return self._values_at(spent.steps)

    def piece(self, spent: Spent) -> Piece | None:
        """Return the entry of this step as it is: any other line through its rates would differ in the last bits."""
        entry = self._config.schedule.entry_at(spent.steps)
        if spent.steps >= entry.step + entry.num_steps:
            return None
        final = entry.final_learning_rate
        return Piece(
            step=entry.step,
            num_steps=entry.num_steps,
            piece_steps=entry.piece_steps,
            learning_rate=entry.learning_rate,
            final_learning_rate=entry.learning_rate if final is None else final,
        )

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as JSON-compatible data."""
        return {**super().state_dict(), "step": self._step}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Restore from `state_dict`'s answer."""
        restored = super().from_state_dict(state)
        if "num_kept" in state:  # of stages, as an earlier release kept it
            restored._step = restored._starts[min(state["num_kept"], len(restored._starts) - 1)]
        else:
            restored._step = state["step"]
        return restored

    def _values_at(self, step: int) -> Values:
        """Return the schedule's values. Its level counts only if the exchange has one, whose own is the default."""
        schedule, guess = self._config.schedule, self._space.guess
        scheduled = None if guess.level is None else schedule.level_at(step)
        level = guess.level if scheduled is None else scheduled
        further = schedule.entry_at(step).values
        return guess.model_copy(update={"learning_rate": schedule.learning_rate_at(step), "level": level, **further})


def stage_starts(schedule: ScheduleFile) -> tuple[int, ...]:
    """Return the steps at which the values of `schedule` jump, or turn from held to decayed; the first is 0.

    A decay may be stored in several entries, but it is one stage.
    """
    return (0, *(second.step for first, second in pairwise(schedule.entries) if not _goes_on(first, second)))


def _goes_on(first: Entry, second: Entry) -> bool:
    slopes = (_slope(first), _slope(second))
    is_one_kind = 1 in (first.num_steps, second.num_steps) or (slopes[0] == 0) == (slopes[1] == 0)
    jump = abs(second.learning_rate - first.learning_rate_at(first.step + first.num_steps - 1))
    is_held = (first.level, first.values) == (second.level, second.values)
    return is_held and is_one_kind and jump <= LARGEST_JUMP * max(slopes)


def _slope(entry: Entry) -> float:
    """Return by how much the rate changes per step."""
    num_steps = entry.piece_steps or entry.num_steps
    if entry.final_learning_rate is None or num_steps == 1:
        return 0.0
    return abs(entry.final_learning_rate - entry.learning_rate) / (num_steps - 1)
