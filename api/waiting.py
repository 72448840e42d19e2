"""Polling of jobs: when the next poll is due, and when to give up."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence

from api import calls
from api.calls import Call
from api.failures import UnknownJob
from service.job.states import JobState
from service.wire.jobs import JobPage, JobSummary, JobView

POLL_S = 0.5
#: Pauses grow with the time waited, so the end is noticed late by a small share of it.
_SHARE_OF_WAIT, _LONGEST_S = 0.05, 5.0
#: A poll costs the service time, under `run` also the training. The pause is this many times as long.
_PAUSE_PER_LOOK, _LONGEST_AFTER_SLOW_LOOK_S = 4.0, 10.0
#: The most ids in one request: the URL has 6.5 kB then, and nginx accepts 8 kB by default.
_MAX_IDS = 200


class Looks:
    """Decides when the next poll is due.

    Args:
        timeout_s: counted from now; None: no limit.
        poll_s: the pause between polls. None: it grows with the time waited, from 0.5 s to 5 s. It is also at least
            four times as long as the last poll and the caller's own work took, up to 10 s.
    """

    def __init__(self, timeout_s: float | None, poll_s: float | None) -> None:
        self._timeout_s, self._poll_s = timeout_s, poll_s
        self._begun = self._looked = time.monotonic()
        self._deadline = math.inf if timeout_s is None else self._begun + timeout_s

    def begin(self) -> float:
        """Note that a poll begins; return how long it may take."""
        self._looked = time.monotonic()
        return self._deadline - self._looked

    def pause_s(self, waited_for: str) -> float:
        """Return how long to wait before the next poll, at most until the deadline. Raises TimeoutError after it.

        `waited_for` is the subject of the error message, such as `job X was`.
        """
        now = time.monotonic()
        left_s = self._deadline - now
        if left_s < 0:
            raise TimeoutError(f"{waited_for} not over after {self._timeout_s} s")
        return min(left_s, self._paced_s(now) if self._poll_s is None else self._poll_s)

    def _paced_s(self, now: float) -> float:
        by_wait = min(_SHARE_OF_WAIT * (now - self._begun), _LONGEST_S)
        by_look = min(_PAUSE_PER_LOOK * (now - self._looked), _LONGEST_AFTER_SLOW_LOOK_S)
        return max(POLL_S, by_wait, by_look)


class SeveralJobs:
    """Several jobs to wait for, by their ids."""

    def __init__(self, job_ids: Iterable[str]) -> None:
        self._ids = tuple(job_ids)
        self._found: dict[str, JobSummary] = {}

    def pages(self) -> Iterator[list[str]]:
        """Yield the ids of jobs that were not over at the last poll, page by page."""
        return in_pages(self._waiting())

    def take(self, asked: list[str], page: JobPage) -> None:
        """Take the answer to a request for the ids `asked`. Raises UnknownJob if one of them does not exist."""
        self._found |= {job.id: job for job in page.jobs}
        if missing := set(asked) - {job.id for job in page.jobs}:
            raise UnknownJob(f"there is no job `{min(missing)}` (any more)")

    @property
    def are_over(self) -> bool:
        """True once all jobs are over."""
        return not self._waiting()

    @property
    def told(self) -> str:
        """The subject of a sentence about the jobs that are not over."""
        waiting = self._waiting()
        return f"{len(waiting)} of {len(set(self._ids))} jobs, {waiting[0]} among them, were"

    @property
    def jobs(self) -> tuple[JobSummary, ...]:
        """The jobs as they were last seen, in the order of their ids."""
        return tuple(self._found[each] for each in self._ids)

    def _waiting(self) -> list[str]:
        return [each for each in dict.fromkeys(self._ids) if each not in self._found or not self._found[each].is_over]


def in_pages(job_ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield the ids in groups that fit into one request."""
    for start in range(0, len(job_ids), _MAX_IDS):
        yield list(job_ids[start : start + _MAX_IDS])


def all_of(ids: list[str]) -> Call[JobPage]:
    """Return the call for the jobs with these ids, archived or not."""
    return calls.jobs(ids=ids, archived=None, limit=_MAX_IDS)


def stands_still(before: JobView | None, now: JobView) -> bool:
    """Return whether no trial can have changed since `before`: the job waits, as it did then."""
    return before is not None and before.version == now.version and now.state in (JobState.QUEUED, JobState.PAUSED)
