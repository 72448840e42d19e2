"""The table of job states: successors, owners, deadlines, and the verbs that a user may ask for."""

from dataclasses import dataclass

from service.job.vocabulary import Vocabulary


class JobState(Vocabulary):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class StateRule:
    """The rules of one job state."""

    next: frozenset[JobState]
    owner: str
    deadline_s: float | None = None  # None: its owner's clock (lease, budget) or a person ends the state
    on_deadline: str = ""


#: The longest upload of a checkpoint, in seconds, as its driver allows it: `service.cluster.trial_checkpoints`.
UPLOAD_S = 3600.0
NOBODY = "nobody"
_S = JobState
RULES: dict[JobState, StateRule] = {
    # A job that waits goes to `succeeded` if its extension is taken back.
    _S.QUEUED: StateRule(
        next=frozenset({_S.STARTING, _S.PAUSED, _S.SUCCEEDED, _S.CANCELLED, _S.FAILED}),
        owner="reconciler",
        deadline_s=7 * 24 * 3600,
        on_deadline="it waited in the queue for a week",
    ),
    _S.STARTING: StateRule(
        next=frozenset({_S.RUNNING, _S.QUEUED, _S.PAUSING, _S.STOPPING, _S.CANCELLING, _S.FAILED}),
        owner="reconciler",
        deadline_s=300,  # once its driver reports, plus `workers.start_timeout_s`
        on_deadline="its workers were not ready in time; see `wiretune logs JOB`, and raise `workers.start_timeout_s`",
    ),
    _S.RUNNING: StateRule(
        next=frozenset({_S.SUCCEEDED, _S.FAILED, _S.PAUSING, _S.STOPPING, _S.CANCELLING, _S.QUEUED}),
        owner="driver (lease)",
    ),
    _S.PAUSING: StateRule(
        next=frozenset({_S.PAUSED, _S.QUEUED, _S.SUCCEEDED, _S.FAILED, _S.CANCELLING}),  # queued, if it was preempted
        owner="reconciler",
        deadline_s=300,  # plus a few `workers.reply_timeout_s` and an upload while its driver reports
        on_deadline="the driver did not pause by itself; its Ray Job is stopped",
    ),
    _S.PAUSED: StateRule(
        next=frozenset({_S.QUEUED, _S.SUCCEEDED, _S.CANCELLED, _S.FAILED}),
        owner="its user",
        deadline_s=30 * 24 * 3600,
        on_deadline="nobody resumed it for 30 days; `wiretune retry JOB`, or `extend` if it succeeded, goes on",
    ),
    _S.STOPPING: StateRule(
        next=frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLING, _S.QUEUED}),
        owner="reconciler",
        deadline_s=900,  # plus a few `workers.reply_timeout_s` and an upload while its driver reports
        on_deadline="the driver did not finish by itself; its Ray Job is stopped",
    ),
    _S.CANCELLING: StateRule(
        next=frozenset({_S.CANCELLED}),
        owner="reconciler",
        deadline_s=30,
        on_deadline="the driver did not stop by itself; its Ray Job is stopped",
    ),
    _S.SUCCEEDED: StateRule(next=frozenset({_S.QUEUED}), owner=NOBODY),
    _S.FAILED: StateRule(next=frozenset({_S.QUEUED}), owner=NOBODY),
    _S.CANCELLED: StateRule(next=frozenset({_S.QUEUED}), owner=NOBODY),
}

#: States of a finished job. Nothing more happens to it unless its user asks.
TERMINAL = frozenset(state for state, rule in RULES.items() if rule.owner == NOBODY)
#: States in which an attempt holds cluster resources.
ACTIVE = frozenset({_S.STARTING, _S.RUNNING, _S.PAUSING, _S.STOPPING, _S.CANCELLING})


class Occasion(Vocabulary):
    """An occasion for a message: an end of the job, or an attempt that ended before the job did."""

    SUCCEEDED = JobState.SUCCEEDED.value
    FAILED = JobState.FAILED.value
    CANCELLED = JobState.CANCELLED.value
    ATTEMPT_LOST = "attempt_lost"


#: What webhooks are told of by default.
ENDS = (Occasion.SUCCEEDED, Occasion.FAILED, Occasion.CANCELLED)


class Verb(Vocabulary):
    """A verb: a user's request to an existing job."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    CANCEL = "cancel"
    RETRY = "retry"
    EXTEND = "extend"
    STEER = "steer"


#: The states in which each verb is allowed.
ALLOWED_IN: dict[Verb, frozenset[JobState]] = {
    Verb.PAUSE: frozenset({_S.QUEUED, _S.STARTING, _S.RUNNING}),
    Verb.RESUME: frozenset({_S.PAUSED}),
    Verb.STOP: frozenset({_S.RUNNING}),
    Verb.CANCEL: frozenset({_S.QUEUED, _S.STARTING, _S.RUNNING, _S.PAUSING, _S.PAUSED, _S.STOPPING}),
    Verb.RETRY: frozenset({_S.FAILED, _S.CANCELLED}),
    Verb.EXTEND: frozenset({_S.SUCCEEDED}),
    Verb.STEER: frozenset({_S.QUEUED, _S.STARTING, _S.RUNNING, _S.PAUSING, _S.PAUSED}),
}

#: The states in which one trial of a job can be stopped. While no driver runs, the next one is told.
TRIALS_STOP_IN = frozenset({_S.QUEUED, _S.STARTING, _S.RUNNING, _S.PAUSING, _S.PAUSED})

#: Further states in which a verb is allowed, if the job has run before and has a result to keep.
ONCE_RUN: dict[Verb, frozenset[JobState]] = {Verb.STOP: frozenset({_S.QUEUED, _S.STARTING, _S.PAUSED})}


def may_follow(current: JobState, following: JobState) -> bool:
    """Return whether a job may go from `current` to `following`."""
    return following in RULES[current].next


def verbs_in(state: JobState, *, searches: bool = True, has_run: bool = False) -> tuple[Verb, ...]:
    """Return the verbs allowed in `state`, given whether the job searches and whether it has run before."""
    once_run = ONCE_RUN if has_run else {}
    allowed = (verb for verb, states in ALLOWED_IN.items() if state in states | once_run.get(verb, frozenset()))
    return tuple(verb for verb in allowed if searches or verb is not Verb.STEER)
