"""The one table of a job's states: what may follow, who owns each, and how long it may last."""

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class StateRule:
    """What holds while a job is in one state."""

    next: frozenset[JobState]
    owner: str
    deadline_s: float | None = None  # None: ended by its owner's own clock (the lease, the budget) or by a person
    on_deadline: str = ""


_S = JobState
RULES: dict[JobState, StateRule] = {
    _S.QUEUED: StateRule(
        next=frozenset({_S.STARTING, _S.CANCELLED, _S.FAILED}),
        owner="reconciler",
        deadline_s=7 * 24 * 3600,
        on_deadline="the cluster had no room for it for a week; free capacity, or ask for fewer workers",
    ),
    _S.STARTING: StateRule(
        next=frozenset({_S.RUNNING, _S.QUEUED, _S.CANCELLING, _S.FAILED}),
        owner="reconciler",
        deadline_s=300,
        on_deadline="the driver sent no first report; see `wiretune logs JOB`, and check WIRETUNE_API_URL",
    ),
    _S.RUNNING: StateRule(
        next=frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLING, _S.QUEUED}),
        owner="driver (lease)",
    ),
    _S.CANCELLING: StateRule(
        next=frozenset({_S.CANCELLED}),
        owner="reconciler",
        deadline_s=30,
        on_deadline="the driver did not stop by itself; its Ray Job is stopped",
    ),
    _S.SUCCEEDED: StateRule(next=frozenset(), owner="nobody"),
    _S.FAILED: StateRule(next=frozenset(), owner="nobody"),
    _S.CANCELLED: StateRule(next=frozenset(), owner="nobody"),
}

TERMINAL = frozenset(state for state, rule in RULES.items() if not rule.next)


def may_follow(current: JobState, following: JobState) -> bool:
    """Whether a job may go from `current` to `following`."""
    return following in RULES[current].next
