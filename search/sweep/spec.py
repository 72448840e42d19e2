"""The parameters of a job that a sweep varies, and how it does. Pydantic only."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints, model_validator

from search.config import Config

#: The place of a field in a job: `workload.width`.
ParamPath = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", max_length=100)
]
#: What a sample sets, by path.
SampleValues = dict[str, JsonValue]
#: The unit of a second objective.
CostUnit = Literal["bytes", "seconds"]

MAX_PARAMS, MAX_SAMPLES, MAX_CHOICES = 16, 256, 100
_FORMS = ("choice", "uniform", "log_uniform", "integer", "log_integer")
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class ParamRange(Config):
    """The values that a field may take: exactly one of these forms."""

    choice: tuple[JsonValue, ...] | None = Field(
        None, min_length=2, max_length=MAX_CHOICES, description="any of these: numbers, texts, or whole objects"
    )
    uniform: tuple[_Finite, _Finite] | None = Field(None, description="a number, low to high")
    log_uniform: tuple[_Finite, _Finite] | None = Field(None, description="a positive number, by its logarithm")
    integer: tuple[int, int] | None = Field(None, description="a whole number, both ends included")
    log_integer: tuple[int, int] | None = Field(None, description="a positive whole number, by its logarithm")

    @model_validator(mode="after")
    def _is_one_form(self) -> "ParamRange":
        given = [name for name in _FORMS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(f'`{name}`' for name in _FORMS)}, got {given or 'none'}")
        if self.choice is not None and any(value in self.choice[:at] for at, value in enumerate(self.choice)):
            raise ValueError(f"`choice` must be distinct, got {list(self.choice)}")
        if self.choice is None and not (0 if self.is_log else -math.inf) < self.low < self.high:
            least = "0 < low < high" if self.is_log else "low < high"
            raise ValueError(f"`{self.form}` must be [low, high] with {least}, got {[self.low, self.high]}")
        return self

    @property
    def form(self) -> str:
        """The name of the form that was given."""
        return next(name for name in _FORMS if getattr(self, name) is not None)

    @property
    def is_log(self) -> bool:
        return self.form.startswith("log_")

    @property
    def is_whole(self) -> bool:
        return self.form.endswith("integer")

    @property
    def low(self) -> float:
        """The lower end; of a choice there is none."""
        return float(getattr(self, self.form)[0])

    @property
    def high(self) -> float:
        return float(getattr(self, self.form)[1])

    @property
    def num_values(self) -> float:
        """The number of values; infinite for any number between two ends."""
        if self.choice is not None:
            return float(len(self.choice))
        low, high = getattr(self, self.form)
        return float(high - low + 1) if self.is_whole else math.inf

    def first_values(self, most: int) -> tuple[JsonValue, ...]:
        """Return the first `most` values of a choice, or the lowest of whole numbers."""
        if self.choice is not None:
            return self.choice[:most]
        low, high = getattr(self, self.form)
        return tuple(range(low, min(high, low + most - 1) + 1))

    def ends(self) -> tuple[JsonValue, ...]:
        """Return the values that a check has to look at: both ends, or each choice."""
        ends: tuple[JsonValue, ...] = getattr(self, self.form)
        return ends


def num_combinations(params: Mapping[str, ParamRange]) -> float:
    """Return how many samples can differ; infinite where a param takes any number between two ends."""
    return math.prod(of.num_values for of in params.values())


class SweepConfig(Config):
    """The rules by which samples are drawn out of `params`, ended early, and ranked."""

    samples: int = Field(16, ge=1, le=MAX_SAMPLES, description="trials with values of their own, besides the arms")
    sampler: Literal["sobol", "random", "bo"] = Field(
        "sobol", description="bo: the later samples learn from what the earlier ones measured"
    )
    scheduler: Literal["asha", "none"] = Field(
        "asha", description="asha: a sample that is behind at a rung ends there; none: each has the whole budget"
    )
    reduction: int = Field(3, ge=2, le=10, description="of those at a rung the best 1/reduction go on")
    first_rung: float = Field(0.1, gt=0, lt=1, description="least share of the budget that every sample gets")
    cost: CostUnit | None = Field(
        None, description="a second objective, the less the better: bytes sent by one worker, or seconds of training"
    )
    at_once: int = Field(4, ge=1, le=MAX_SAMPLES, description="trials side by side at most, as the cluster has room")
    seed: int = Field(0, ge=0, lt=2**31, description="of the draws")

    def rungs(self) -> tuple[float, ...]:
        """Return the shares of the budget at which samples are compared, in order: 1/9 and 1/3 by default."""
        if self.scheduler == "none":
            return ()
        num = math.floor(-math.log(self.first_rung, self.reduction) + 1e-9)  # its inverse may be no finite number
        return tuple(self.reduction**-power for power in range(num, 0, -1))

    def num_designed(self, num_params: int) -> int:
        """Return how many samples are drawn before anything is measured; under `bo` the others learn."""
        return min(self.samples, max(4, 2 * num_params)) if self.sampler == "bo" else self.samples

    def expected_share(self) -> float:
        """Return the share of its budget that a sample takes on average, if losses say nothing of each other."""
        ends = (*self.rungs(), 1.0)
        lengths = [end - start for start, end in zip((0.0, *ends), ends, strict=False)]
        return math.fsum(length / self.reduction**number for number, length in enumerate(lengths))
