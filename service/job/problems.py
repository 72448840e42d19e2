"""Problems of a refused request that a person can act on: the place, the given value and what is allowed."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from trainers.spec.ranges import Conflict
from trainers.spec.refusals import conflicts_of, field_name, pointer_to


class Problem(BaseModel):
    """One thing wrong with a request."""

    pointer: str  # RFC 6901, into the request's body
    message: str
    value: Any = None
    arms: tuple[str, ...] = ()  # the arms that have it; empty: the whole request

    @staticmethod
    def of(conflict: Conflict) -> "Problem":
        """Return the problem that the API reports for `conflict`."""
        return Problem(**conflict._asdict())

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {Conflict(self.pointer, self.value, self.message, self.arms)}"


def problems_of(error: ValidationError, body: Any, model: type[BaseModel]) -> list[Problem]:
    """Return the problems of a `body` that is not a valid `model`, each with a JSON pointer to the field at fault."""
    return [Problem.of(conflict) for conflict in conflicts_of(error, body, model)]


def misread(given: Any, read: Any, path: tuple[str | int, ...] = ()) -> Iterator[Conflict]:
    """Yield a conflict for each boolean in `given` that was `read` as a number: pydantic accepts `true` as 1."""
    if isinstance(given, bool):
        if isinstance(read, int | float) and not isinstance(read, bool):
            yield Conflict(pointer_to(path), given, f"`{field_name(path)}` must be a number, got {str(given).lower()}")
        return
    read = dict(read) if isinstance(read, BaseModel) else read
    if isinstance(given, dict) and isinstance(read, dict):
        for name, value in given.items():
            yield from misread(value, read.get(name), (*path, name))
    elif isinstance(given, list | tuple) and isinstance(read, list | tuple):
        for index, (value, its_reading) in enumerate(zip(given, read, strict=False)):
            yield from misread(value, its_reading, (*path, index))
