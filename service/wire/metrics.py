"""The value that a metric names in a result, and which way it is better."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from service.job.parts import LOSS, Direction

Value = TypeVar("Value", covariant=True)


class HasValidation(Protocol[Value]):
    """A result on the validation set: the loss, and the workload's own metrics."""

    @property
    def validation_loss(self) -> Value | None: ...

    @property
    def validation_metrics(self) -> Mapping[str, Value | None]: ...


def value_of(result: HasValidation[Value], metric: str) -> Value | None:
    """Return the result's value of `metric`; None if it has none."""
    return result.validation_loss if metric == LOSS else result.validation_metrics.get(metric)


def sign(direction: Direction | None) -> int:
    """Return the factor that makes lower values better. None: a metric of unknown direction, which counts as a loss."""
    return -1 if direction == "max" else 1
