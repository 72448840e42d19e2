"""The values of the steps that stay in a run, which make its schedule."""

import math
from array import array
from collections.abc import Iterable, Sequence

from search.schedule_file import Entry
from search.types import Values
from trainers.own_loop.attach import StepValues

#: The values of a step, in the order of its row.
TOLD = ("learning_rate", *StepValues._fields)
#: Rates on a straight line are stored as one ramp. The tolerance is this share of the line's first rate.
NEAR = 1e-6


class CommittedValues:
    """Mutable: the values of each step that stays.

    Their rows lie one behind the other in `numbers`, without an object for each: a run may have millions of steps.
    """

    def __init__(self, numbers: Iterable[float] = ()) -> None:
        self.numbers = array("d", numbers)

    def __len__(self) -> int:
        return num_steps_in(self.numbers)

    def at(self, step: int) -> Values:
        """Return the values of a step, counted from 0."""
        return values_of(self._row(step))

    def append(self, values: Values) -> None:
        """Add a step."""
        self.numbers.extend(row_of(values))

    def cut(self, num_steps: int) -> None:
        """Keep the first `num_steps` steps alone."""
        del self.numbers[num_steps * len(TOLD) :]

    def entries(self, *, unit: float) -> list[Entry]:
        """Return the steps as entries of a schedule, with rates in multiples of `unit`.

        Neighbouring steps become one entry while their rates lie on a line, within `NEAR`, and all else is the same.
        """
        entries, start = list[Entry](), 0
        for end in range(1, len(self) + 1):
            if end < len(self) and self._is_in_line(start, end):
                continue
            first, last = self.at(start), self.at(end - 1)
            is_level = first.learning_rate == last.learning_rate
            entries.append(
                Entry(
                    step=start,
                    num_steps=end - start,
                    learning_rate=first.learning_rate / unit,
                    final_learning_rate=None if is_level else last.learning_rate / unit,
                    level=first.level,
                    values=first.further,
                )
            )
            start = end
        return entries

    def _is_in_line(self, start: int, later: int) -> bool:
        """Return whether the row of the step `later` lies on the line from `start` through the step after it."""
        first, second, last = (self._row(step) for step in (start, start + 1, later))
        rate = first[0] + (later - start) * (second[0] - first[0])
        has_same_others = last[1:].tobytes() == first[1:].tobytes()  # NaN is equal there
        return has_same_others and abs(last[0] - rate) <= NEAR * first[0]

    def _row(self, step: int) -> "array[float]":
        return self.numbers[step * len(TOLD) : (step + 1) * len(TOLD)]


def num_steps_in(numbers: Sequence[float]) -> int:
    """Return how many steps have their rows in `numbers`."""
    return len(numbers) // len(TOLD)


def row_of(values: Values) -> list[float]:
    """Return the values of a step in the order of `TOLD`, NaN for what is not searched."""
    given = (getattr(values, name) for name in TOLD)
    return [math.nan if value is None else value for value in given]


def values_of(row: Sequence[float]) -> Values:
    """Return the values of a step from its row."""
    return Values.model_validate({name: value for name, value in zip(TOLD, row, strict=True) if not math.isnan(value)})
