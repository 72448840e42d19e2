"""Decisions on how probes and commits end, which all loops share."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from pydantic import Field

from search.loop.pacing import ProbePart
from search.loop.series import Series
from search.types import Course, Decision, Observation, Spent, Value, Values

#: So many commits in a row, each at a lower rate, that diverge after so many steps or more, the last no later than the
#: first, show that no rate helps: a batch, or the loss, is at fault. It takes more of short ones: a rate may be far too
#: high.
ENOUGH = ((3, 10), (6, 0))


class Failure(Value):
    """A commit that diverged."""

    values: Values = Field(description="of its decision")
    num_steps: int = Field(description="it lasted; 0: it diverged in its first step, before any update of its own")


def is_cut(seen: Observation, watch: Callable[[Observation], Course], part: ProbePart) -> bool:
    """Return whether a strategy that may `watch` ends a probe after `part` of it. A diverged one ends by itself."""
    return not part.is_last and not seen.diverged and watch(seen) != "go_on"


def course_before(decision: Decision, *, is_over: Callable[[], bool]) -> Course | None:
    """Return how a commit ends that takes no step, since its run starts over; None: it takes some."""
    if not decision.starts_over:
        return None
    return "end" if is_over() else "start_over"


def course_at_end(
    watch: Callable[[Observation], Course],
    seen: Observation,
    *,
    is_over: Callable[[], bool],
    is_better: Callable[[], bool],
) -> Course:
    """Return how a commit goes on after what is `seen` of it: as a strategy that may `watch` it says.

    A commit that diverged is rolled back. Any other one ends instead if the budget `is_over`, since nothing can be
    searched again, and if its state `is_better` than its start. Nor is a run that is over started over.
    """
    if seen.diverged:
        return "roll_back"
    course = watch(seen)
    if course == "start_over" and is_over():
        return "end"
    return "end" if course == "roll_back" and is_over() and is_better() else course


def closing(series: Series, course: Course, spent: Spent) -> Observation:
    """Return the observation that closes a commit; `spent` are the run's totals."""
    return series.observation(None, spent, rolled_back=course != "end", started_over=course == "start_over")


def failures_after(failures: Sequence[Failure], values: Values, series: Series, course: Course) -> list[Failure]:
    """Return the commits that diverged since one was kept, after one with `values` that ended by `course`."""
    if series.diverged:
        return [*failures, Failure(values=values, num_steps=series.num_steps)]
    return [] if course == "end" else list(failures)


def futile(failures: Sequence[Failure]) -> Sequence[Failure]:
    """Return the last of `failures`, commits that diverged since one was kept, if they show that no rate helps.

    Two failed by the same decision, or both at once, or `ENOUGH` of them, which lower rates made last no longer.
    """
    if len(failures) < 2:
        return ()
    *_, before, last = failures
    if before.values == last.values or before.num_steps == last.num_steps == 0:
        return failures[-2:]
    return next((failures[-num:] for num, least in ENOUGH if _last_no_longer(failures[-num:], num, least)), ())


def _last_no_longer(failures: Sequence[Failure], number: int, least: int) -> bool:
    """Return whether `number` failures at falling rates lasted `least` steps, and the last no longer than the first."""
    lengths, rates = zip(*((each.num_steps, each.values.learning_rate) for each in failures), strict=True)
    falls = all(later < earlier for earlier, later in pairwise(rates))
    return len(lengths) == number and falls and min(lengths) >= least and lengths[-1] <= lengths[0]
