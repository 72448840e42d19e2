"""Decisions on how commits end, which all loops share."""

from collections.abc import Callable, Sequence

from pydantic import Field

from search.types import Course, Observation, Value, Values

#: So many commits in a row that diverge after so many steps or more, the last no later than the first, show that lower
#: rates do not help: a batch, or the loss, is at fault. It takes more of short ones: a rate may be far too high.
ENOUGH = ((3, 10), (6, 0))


class Failure(Value):
    """A commit that diverged."""

    values: Values = Field(description="of its decision")
    num_steps: int = Field(description="it lasted; 0: it diverged in its first step, before any update of its own")


def course_of(
    watch: Callable[[Observation], Course],
    seen: Observation,
    *,
    is_over: Callable[[], bool],
    is_better: Callable[[], bool],
) -> Course:
    """Return how a commit goes on after what is `seen` of it: as a strategy that may `watch` it says.

    A commit that diverged is rolled back. Any other one ends instead if the budget `is_over`, since nothing can be
    searched again, and if its state `is_better` than its start.
    """
    if seen.diverged:
        return "roll_back"
    course = watch(seen)
    return "end" if course == "roll_back" and is_over() and is_better() else course


def gives_up(failures: Sequence[Failure]) -> bool:
    """Return whether `failures`, the commits that diverged since one was kept, show that no rate is at fault.

    Two failed by the same decision, or both at once, or `ENOUGH` of them, which lower rates made last no longer.
    """
    if len(failures) < 2:
        return False
    *_, before, last = failures
    if before.values == last.values or before.num_steps == last.num_steps == 0:
        return True
    return any(_last_no_longer(failures, number, least) for number, least in ENOUGH)


def _last_no_longer(failures: Sequence[Failure], number: int, least: int) -> bool:
    """Return whether each of the last `number` failures lasted `least` steps, and the last no longer than the first."""
    lengths = [each.num_steps for each in failures[-number:]]
    return len(lengths) == number and min(lengths) >= least and lengths[-1] <= lengths[0]
