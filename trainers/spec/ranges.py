"""The base of every configuration: ranges where a number may stand, and conflicts that name the fields."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

Number = TypeVar("Number", bound=float)


class Conflict(NamedTuple):
    """Why a field is refused, by itself or beside others."""

    pointer: str  # RFC 6901, from the model that checked on
    value: object
    message: str
    arms: tuple[str, ...] = ()  # of a job, whose parts do not fit; none: it is about all of them

    def __str__(self) -> str:
        named = f"{'arm' if len(self.arms) == 1 else 'arms'} {', '.join(f'`{arm}`' for arm in self.arms)}: "
        return f"{named if self.arms else ''}{self.message}"


def conflict_error(conflicts: list[Conflict]) -> PydanticCustomError:
    """Return the error of a check across fields, which names all `conflicts` at once."""
    message = "; ".join(map(str, conflicts))
    return PydanticCustomError("conflicts", "{message}", {"message": message, "conflicts": conflicts})


class Range(NamedTuple):
    """A pair where a configuration takes a number: the value it gives is searched."""

    name: str  # of the value, as a segment has it
    field: str  # of the configuration, with `/` and the index where it is an item
    pair: tuple[float, float]

    @property
    def low(self) -> float:
        return min(self.pair)

    @property
    def high(self) -> float:
        return max(self.pair)

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what makes it no range."""
        field, shown = self.field.partition("/")[0], list(self.pair)
        one, other = self.pair
        message = ""
        if isinstance(one, bool):
            message = f"`{field}` must be [false, true], or [true, false]" if one == other else ""
        elif not one < other:
            message = f"`{field}` must be [low, high] with low < high"
        elif one <= 0:
            message = f"`{field}` is searched on a log scale: its lower bound must be > 0"
        if message:
            yield Conflict(f"/{self.field}", shown, f"{message}, got {shown}")


class Onset(NamedTuple):
    """The number of steps before a choice does what it is for."""

    steps: int
    until: str  # a clause that says what happens then
    knobs: tuple[str, ...]  # fields of the configuration that `steps` is in proportion to


#: Fields of configurations that may be a pair, and give a segment the value of their own name.
SEARCHABLE = (
    "batch_size",
    "momentum",
    "weight_decay",
    "nesterov",
    "period",
    "gamma",
    "share",
    "outer_learning_rate",
    "outer_momentum",
)


class Config(BaseModel):
    """Base of every configuration: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def searchable(cls) -> frozenset[str]:
        """Return the names of the values that may be a range here, so that a run can change them."""
        forms = {name: get_args(field.annotation) for name, field in cls.model_fields.items() if name in SEARCHABLE}
        return frozenset(name for name, each in forms.items() if any(get_origin(form) is tuple for form in each))

    def set_to(self, values: Mapping[str, Any]) -> Self:
        """Return this with searchable `values`, by name, as its own; raises pydantic.ValidationError if they misfit."""
        return self.model_validate({**self.model_dump(), **values})

    def ranges(self) -> Iterator[Range]:
        """Yield what is searched."""
        for name in SEARCHABLE:
            given = self.__dict__.get(name)  # a field of this configuration: `getattr` is slow for what it has not
            if isinstance(given, tuple):
                yield Range(name, name, given)

    def takes_effect_at(self) -> Onset | None:
        """Return when this begins to do what it is for; None: at once, or nobody knows beforehand."""
        return None

    def conflicts(self) -> Iterator[Conflict]:
        """Yield what does not fit together."""
        for each in self.ranges():
            yield from each.conflicts()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if conflicts := list(self.conflicts()):
            raise conflict_error(conflicts)
        return self


def first(given: Number | tuple[Number, Number]) -> Number:
    """Return a number as it is, and of a pair the first."""
    return given[0] if isinstance(given, tuple) else given
