"""Steers: pins, vetoes and searches that people ask of a running job's controllers, as requests and views."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from search.types import Band, Setting
from service.wire.base import Asked, View
from service.wire.records import Count

#: The maximum number of values, or entries of a list, in one request.
MAX_STEERED = 32


class SteerRequest(Asked):
    """A person's word on what the controllers of a running job may use, from the next stage of each trial on."""

    trials: tuple[str, ...] | None = Field(
        None, min_length=1, max_length=1000, description="ids; null: all whose controller searches"
    )
    pin: dict[str, Setting] = Field(
        default_factory=dict, max_length=MAX_STEERED, description="by name, values that are used and not searched"
    )
    veto: dict[str, Band | Annotated[tuple[bool | str, ...], Field(min_length=1, max_length=MAX_STEERED)]] = Field(
        default_factory=dict,
        max_length=MAX_STEERED,
        description="by name, values that are neither tried nor used: `above` and `below` of numbers, a list of others",
    )
    search_now: bool = Field(False, description="the next stage searches, whether or not anything happened")
    clear: bool | tuple[Count, ...] = Field(
        False, description="withdraw first: true: all that holds, of the same trials; else these steers"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.pin or self.veto or self.search_now or self.clear):
            raise ValueError("say at least one of `pin`, `veto`, `search_now` and `clear`")
        return self


class SteerView(View):
    """A person's word on what a job's controllers may use, and since when they heed it."""

    id: int = Field(description="counts from 1 within its job")
    at: datetime
    by: str = Field(description="the name of the key that said so")
    trials: tuple[str, ...]
    pin: dict[str, Setting]
    veto: dict[str, Band | tuple[bool | str, ...]]
    search_now: bool
    first_stages: dict[str, int] = Field(
        description="by trial, the first stage that it held in; none yet: the trial's next stage has not opened"
    )
    in_force: bool = Field(
        description="neither withdrawn nor done: its search was made, or its pinned rate failed, in every trial"
    )
    withdrawn_at: datetime | None = None
    withdrawn_by: str | None = None


class SteerableView(View):
    """A value that people may steer in some of a job's trials: a number from `low` to `high`, or one of `names`."""

    name: str = Field(description="as `pin` and `veto` take it")
    trials: tuple[str, ...]
    low: float | None = Field(None, description="null: it is no number")
    high: float | None = None
    names: tuple[bool | str, ...] = ()
    current: Setting | None = Field(None, description="what the first of these trials uses; null: nothing is decided")


class SteeringView(View):
    """The steers of a job, and what may be steered."""

    version: int = Field(description="the job's, for `If-Match`")
    steers: tuple[SteerView, ...] = Field(description="all that was said, the newest last")
    steerable: tuple[SteerableView, ...] = Field(description="by trials that have it in common")
    notes: tuple[str, ...] = Field((), description="sentences on trials of which little can come any more")
