"""Carry out the queue's decision: begin attempts, pause jobs for others, and say why the rest waits."""

import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial

from service.control.moments import is_ahead
from service.control.queue.capacity import Node
from service.control.queue.outlook import Outlook
from service.control.queue.plan import plan, sized
from service.control.queue.queued import Place, Plan, Quotas, Rules, Start, Waiting
from service.control.queue.waiting import Backlog
from service.control.ray_cluster.clusters import RayApi
from service.control.reconciling import effects
from service.control.reconciling.calls import side_by_side
from service.control.reconciling.storage_gate import Postponement, StorageGate
from service.control.reconciling.submission import Submission
from service.control.reconciling.uptime import Uptime
from service.control.store import Store
from service.errors import IllegalTransition, NotFound, Unavailable, UnreadableJob
from service.job.states import RULES, JobState
from service.log_lines import log_fields
from service.settings import Settings
from service.wire.queue import WaitKind, summary
from service.wire.records import MAX_REASON_CHARS

_log = logging.getLogger(__name__)
_NUM_EXPLAINED = 5  # reasons written in a round, for the first of perhaps ten thousand waiting jobs
_LONG_QUEUE, _SETTLED_S = 500, 5.0  # so long a queue is not decided in every round unless something changed


class Admission:
    """Begins the attempts of waiting jobs. Mutable: it keeps the queue as last decided.

    Args:
        store: the store of jobs.
        settings: the service's settings, with the rules of the queue.
        submission: submits attempts to Ray.
        gate: tells whether the storage accepts what the next attempts write.
        uptime: tells whether a job had a chance to begin.
        pool: the pool in which several attempts are begun at once.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        submission: Submission,
        gate: StorageGate,
        uptime: Uptime,
        pool: Executor,
    ) -> None:
        self._store, self._submission, self._gate, self._uptime, self._pool = store, submission, gate, uptime, pool
        self._rules = Rules(
            aging_s=settings.queue_aging_s, backfill_s=settings.queue_backfill_s, min_run_s=settings.queue_min_run_s
        )
        #: The queue as last decided.
        self.outlook = Outlook()

    def rest(self, backlog: Backlog, nodes: Sequence[Node], *, now: float) -> None:
        """Record that no job waits."""
        self.outlook = Outlook(backlog=backlog, nodes=tuple(nodes), at=now)

    def wait_for_ray(self, backlog: Backlog, nodes: Sequence[Node], reason: str, *, now: float) -> None:
        """Record that all jobs wait for Ray, which does not answer for `reason`."""
        waiting = sorted(self._possible(backlog.waiting, now=now), key=lambda job: job.job_id)
        places = tuple(
            Place(number, job, WaitKind.NO_CLUSTER, job.shape.one, detail=reason)
            for number, job in enumerate(waiting, start=1)
        )
        self._note(Plan(places=places), backlog, nodes, now=now)

    def admit(self, ray: RayApi, backlog: Backlog, nodes: Sequence[Node], *, now: float) -> None:
        """Decide the queue and act: start jobs, pause others for them, and say why the rest waits."""
        waiting = self._possible(backlog.waiting, now=now)
        if self._is_settled(backlog, nodes, now=now):
            return
        decided = plan(
            self._held_back(waiting, nodes, backlog.quotas, now=now),
            backlog.running,
            nodes,
            quotas=backlog.quotas,
            recent=backlog.recent,
            rules=self._rules,
            now=now,
        )
        self._note(decided, backlog, nodes, now=now)
        makes_room = {by.job_id for _, by in decided.pause}
        gets_room = [place for place in decided.places if place.job.job_id in makes_room]
        starts = [(start.job, start.trials) for start in decided.start]
        self._gate.ask([*starts, *((place.job, place.trials) for place in gets_room)], now=now)
        begin = {start.job.job_id: partial(self._start, ray, start, nodes, now=now) for start in decided.start}
        side_by_side(self._pool, begin)
        self._pause(decided, gets_room, now=now)
        for job_id in decided.grow:
            with suppress(NotFound):
                self._store.attempts.regroup(job_id)

    def _possible(self, waiting: Sequence[Waiting], *, now: float) -> list[Waiting]:
        """Fail the jobs that have waited for too long, or cannot be read, and return the others."""
        possible = []
        for job in waiting:
            if job.unreadable:
                effects.fail(self._store, job, effects.unreadable(job.unreadable))
            elif job.deadline is not None and job.deadline < now and self._uptime.waits_count(now):
                waited = RULES[JobState.QUEUED].on_deadline
                effects.fail(self._store, job, f"{waited}: {job.reason}" if job.reason else waited)
            else:
                possible.append(job)
        return possible

    def _is_settled(self, backlog: Backlog, nodes: Sequence[Node], *, now: float) -> bool:
        """Return whether a long queue is unchanged since the last decision, which had nothing to do."""
        last = self.outlook
        return (
            len(backlog.waiting) > _LONG_QUEUE
            and backlog.waiting is last.backlog.waiting
            and (backlog.running, backlog.quotas) == (last.backlog.running, last.backlog.quotas)
            and tuple(nodes) == last.nodes
            and not last.plan.start
            and not last.plan.pause
            and not last.plan.grow
            and is_ahead((last.at or 0.0) + _SETTLED_S, now=now, within_s=_SETTLED_S)
        )

    def _held_back(
        self, waiting: Sequence[Waiting], nodes: Sequence[Node], quotas: Quotas, *, now: float
    ) -> Sequence[Waiting]:
        """Return the jobs, with those that the storage refuses postponed, so that no job waits behind them."""
        refused, again = self._gate.refusals(waiting, now=now), []
        for job in waiting if refused else ():
            if job.job_id in refused:
                _, trials, never = sized(job.shape, nodes, quotas, owner=job.owner, project=job.project)
                if not never or any(job.shape.reduced):  # otherwise it is never placed, and delays no job
                    again.append((job, trials))
        self._gate.ask(again, now=now)
        still = {job.job_id: self._gate.refusal(job.job_id, now=now) for job, _ in again}
        return [self._refused(job, found, now=now) if (found := still.get(job.job_id)) else job for job in waiting]

    def _refused(self, job: Waiting, refusal: Postponement, *, now: float) -> Waiting:
        """Set the reason why the job may not begin yet, and return it postponed."""
        effects.explain(self._store, job, refusal.reason)
        until = max(job.not_before, refusal.until) if job.backs_off(now=now) else refusal.until
        return replace(job, reason=refusal.reason, not_before=until)

    def _pause(self, decided: Plan, gets_room: Sequence[Place], *, now: float) -> None:
        """Pause jobs for others, unless the storage would refuse these others."""
        refused = {place.job.job_id: self._gate.refusal(place.job.job_id, now=now) for place in gets_room}
        for place in gets_room:
            if (refusal := refused[place.job.job_id]) is not None:
                self._refused(place.job, refusal, now=now)
        for job_id, by in decided.pause:
            if refused[by.job_id] is None:
                with suppress(NotFound):  # it was cancelled and deleted in the meantime
                    self._store.attempts.preempt(job_id, by=by.job_id)

    def _start(self, ray: RayApi, start: Start, nodes: Sequence[Node], *, now: float) -> None:
        if (refusal := self._gate.refusal(start.job.job_id, now=now)) is not None:
            self._refused(start.job, refusal, now=now)
            return
        try:
            self._begin(ray, start, nodes)
        except Unavailable as error:
            effects.explain(self._store, start.job, str(error))
        except (IllegalTransition, NotFound) as error:  # cancelled by its user in the meantime, or room was taken
            _log.info("%s", error)
        except UnreadableJob as error:
            effects.fail(self._store, start.job, effects.unreadable(error.fields))
        except Exception as error:  # a fault of ours, perhaps in what another release has stored
            reason = f"the service failed to begin an attempt: {type(error).__name__}: {error}"[:MAX_REASON_CHARS]
            if start.job.reason != reason:  # it is tried again in every round
                with log_fields(job=start.job.job_id):
                    _log.exception("job %s did not begin; the others have their turns", start.job.job_id)
            effects.explain(self._store, start.job, reason)

    def _begin(self, ray: RayApi, start: Start, nodes: Sequence[Node]) -> None:
        job = start.job
        if (forbidden := self._submission.forbidden(self._store.job(job.job_id).readable)) is not None:
            effects.fail(self._store, job, forbidden)
            return
        begun = self._store.attempts.begin(job.job_id, start, nodes)
        try:
            self._submission.submit(ray, begun)
        except Unavailable as error:  # the next round submits it again
            effects.explain(self._store, begun, str(error))

    def _note(self, decided: Plan, backlog: Backlog, nodes: Sequence[Node], *, now: float) -> None:
        """Keep the plan for queries, and write changed reasons into the jobs, some in each round."""
        self.outlook = Outlook(decided, backlog, tuple(nodes), at=now)
        changed = 0
        for place in decided.places:
            if place.kind in (WaitKind.STARTS, WaitKind.BACK_OFF):  # the job's own reason says why
                continue
            reason = summary(
                place.kind,
                quota=place.quota,
                limit=place.limit,
                detail=place.detail,
                is_preempted=place.job.is_preempted,
            )
            if place.job.reason != reason:
                effects.explain(self._store, place.job, reason)
                changed += 1
                if changed == _NUM_EXPLAINED:
                    return
