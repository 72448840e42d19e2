"""Decide what to do about a job, given the database and Ray. Pure: the reconciler acts."""

from dataclasses import dataclass
from enum import Enum, auto

from service.control.ray_cluster.ray_jobs import RayStatus
from service.control.work import Work
from service.job.states import RULES, UPLOAD_S, JobState
from trainers.overload import explained

#: States in which the driver's lease decides. In other active states, the deadline is shorter.
_LEASED = frozenset({JobState.RUNNING, JobState.PAUSING, JobState.STOPPING})
#: A driver that pauses or stops may wait for its workers' last segment, an evaluation and a checkpoint, and then for
#: the checkpoint's upload.
_NUM_REPLIES = 3
_ENDED = frozenset({RayStatus.STOPPED, RayStatus.SUCCEEDED, RayStatus.FAILED, RayStatus.MISSING})
_NO_ROOM = (
    "there was no room for its workers within {patience_s:g} s (`workers.patience_s`): the cluster has become smaller "
    "than it was when the attempt began"
)
_UNHEARD = "the driver sent no report; see `wiretune logs JOB`, and check WIRETUNE_API_URL"
_SAID = {
    RayStatus.STOPPED: "its Ray Job was stopped from outside",
    RayStatus.SUCCEEDED: "its driver ended without a result",
    RayStatus.FAILED: "its driver failed",
    RayStatus.MISSING: "Ray does not know its driver any more; the cluster was restarted",
}


class Action(Enum):
    """An action of the reconciler on a job."""

    WAIT = auto()
    SUBMIT = auto()  # hand the driver to Ray
    STOP = auto()  # have Ray end the driver; the attempt is lost once Ray confirms that
    LOSE = auto()  # end the attempt


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An action and its reason for people. An empty reason leaves the job's reason unchanged."""

    action: Action
    reason: str = ""


def judge(
    work: Work,
    status: RayStatus,
    *,
    now: float,
    leases_count: bool,
    is_deaf: bool = False,
    overload: str | None = None,
    no_room_s: float = 0.0,
) -> Verdict:
    """Return what to do about a job with an attempt.

    Args:
        work: an active job.
        status: what Ray says of its driver.
        now: seconds since the epoch.
        leases_count: whether the service has been up for a whole lease, so that silence or a missed deadline is the
            driver's fault.
        is_deaf: whether Ray was asked a lease ago to end the driver, and has not: its machine hangs, or is cut off.
        overload: the overload of the driver's machine, if known: a late driver is not lost then.
        no_room_s: how long the cluster has been too small for the attempt's workers.
    """
    is_silent = leases_count and work.lease_expires is not None and work.lease_expires < now
    is_starting = work.state is JobState.STARTING
    longer_s = 0.0 if is_silent else _longer_s(work)
    is_overdue = leases_count and work.deadline is not None and work.deadline + longer_s < now
    patience_s = work.workers.patience_s
    is_homeless = is_starting and no_room_s > patience_s  # later its group says what it has lost
    is_given_up = is_overdue or is_homeless or (is_silent and work.state in _LEASED)
    why = ""
    if is_homeless:
        why = _NO_ROOM.format(patience_s=patience_s)
    elif is_overdue:
        why = explained(_UNHEARD if is_starting and is_silent else RULES[work.state].on_deadline, overload)
    elif is_given_up:
        why = f"the driver was silent for longer than its lease; {overload or 'its machine or its network failed'}"
    if status is RayStatus.UNREACHABLE:
        # Ray is unreachable: the driver's lease decides, and the fence stops it if it still lives.
        action = Action.LOSE if is_silent and is_given_up else Action.WAIT
        return Verdict(action=action, reason=why if action is Action.LOSE else "")
    # Only an attempt that never reported is submitted again. A second driver would restart each stream at batch 1, and
    # its batches would be taken for those of the first driver.
    is_unsent = status is RayStatus.MISSING and work.state is JobState.STARTING and not work.is_heard
    if is_unsent and not is_overdue:
        return Verdict(action=Action.SUBMIT)
    if status in _ENDED:
        return Verdict(action=Action.LOSE, reason=why or _SAID[status])
    if is_given_up:
        # A driver that cannot be ended is fenced: if it wakes, its writes are refused and it ends by itself.
        return Verdict(action=Action.LOSE if is_deaf else Action.STOP, reason=why)
    return Verdict(action=Action.WAIT)


def _longer_s(work: Work) -> float:
    """Return what the time-outs of the job and its driver add to the deadline of its state."""
    if work.state is JobState.STARTING:
        return work.workers.start_timeout_s
    if work.state in (JobState.PAUSING, JobState.STOPPING):
        return _NUM_REPLIES * work.workers.reply_timeout_s + UPLOAD_S
    return 0.0
