"""The file of a learned schedule: the values of a run at each step, and their provenance. Pydantic only.

`python -m search.schedule_file` prints its JSON schema.
"""

import json
import re
from bisect import bisect_right
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

from search.types import FURTHER, MAX_LEARNING_RATE, Value, Values

FORMAT: Literal["wiretune.schedule/1"] = "wiretune.schedule/1"
VERSION = 1  # a release that only adds fields keeps the number
OWN = "own"  # the optimizer of a user's workload: the schedule's rates multiply those of its groups


class Settable(Values):
    """The values besides learning rate and level, with the bounds that a job has for them."""

    batch_size: int | None = Field(None, ge=1)
    momentum: float | None = Field(None, ge=0, lt=1)
    weight_decay: float | None = Field(None, ge=0, allow_inf_nan=False)
    period: int | None = Field(None, ge=1)
    gamma: float | None = Field(None, ge=0, lt=1)
    share: float | None = Field(None, gt=0, le=1)
    outer_learning_rate: float | None = Field(None, gt=0, allow_inf_nan=False)
    outer_momentum: float | None = Field(None, ge=0, lt=1)


class Entry(Value):
    """Values from `step` on, for `num_steps` steps; the rate goes linearly to `final_learning_rate` if given."""

    step: int = Field(ge=0)
    num_steps: int = Field(gt=0)
    learning_rate: float = Field(ge=0, allow_inf_nan=False)
    final_learning_rate: float | None = Field(None, ge=0, allow_inf_nan=False)
    piece_steps: int | None = Field(
        None, gt=0, description="steps until the rate is the final one, where the run left that way earlier"
    )
    level: float | None = None
    values: dict[str, bool | int | float | str] = Field(
        default_factory=dict,
        description=f"what else was searched, by name: {', '.join(FURTHER)}",
    )
    density: float | None = Field(None, description="measured mean share of gradient entries sent")
    threshold: float | None = Field(None, description="absolute cut-off in force at the entry's end")
    reason: str = ""
    steered_by: tuple[str, ...] = Field((), description="people whose pins and vetoes held")

    @field_validator("values")
    @classmethod
    def _can_be_set(cls, given: dict[str, Any]) -> dict[str, Any]:
        if unknown := given.keys() - {*FURTHER}:
            raise ValueError(f"`values` may name {', '.join(FURTHER)}, got {sorted(unknown)[0]!r}")
        try:
            return Settable(learning_rate=0.0, **given).further
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ValueError(f"`values.{wrong['loc'][0]}`: {wrong['msg']}, got {wrong['input']!r}") from None

    @model_validator(mode="after")
    def _is_within_its_piece(self) -> Self:
        if self.piece_steps is not None and self.piece_steps < self.num_steps:
            raise ValueError(f"`piece_steps` must be at least `num_steps`, {self.num_steps}, got {self.piece_steps}")
        return self

    def learning_rate_at(self, step: int) -> float:
        """Return the rate of `step`, which lies in this entry; the piece's last step has the final rate."""
        index, last = step - self.step, (self.piece_steps or self.num_steps) - 1
        if self.final_learning_rate is None or last == 0:
            return self.learning_rate
        if index == last:
            return self.final_learning_rate  # the sum below may miss it by a rounding
        # Bit for bit as the workers compute it: `trainers.segment.Segment`.
        return self.learning_rate + (self.final_learning_rate - self.learning_rate) * index / last


class ScheduleFile(Value):
    """Entries that follow each other without a gap, from step 0 to step `num_steps` - 1."""

    model_config = ConfigDict(extra="ignore")  # an exported file also names its job's trial, arm and seed

    format: Literal["wiretune.schedule/1"] = FORMAT
    optimizer: str = Field(description="the optimizer's kind: a rate means nothing without it")
    num_steps: int = Field(gt=0)
    entries: tuple[Entry, ...] = Field(min_length=1)

    @field_validator("format", mode="before")
    @classmethod
    def _is_of_a_version_we_read(cls, given: Any) -> Any:
        found = re.fullmatch(r"wiretune\.schedule/(\d{1,9})", given) if isinstance(given, str) else None
        if found is None:
            raise ValueError(f"`format` must be {FORMAT!r}, got {given!r}: is this file a schedule of Wiretune?")
        if int(found[1]) != VERSION:
            raise ValueError(
                f"`format` must be {FORMAT!r}, got {given!r}: the file is of another release, whose `wiretune export` "
                "or newer reads it; install that, or export the schedule with this one"
            )
        return given

    @model_validator(mode="after")
    def _has_no_gap(self) -> Self:
        expected = 0
        for index, entry in enumerate(self.entries):
            if entry.step != expected:
                raise ValueError(f"`entries[{index}].step` must be {expected}, got {entry.step}")
            expected += entry.num_steps
            if entry.values.get("optimizer", self.optimizer) != self.optimizer:
                named = entry.values["optimizer"]
                raise ValueError(f"`entries[{index}].values.optimizer` must be {self.optimizer!r}, got {named!r}")
            for name in ("learning_rate", "final_learning_rate"):
                if self.optimizer != OWN and (rate := getattr(entry, name) or 0.0) > MAX_LEARNING_RATE:
                    raise ValueError(f"`entries[{index}].{name}` should be in [0, {MAX_LEARNING_RATE:g}], got {rate:g}")
        if self.num_steps != expected:
            raise ValueError(f"`num_steps` must be {expected}, the sum over `entries`, got {self.num_steps}")
        return self

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json`, or `wiretune export`, wrote.

        Raises:
            ValueError: it is not JSON, has another `format`, or its entries leave a gap.
        """
        return cls.model_validate_json(text)

    def to_json(self) -> str:
        """Return the schedule as indented JSON, for a file."""
        return self.model_dump_json(indent=2)

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of optimizer step `step`; past the end, that of the last step.

        Raises:
            ValueError: `step` is negative.
        """
        entry = self.entry_at(step)
        return entry.learning_rate_at(min(step, self.num_steps - 1))

    def level_at(self, step: int) -> float | None:
        """Return the exchange's level at `step`; None: it has no level.

        Raises:
            ValueError: `step` is negative.
        """
        return self.entry_at(step).level

    def batch_size_at(self, step: int) -> int | None:
        """Return the samples per worker and micro-batch at `step`; None: the batch size was not searched.

        Raises:
            ValueError: `step` is negative.
        """
        size = self.entry_at(step).values.get("batch_size")
        return None if size is None else int(size)

    def option_at(self, step: int) -> str | None:
        """Return the exchange in force at `step`, as `threshold 0.01`; None: no exchanges competed.

        Raises:
            ValueError: `step` is negative.
        """
        option = self.entry_at(step).values.get("option")
        return None if option is None else str(option)

    def optimizer_at(self, step: int) -> str:
        """Return the kind of the optimizer at `step`; of several that competed, the chosen one.

        Raises:
            ValueError: `step` is negative.
        """
        return str(self.entry_at(step).values.get("optimizer", self.optimizer))

    def entry_at(self, step: int) -> Entry:
        """Return the entry that holds `step`; past the end, the last one.

        Raises:
            ValueError: `step` is negative.
        """
        if step < 0:
            raise ValueError(f"`step` must be at least 0, got {step}.")
        return self.entries[bisect_right(self.entries, step, key=lambda entry: entry.step) - 1]


class Provenance(Value):
    """The run that a schedule was learned in. A later release may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    job_id: str
    job: dict[str, JsonValue] = Field(description="the job, as the service took it: `wiretune replay` trains it again")
    arm: str
    seed: int = Field(ge=0)
    sample: dict[str, JsonValue] | None = Field(
        None, description="what a sample of `params` sets in the job, by path; null: the run was an arm's"
    )
    versions: dict[str, str] = Field(
        default_factory=dict, description="of wiretune, torch and python, where it trained"
    )
    fingerprint: str | None = Field(
        None, description="hash of the first weights, and of the data's sizes and version; null: not kept"
    )
    weights: str | None = Field(None, description="SHA-256 of the weights file that it ended with; null: not kept")
    averaged: bool = Field(False, description="these weights are the average of the run's last ones")


class RecordedSchedule(ScheduleFile):
    """A schedule as it is exported: with the run that it was learned in, and the warm-up of its optimizer.

    A job that follows the file has a warm-up of its own, so `ScheduleFile` leaves this one out.
    """

    warmup_steps: int = Field(
        0,
        ge=0,
        description="the optimizer's linear ramp from the first step, which the rates of `entries` do not have: step "
        "`i` was trained at `min(1, (i + 1) / warmup_steps)` times its rate; 0: at its rate",
    )
    optimizer_options: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="of the optimizer that a loop trained with, besides the rate: `momentum`, `nesterov`, `betas`, "
        "`weight_decay`; empty: `provenance.job` has them, or nobody does",
    )
    complete: bool = Field(
        True,
        description="false: the run had not ended; behind its last checkpoint the entries are as they were decided, "
        "without ramps",
    )
    provenance: Provenance | None = Field(None, description="null: an earlier release wrote the file")

    @property
    def optimizer_fields(self) -> dict[str, JsonValue]:
        """The optimizer's kind and options, as `wiretune.build_optimizer` takes them."""
        return {"kind": self.optimizer, **self.optimizer_options}

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of optimizer step `step`, with the warm-up; past the end, that of the last step.

        Raises:
            ValueError: `step` is negative.
        """
        ramp = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return super().learning_rate_at(step) * ramp  # bit for bit as the workers compute it


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of an exported schedule, for programs that read or write one."""
    schema = RecordedSchedule.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": f"Schedule, {FORMAT}"}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
