"""The learned artefact: which values a run used at which step, and how to use them again in plain torch."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from search.types import Value

FORMAT: Literal["wiretune.schedule/1"] = "wiretune.schedule/1"
OWN = "own"  # the optimizer of a user's workload, whose groups have rates already


class Entry(Value):
    """Values from `step` on, for `num_steps` steps; the rate goes linearly to `final_learning_rate` if given."""

    step: int = Field(ge=0)
    num_steps: int = Field(gt=0)
    learning_rate: float = Field(ge=0, allow_inf_nan=False)
    final_learning_rate: float | None = Field(None, ge=0, allow_inf_nan=False)
    level: float | None = None
    values: dict[str, bool | int | float] = Field(
        default_factory=dict, description="what else was searched: batch_size, momentum, weight_decay, nesterov"
    )
    density: float | None = Field(None, description="measured mean share of gradient entries sent")
    threshold: float | None = Field(None, description="absolute cut-off in force at the entry's end")
    reason: str = ""

    def learning_rate_at(self, step: int) -> float:
        """Return the rate of `step`, which lies in this entry; the last step has the final rate."""
        if self.final_learning_rate is None or self.num_steps == 1:
            return self.learning_rate
        done = (step - self.step) / (self.num_steps - 1)
        return self.learning_rate + done * (self.final_learning_rate - self.learning_rate)


class Schedule(Value):
    """Entries that follow each other without a gap, from step 0 to step `num_steps` - 1."""

    model_config = ConfigDict(extra="ignore")  # an exported file also names its job's trial, arm and seed

    format: Literal["wiretune.schedule/1"] = FORMAT
    optimizer: str = Field(description="the optimizer's kind: a rate means nothing without it")
    num_steps: int = Field(gt=0)
    entries: tuple[Entry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_no_gap(self) -> "Schedule":
        expected = 0
        for index, entry in enumerate(self.entries):
            if entry.step != expected:
                raise ValueError(f"`entries[{index}].step` must be {expected}, got {entry.step}")
            expected += entry.num_steps
        if self.num_steps != expected:
            raise ValueError(f"`num_steps` must be {expected}, the sum over `entries`, got {self.num_steps}")
        return self

    @classmethod
    def from_json(cls, text: str) -> "Schedule":
        """Read what `to_json`, or `wiretune export`, wrote.

        Raises:
            ValueError: it is not JSON, has another `format`, or its entries leave a gap.
        """
        return cls.model_validate_json(text)

    def to_json(self) -> str:
        """Return the schedule as indented JSON, for a file."""
        return self.model_dump_json(indent=2)

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of optimizer step `step`; after the last step, its rate goes on.

        Raises:
            ValueError: `step` is negative.
        """
        entry = self._entry_at(step)
        return entry.learning_rate_at(min(step, self.num_steps - 1))

    def level_at(self, step: int) -> float | None:
        """Return the exchange's level at `step`; None: it has no level.

        Raises:
            ValueError: `step` is negative.
        """
        return self._entry_at(step).level

    def batch_size_at(self, step: int) -> int | None:
        """Return the samples per worker and micro-batch at `step`; None: the batch size was not searched.

        Raises:
            ValueError: `step` is negative.
        """
        size = self._entry_at(step).values.get("batch_size")
        return None if size is None else int(size)

    def scheduler(self, optimizer: Optimizer, *, on_level: Callable[[float], None] | None = None) -> LambdaLR:
        """Return a scheduler that gives `optimizer` these rates, from its next step on.

        The first parameter group gets the schedule's rates, the others keep their ratio to it. The rates of an
        `own` optimizer multiply those of its groups, also of the first. A momentum, weight decay or nesterov that was
        searched is set where a group now has the first one's. `on_level` is called with the level of the coming
        step, at once and whenever it changes.

        Raises:
            ValueError: the first group's rate is not positive, so there is no ratio to it.
        """
        base = 1.0 if self.optimizer == OWN else optimizer.param_groups[0]["lr"]
        if not base > 0:
            raise ValueError(f"`optimizer` must have a positive learning rate in its first group, got {base}.")
        announced: list[float | None] = [None]
        followers = _followers(optimizer)

        def factor(step: int) -> float:
            _set_options(followers, self._entry_at(step).values)
            level = self.level_at(step)
            if on_level is not None and level is not None and level != announced[0]:
                announced[0] = level
                on_level(level)
            return self.learning_rate_at(step) / float(base)

        return LambdaLR(optimizer, factor)

    def _entry_at(self, step: int) -> Entry:
        if step < 0:
            raise ValueError(f"`step` must be at least 0, got {step}.")
        return self.entries[bisect_right([entry.step for entry in self.entries], step) - 1]


Groups = list[dict[str, Any]]  # torch parameter groups


def _followers(optimizer: Optimizer) -> dict[str, Groups]:
    """Return by option the groups that have the first one's."""
    first = optimizer.param_groups[0]
    return {
        option: [group for group in optimizer.param_groups if group.get(option) == first[option]]
        for option in ("betas", "momentum", "weight_decay", "nesterov")
        if option in first
    }


def _set_options(followers: Mapping[str, Groups], values: Mapping[str, float]) -> None:
    for option, groups in followers.items():
        value = values.get("momentum" if option == "betas" else option)
        for group in groups if value is not None else ():
            group[option] = (value, group["betas"][1]) if option == "betas" else value
