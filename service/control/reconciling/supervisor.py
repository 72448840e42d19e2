"""Watch running attempts, and end those that are lost."""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

from service.control.queue.capacity import Shape
from service.control.ray_cluster.clusters import RayApi
from service.control.ray_cluster.logs import Logs
from service.control.ray_cluster.ray_jobs import RayStatus
from service.control.reconciling import effects
from service.control.reconciling.calls import side_by_side
from service.control.reconciling.cluster_sight import ClusterSight
from service.control.reconciling.judgement import Action, Verdict, judge
from service.control.reconciling.submission import Submission
from service.control.reconciling.uptime import CHANCE_TO_RESUME_S, Uptime
from service.control.store import Store
from service.control.work import Work
from service.errors import NotFound, Unavailable, UnreadableJob
from service.job.states import RULES, JobState
from service.log_lines import log_fields
from service.settings import Settings
from trainers import overload

_log = logging.getLogger(__name__)
_GOING = (JobState.STARTING, JobState.RUNNING)
_NUM_LOG_LINES = 5
_EXPIRED = RULES[JobState.PAUSED].on_deadline


class Supervisor:
    """Judges each attempt and acts on it. Mutable: it remembers which drivers it asked to end, and who has no room.

    Args:
        store: the store of attempts.
        settings: the service's settings.
        sight: the view of the cluster.
        submission: submits attempts that Ray does not have yet.
        logs: drivers' logs, for their last lines.
        uptime: tells whether silence counts against drivers.
        pool: the pool in which several attempts are checked at once.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        sight: ClusterSight,
        submission: Submission,
        logs: Logs,
        uptime: Uptime,
        pool: Executor,
    ) -> None:
        self._store, self._settings = store, settings
        self._sight, self._submission, self._logs, self._uptime, self._pool = sight, submission, logs, uptime, pool
        self._told_at: dict[str, float] = {}  # when Ray was first asked to end a driver, by submission
        self._no_room_since: dict[str, float] = {}  # the cluster is too small for the attempt, by submission

    def watch(self, ray: RayApi, active: Sequence[Work], *, now: float) -> None:
        """Check every active job once."""
        watched = {work.submission_id for work in active}
        self._told_at = {driver: at for driver, at in self._told_at.items() if driver in watched}
        too_large = [work.submission_id for work in active if work.submission_id and self._has_no_room(work.shape)]
        self._no_room_since = {driver: self._no_room_since.get(driver, now) for driver in too_large}
        known = _statuses(ray) if len(active) > 1 else {}
        side_by_side(self._pool, {work.job_id: partial(self._look_at, ray, work, known, now=now) for work in active})

    def watch_alone(self, active: Sequence[Work], reason: str, *, now: float) -> None:
        """Check every active job while Ray does not answer for `reason`."""
        for work in active:
            verdict = judge(work, RayStatus.UNREACHABLE, now=now, leases_count=self._uptime.leases_count(now))
            if verdict.action is Action.WAIT:
                self._hinder(work, reason)
            else:
                effects.lose(self._store, work, verdict.reason)

    def expire(self, paused: Sequence[Work], *, now: float) -> None:
        """Fail jobs that were paused for too long. If their users had no time to resume them, they get a day, once."""
        side_by_side(self._pool, {work.job_id: partial(self._expire, work, now=now) for work in paused})

    def _expire(self, work: Work, *, now: float) -> None:
        if self._uptime.pauses_count(now, is_last_chance=work.deadline_moved):
            effects.fail(self._store, work, _EXPIRED)
        elif not work.deadline_moved:
            until = now + CHANCE_TO_RESUME_S
            self._store.work.move_deadline(work.job_id, state=work.state, deadline=work.deadline, to=until)

    def _has_no_room(self, shape: Shape | None) -> bool:
        return shape is not None and self._sight.is_too_small(shape)

    def _look_at(self, ray: RayApi, work: Work, known: Mapping[str, RayStatus], *, now: float) -> None:
        with log_fields(job=work.job_id, attempt=work.attempt):
            try:
                self._act(ray, work, self._judge(ray, work, known, now=now), now=now)
            except Unavailable as error:
                self._hinder(work, str(error))
            except NotFound as error:  # it ended and was deleted in the meantime
                _log.info("%s", error)
            except UnreadableJob as error:
                self._hinder(work, effects.unreadable(error.fields))

    def _judge(self, ray: RayApi, work: Work, known: Mapping[str, RayStatus], *, now: float) -> Verdict:
        assert work.submission_id is not None
        status = known.get(work.submission_id) or ray.status(work.submission_id)
        return judge(
            work,
            status,
            now=now,
            leases_count=self._uptime.leases_count(now),
            is_deaf=now - self._told_at.get(work.submission_id, now) > self._settings.lease_s,
            overload=None if self._settings.ray_address else overload.here(),  # otherwise drivers run elsewhere
            no_room_s=now - self._no_room_since.get(work.submission_id, now),
        )

    def _act(self, ray: RayApi, work: Work, verdict: Verdict, *, now: float) -> None:
        assert work.submission_id is not None
        if verdict.action is Action.SUBMIT and (forbidden := self._submission.forbidden(work.spec)) is not None:
            effects.lose(self._store, work, forbidden)  # and is not begun again
        elif verdict.action is Action.SUBMIT:
            self._submission.submit(ray, work)
        elif verdict.action is Action.STOP:
            self._told_at.setdefault(work.submission_id, now)
            ray.stop(work.submission_id)
            effects.explain(self._store, work, verdict.reason)
        elif verdict.action is Action.LOSE:
            tail = self._logs.tail(work.job_id, work.attempt, num_lines=_NUM_LOG_LINES)
            effects.lose(self._store, work, f"{verdict.reason}\n{tail}" if tail else verdict.reason)
        elif work.state in _GOING:
            effects.explain(self._store, work, "")  # the obstacle is gone

    def _hinder(self, work: Work, reason: str) -> None:
        """Set the obstacle as the reason of a job that trains or starts. One that pauses or ends keeps its reason."""
        if work.state in _GOING:
            effects.explain(self._store, work, reason)


def _statuses(ray: RayApi) -> Mapping[str, RayStatus]:
    """Return what Ray says of all drivers in one call; nothing if it does not answer, so that each is asked for."""
    try:
        return ray.statuses()
    except Unavailable:
        return {}
