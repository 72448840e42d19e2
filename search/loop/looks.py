"""Decide when a strategy looks at a commit, for all loops."""

from collections.abc import Callable

from pydantic import BaseModel, Field

from search.budget.link import StepCost
from search.loop import pacing
from search.loop.endings import course_at_end
from search.types import Allowance, Course, Observation, Spent


class WatchedCommit(BaseModel):
    """Mutable: a commit at which its strategy looks now and then. `num_done` is the number of its steps."""

    looked: int = Field(0, description="its steps when the strategy last looked at it")

    def next_look(self, until: Allowance, spent: Spent, cost: StepCost | None, *, num_done: int) -> int:
        """Return after how many steps of the commit, which ends at the totals `until`, the strategy looks again."""
        return self.looked + pacing.look_steps(until, spent, cost, num_done=num_done)

    def look(
        self,
        seen: Observation,
        watch: Callable[[Observation], Course],
        *,
        num_done: int,
        is_over: Callable[[], bool],
        is_better: Callable[[], bool],
    ) -> Course:
        """Let the strategy look at what is `seen` of the commit, and return how it goes on, as `course_at_end` says."""
        self.looked = num_done
        return course_at_end(watch, seen, is_over=is_over, is_better=is_better)

    def last_look(self, num_done: int, look: Callable[[], Course]) -> Course:
        """Return how a commit ends that has taken its steps: by one more `look`, unless there was none since."""
        course = look() if num_done > self.looked else "end"
        return "end" if course == "go_on" else course
