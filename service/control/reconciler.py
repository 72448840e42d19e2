"""Brings the cluster in line with the database, its only memory: begins, watches and ends attempts."""

import io
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from service import log_lines, tracing
from service.control.access import permissions
from service.control.judgement import Action, Verdict, judge, judge_alone
from service.control.queue.capacity import Node, Shape, conflicts
from service.control.queue.outlook import Outlook
from service.control.queue.plan import plan, sized
from service.control.queue.queued import Place, Plan, Quotas, Rules, Start, Waiting
from service.control.queue.waiting import Backlog
from service.control.ray_cluster.clusters import Cluster, RayApi, cluster_of
from service.control.ray_cluster.logs import Logs
from service.control.ray_cluster.occupancy import Occupancy
from service.control.ray_cluster.orphans import Orphans
from service.control.store import Store
from service.control.webhooks import Webhooks
from service.control.work import Work
from service.errors import IllegalTransition, NotFound, Unavailable, UnreadableJob
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import ACTIVE, RULES, JobState
from service.log_lines import log_fields
from service.settings import Settings
from service.wire.code import CodeRefused, of_zip
from service.wire.queue import WaitKind, summary
from trainers import overload

_log = logging.getLogger(__name__)
_GOING = (JobState.STARTING, JobState.RUNNING)
_NUM_LOG_LINES = 5
_JOIN_S = 60.0
_NUM_EXPLAINED = 5  # reasons that a round writes: of ten thousand jobs that wait, the first are told first
_LONG_QUEUE, _SETTLED_S = 500, 5.0  # so many waiting jobs are not looked at in every round unless something changed
_REFUSED_S = 10.0  # between two questions to the storage for a job that it refuses; its room is others' meanwhile
_LOOK_S = 10.0  # between two looks at a cluster without work
_SEEN_S = 3600.0  # a node that was away for no longer may come back: what needs it is not refused
_MOST_SEEN = 50  # clusters: one whose nodes come and go has many
_CHANCE_S = 3600.0  # for so long a job could have begun before it fails for its wait
_AT_ONCE = 8  # attempts that are looked at or begun at the same time
Each = TypeVar("Each")


class Reconciler:
    """A loop over the jobs that are not over. `tick` is one round; `start` runs rounds in a thread.

    Logs are kept, orphans looked for, what is out of date swept out and messages sent in threads of their own, so that
    no slow one delays a job.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        api_url: str,
        ray: Cluster | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Drivers reach the API at `api_url`; `ray` defaults to the cluster that `settings` name."""
        self._store = store
        self._settings = settings
        self._api_url = api_url
        self._cluster = ray or cluster_of(settings)
        self.logs = Logs(store, self._cluster.running, self._cluster.adopt)
        self.occupancy = Occupancy(store, self._cluster.running)
        self._storage = store.storage
        self._orphans = Orphans(store, self._cluster.running)
        self._webhooks = Webhooks(store, settings)
        self._told_at: dict[str, float] = {}  # when Ray was first asked to end a driver, by submission
        self._no_room_since: dict[str, float] = {}  # the cluster is too small for the attempt, by submission
        self._refused_until: dict[str, float] = {}  # when to ask the storage again for the next attempt, by job
        self._clock = clock
        self._up_since = self._busy_at = clock()
        self._looked_at = (self._up_since, time.monotonic())  # the same moment, by the clock and by what nobody sets
        self._ray_since = math.inf  # it has answered every round since; infinity: it does not
        of_settings = settings.cluster_nodes
        self._largest = tuple(Node(cpus=each.cpus, gpus=each.gpus) for each in of_settings for _ in range(each.count))
        self._nodes = self._largest or self._cluster.declared()
        self._seen: dict[tuple[Node, ...], float] = {}  # and when: the cluster within the last hour, now last
        self._rules = Rules(
            aging_s=settings.queue_aging_s, backfill_s=settings.queue_backfill_s, min_run_s=settings.queue_min_run_s
        )
        #: The queue as it was last decided.
        self.outlook = Outlook()
        self._look_at = self._up_since
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="wiretune-attempts")
        self._uploading = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, *, interval_s: float = 1.0) -> None:
        """Run a round every `interval_s` until `stop`."""
        rounds = {
            "reconciler": self.tick,
            "logs": self.logs.keep_ended,
            "orphans": self._orphans.remove_expired,
            "expiry": self._store.remove_expired,
            "webhooks": self._webhooks.send_due,
        }
        for name, one_round in rounds.items():
            arguments = (name, one_round, interval_s)
            thread = threading.Thread(target=self._run, args=arguments, name=f"wiretune-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End the loop, and the embedded Ray with it; what runs there goes on in a later attempt."""
        self._stopping.set()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._let_go()

    def _let_go(self) -> None:
        try:
            self.logs.keep_all()
        finally:
            self._cluster.close()

    def _run(self, name: str, one_round: Callable[[float], None], interval_s: float) -> None:
        while not self._stopping.is_set():
            try:
                with self._store.telemetry.round(name):
                    one_round(self._clock())
            except Unavailable as error:
                _log.warning("%s", error)
            except Exception:  # one bad round must not leave every job without an owner
                _log.exception("a round failed; the next one follows")
            self._rest(interval_s)

    def _rest(self, interval_s: float) -> None:
        """Wait for the next round; where this process or its machine slept, drivers and queued jobs get time anew.

        Each driver has a lease to report, and a job that has waited for too long an hour to begin.

        A process that is stopped wakes late. While a machine sleeps, or its clock is set, the clock alone goes on: that
        may be in the middle of a round.
        """
        began = time.monotonic()
        self._stopping.wait(interval_s)
        clock, steady = self._clock(), time.monotonic()
        clock_before, steady_before = self._looked_at
        jump_s = (clock - clock_before) - (steady - steady_before)
        if max(abs(jump_s), steady - began - interval_s) > self._settings.lease_s / 2:
            self._up_since = clock
        self._looked_at = clock, steady  # last, as other threads come here: one that finds it finds the other as well

    def conflicts(self, spec: JobSpec) -> list[Problem]:
        """Return why the cluster can never place the job, not even as this process saw it within the last hour.

        Nothing while the cluster is unknown, or none of the nodes that train has joined.
        """
        if self._nodes is None or not any(node.cpus or node.gpus for node in self._nodes):
            return []
        shape = Shape.of(spec)
        found = [conflicts(shape, nodes) for nodes in self._seen or (self._nodes,)]
        return found[0] if all(found) else []

    def _see(self, nodes: tuple[Node, ...], *, now: float) -> None:
        """Take the cluster for `nodes`, and forget what it was longer than an hour ago."""
        seen = [(each, at) for each, at in self._seen.items() if each != nodes and abs(now - at) < _SEEN_S]
        self._nodes, self._seen = nodes, dict([*seen, (nodes, now)][-_MOST_SEEN:])

    def tick(self, now: float) -> None:
        """Do one round: look at every job that is not over, once."""
        jobs, backlog = self._store.work(), self._store.backlog()
        if not jobs and not backlog.waiting:
            self._rest_idle(backlog, now=now)
            return
        self._busy_at = now
        try:
            ray, nodes = self._look_at_cluster(now=now)
        except Unavailable as error:
            self._without_ray(jobs, backlog, str(error), now=now)
            return
        self._ray_since = min(now, self._ray_since)
        self._store.telemetry.note_running(job.size for job in backlog.running)
        self._watch(ray, [work for work in jobs if work.state in ACTIVE], now=now)
        for work in jobs:
            if work.state not in ACTIVE and (verdict := judge_alone(work, now=now, leases_count=False)).reason:
                self._fail(work, verdict.reason)
        self._admit(ray, self._possible(backlog.waiting, now=now), backlog, nodes, now=now)

    def _rest_idle(self, backlog: Backlog, *, now: float) -> None:
        self._store.telemetry.note_running(())
        self.outlook = Outlook(backlog=backlog, nodes=tuple(self._nodes or ()), at=now)
        if self._cluster.is_spent(now - self._busy_at):
            self._let_go()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        if self._store.attempts.without_log():  # it may have the logs, and ends if nobody takes it over
            self._cluster.adopt()
        # Somebody else's cluster is asked what it holds: the first job, too, is refused if it never fits.
        if self._cluster.declared() is None:
            self._look_at_cluster(now=now)

    def _look_at_cluster(self, *, now: float) -> tuple[RayApi, Sequence[Node]]:
        """Return Ray and its nodes, by which jobs are judged from now on; raises Unavailable."""
        try:
            ray = self._cluster.connect()
            there = ray.nodes()  # the first that is asked of somebody else's Ray: it tells whether that one is up
        except Unavailable:
            self._store.telemetry.cluster_up.set(0)
            raise
        nodes = self._largest or there
        self._see(nodes, now=now)
        self._store.telemetry.note_cluster(nodes)
        return ray, nodes

    def _without_ray(self, jobs: Sequence[Work], backlog: Backlog, reason: str, *, now: float) -> None:
        self._ray_since = math.inf
        for work in jobs:
            verdict = judge_alone(work, now=now, leases_count=self._leases_count(now))
            if verdict.action is Action.WAIT:
                self._hinder(work, reason)
            else:
                self._end(work, verdict)
        waiting = sorted(self._possible(backlog.waiting, now=now), key=lambda job: job.job_id)
        places = tuple(
            Place(number, job, WaitKind.NO_CLUSTER, job.shape.one, detail=reason)
            for number, job in enumerate(waiting, start=1)
        )
        self._note(Plan(places=places), backlog, self._nodes or (), now=now)

    def _possible(self, waiting: Sequence[Waiting], *, now: float) -> list[Waiting]:
        """Fail the jobs that have waited for too long, or cannot be read, and return the others."""
        possible = []
        for job in waiting:
            if job.unreadable:
                self._fail(job, _unreadable(job.unreadable))
            elif job.deadline is not None and job.deadline < now and self._waits_count(now):
                waited = RULES[JobState.QUEUED].on_deadline
                self._fail(job, f"{waited}: {job.reason}" if job.reason else waited)
            else:
                possible.append(job)
        return possible

    def _waits_count(self, now: float) -> bool:
        """Return whether the API, the database and Ray have been up for so long that a job had a chance to begin."""
        return now - max(self._up_since, self._store.failed_at, self._ray_since) > _CHANCE_S

    def _leases_count(self, now: float) -> bool:
        """Return whether the API and the database have been up for one full lease."""
        return now - max(self._up_since, self._store.failed_at) > self._settings.lease_s

    def _hinder(self, work: Work, reason: str) -> None:
        """Say what is in the way of a job that trains or is about to; one that is to pause or end says by whom."""
        if work.state in _GOING:
            self._explain(work, reason)

    def _explain(self, work: Work, reason: str) -> None:
        if work.reason != reason:
            self._store.explain(work.job_id, state=work.state, reason=reason)

    def _watch(self, ray: RayApi, jobs: Sequence[Work], *, now: float) -> None:
        watched = {work.submission_id for work in jobs}
        self._told_at = {driver: at for driver, at in self._told_at.items() if driver in watched}
        too_large = [work.submission_id for work in jobs if work.submission_id and self._is_too_large(work)]
        self._no_room_since = {driver: self._no_room_since.get(driver, now) for driver in too_large}
        self._side_by_side(lambda work: self._look_at_attempt(ray, work, now=now), jobs)

    def _look_at_attempt(self, ray: RayApi, work: Work, *, now: float) -> None:
        with log_fields(job=work.job_id, attempt=work.attempt):
            try:
                self._act(ray, work, self._judge(ray, work, now=now), now=now)
            except Unavailable as error:
                self._hinder(work, str(error))
            except NotFound as error:  # it ended and was deleted in the meantime
                _log.info("%s", error)
            except UnreadableJob as error:
                self._hinder(work, _unreadable(error.fields))

    def _side_by_side(self, act: Callable[[Each], None], all_of_them: Iterable[Each]) -> None:
        """Call `act` with each, some at once: what it waits for, Ray and the database's writes, many can share."""
        acts = [self._pool.submit(act, each) for each in all_of_them]
        wait(acts)
        for done in acts:
            done.result()

    def _is_too_large(self, work: Work) -> bool:
        """Return whether the cluster, which has lost a machine since, cannot hold the attempt's workers."""
        return work.shape is not None and self._nodes is not None and bool(conflicts(work.shape, self._nodes))

    def _judge(self, ray: RayApi, work: Work, *, now: float) -> Verdict:
        assert work.submission_id is not None
        status = ray.status(work.submission_id)
        return judge(
            work,
            status,
            now=now,
            leases_count=self._leases_count(now),
            is_deaf=now - self._told_at.get(work.submission_id, now) > self._settings.lease_s,
            overload=None if self._settings.ray_address else overload.here(),  # else drivers are elsewhere
            no_room_s=now - self._no_room_since.get(work.submission_id, now),
        )

    def _act(self, ray: RayApi, work: Work, verdict: Verdict, *, now: float) -> None:
        assert work.submission_id is not None
        if verdict.action is Action.SUBMIT and (forbidden := self._forbidden(work.spec)) is not None:
            self._lose(work, forbidden)  # and is not begun again
        elif verdict.action is Action.SUBMIT:
            self._submit(ray, work)
        elif verdict.action is Action.STOP:
            self._told_at.setdefault(work.submission_id, now)
            ray.stop(work.submission_id)
            self._explain(work, verdict.reason)
        elif verdict.action is Action.LOSE:
            tail = self.logs.tail(work.job_id, work.attempt, num_lines=_NUM_LOG_LINES)
            self._lose(work, f"{verdict.reason}\n{tail}" if tail else verdict.reason)
        elif work.state in _GOING:
            self._explain(work, "")  # what was in the way is over

    def _submit(self, ray: RayApi, work: Work) -> None:
        assert work.submission_id is not None
        try:
            package = self._packaged(ray, work)
        except (NotFound, CodeRefused) as error:
            self._lose(work, f"the job's code cannot be had: {error}")
            return
        with (
            log_fields(job=work.job_id, attempt=work.attempt),
            tracing.span("submit attempt", job=work.job_id, attempt=work.attempt),
        ):
            entrypoint = f"{self._cluster.python} -m service.cluster.entrypoint"
            ray.submit(work.submission_id, entrypoint=entrypoint, env_vars=self._environment(work), package=package)
            _log.info("submitted %s", work.submission_id)

    def _environment(self, work: Work) -> dict[str, str]:
        """Return the variables of an attempt's driver, trials and workers."""
        return {
            "WIRETUNE_API_URL": self._settings.api_url or self._api_url,
            "WIRETUNE_JOB": work.job_id,
            "WIRETUNE_ATTEMPT": str(work.attempt),
            "WIRETUNE_TOKEN": self._store.attempts.token(work.job_id, work.attempt),
            "OMP_NUM_THREADS": "1",
            "RAY_DEDUP_LOGS": "0",  # every rank's own words, in the log that users read
            "RAY_COLOR_PREFIX": "0",
            log_lines.VARIABLE: self._settings.log_format,
            **tracing.environment(),
        }

    def _packaged(self, ray: RayApi, work: Work) -> str | None:
        """Return the name under which Ray has the job's code, given to it now if need be; None: there is none.

        Jobs can write to the storage. What is there now may not be what was uploaded, so its digest is checked again.
        """
        digest = work.spec.code
        if digest is None:
            return None
        name = f"_ray_pkg_{digest.removeprefix('sha256:')}.zip"  # Ray's own prefix
        with self._uploading:  # jobs that start side by side may have the same code
            if not ray.has_package(name):
                package = of_zip(io.BytesIO(self._storage.read_code(work.project, digest)))
                if package.digest != digest:
                    raise CodeRefused(f"on storage, `{digest}` was replaced by `{package.digest}`; upload it again")
                ray.upload(name, package.content)
        return name

    def _forbidden(self, spec: JobSpec) -> str | None:
        """Return why the job may not run here: it was stored while the service allowed more than it does now."""
        found = permissions.conflicts(spec, user_code=self._settings.user_code)
        return "; ".join(each.message for each in found) or None

    def _end(self, work: Work, verdict: Verdict) -> None:
        if verdict.action is Action.FAIL:
            self._fail(work, verdict.reason)
        else:
            self._lose(work, verdict.reason)

    def _lose(self, work: Work, reason: str) -> None:
        with suppress(NotFound):  # it ended and was deleted in the meantime
            self._store.attempts.lose(work.job_id, work.attempt, reason=reason)
            with log_fields(job=work.job_id, attempt=work.attempt):
                _log.warning("job %s, attempt %d: %s", work.job_id, work.attempt, reason)

    def _fail(self, job: Work | Waiting, reason: str) -> None:
        state = job.state if isinstance(job, Work) else JobState.QUEUED
        with suppress(NotFound):  # it was cancelled and deleted in the meantime
            left = self._store.fail_waiting(job.job_id, state=state, deadline=job.deadline, reason=reason)
            if left.state is JobState.FAILED:
                with log_fields(job=job.job_id):
                    _log.warning("job %s: %s", job.job_id, reason)

    def _admit(
        self, ray: RayApi, waiting: Sequence[Waiting], backlog: Backlog, nodes: Sequence[Node], *, now: float
    ) -> None:
        """Do what the queue decides: start jobs, pause others for them, and say why the rest waits."""
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
        self._side_by_side(lambda start: self._start(ray, start, nodes, now=now), decided.start)
        self._pause(decided, now=now)
        for job_id in decided.grow:
            with suppress(NotFound):
                self._store.attempts.regroup(job_id)

    def _is_settled(self, backlog: Backlog, nodes: Sequence[Node], *, now: float) -> bool:
        """Return whether a long queue is as it was at the last look, when nothing was to do."""
        last = self.outlook
        return (
            len(backlog.waiting) > _LONG_QUEUE
            and backlog.waiting is last.backlog.waiting
            and (backlog.running, backlog.quotas) == (last.backlog.running, last.backlog.quotas)
            and tuple(nodes) == last.nodes
            and not last.plan.start
            and not last.plan.pause
            and not last.plan.grow
            and now - (last.at or 0.0) < _SETTLED_S
        )

    def _held_back(
        self, waiting: Sequence[Waiting], nodes: Sequence[Node], quotas: Quotas, *, now: float
    ) -> Sequence[Waiting]:
        """Return the jobs; those that the storage refuses begin later, so that nobody waits behind them."""
        held = [job for job in waiting if job.job_id in self._refused_until]
        self._refused_until = {job.job_id: self._refused_until[job.job_id] for job in held}
        again = []
        for job in held:
            if self._refused_until[job.job_id] <= now:
                _, trials, never = sized(job.shape, nodes, quotas, owner=job.owner, project=job.project)
                if not never or any(job.shape.reduced):  # else it is never placed, and holds up nobody
                    again.append((job, trials))
        self._side_by_side(lambda each: self._ask_again(*each, now=now), again)
        return [
            replace(job, not_before=max(job.not_before, until))
            if (until := self._refused_until.get(job.job_id))
            else job
            for job in waiting
        ]

    def _ask_again(self, job: Waiting, trials: int, *, now: float) -> None:
        """Give a job that the storage refused its place back once the storage takes it."""
        try:
            self._require_storage(job, at_once=trials)
            del self._refused_until[job.job_id]
        except Unavailable as error:
            self._refuse(job, error, now=now)
        except NotFound:  # it was cancelled and deleted in the meantime
            pass

    def _pause(self, decided: Plan, *, now: float) -> None:
        """Pause jobs for others; the storage is asked once for each of these, however many make room for it."""
        for_job: dict[str, list[str]] = defaultdict(list)
        for job_id, by in decided.pause:
            for_job[by.job_id].append(job_id)
        places = [place for place in decided.places if place.job.job_id in for_job]
        self._side_by_side(lambda place: self._make_room(place, for_job[place.job.job_id], now=now), places)

    def _make_room(self, place: Place, job_ids: Sequence[str], *, now: float) -> None:
        """Pause the jobs `job_ids` for another, unless the storage would refuse that one once it has the room."""
        by = place.job
        try:
            self._require_storage(by, at_once=place.trials)
            for job_id in job_ids:
                with suppress(NotFound):  # it was cancelled and deleted in the meantime
                    self._store.attempts.preempt(job_id, by=by.job_id)
        except Unavailable as error:
            self._refuse(by, error, now=now)
        except NotFound:  # so was the other
            pass

    def _refuse(self, job: Waiting, error: Unavailable, *, now: float) -> None:
        self._store.explain(job.job_id, state=JobState.QUEUED, reason=str(error))
        self._refused_until[job.job_id] = now + _REFUSED_S

    def _start(self, ray: RayApi, start: Start, nodes: Sequence[Node], *, now: float) -> None:
        try:
            self._begin(ray, start, nodes)
        except Unavailable as error:
            self._refuse(start.job, error, now=now)
        except (IllegalTransition, NotFound) as error:  # cancelled by its user in the meantime, or room was taken
            _log.info("%s", error)
        except UnreadableJob as error:
            self._fail(start.job, _unreadable(error.fields))

    def _begin(self, ray: RayApi, start: Start, nodes: Sequence[Node]) -> None:
        job = start.job
        if (forbidden := self._forbidden(self._store.job(job.job_id).readable)) is not None:
            self._fail(job, forbidden)
            return
        self._require_storage(job, at_once=start.trials)
        begun = self._store.attempts.begin(job.job_id, start, nodes)
        try:
            self._submit(ray, begun)
        except Unavailable as error:  # the next round submits it again
            self._explain(begun, str(error))

    def _require_storage(self, job: Waiting, *, at_once: int) -> None:
        """Raise Unavailable where the last attempt may have been lost to the storage, and the next one would be."""
        self._store.attempts.mark_storage()
        if not job.attempt:
            return
        self._storage.require_writable()
        if self._store.attempts.of_job(job.job_id)[-1].outcome == "failed":  # one that was paused has the room it had
            self._storage.require_room(job.job_id, self._store.attempts.last_checkpoints(job.job_id), at_once=at_once)

    def _note(self, decided: Plan, backlog: Backlog, nodes: Sequence[Node], *, now: float) -> None:
        """Keep the plan for whoever asks, and write the reasons that have changed into the jobs, some in each round."""
        self.outlook = Outlook(decided, backlog, tuple(nodes), at=now)
        changed = 0
        for place in decided.places:
            if place.kind in (WaitKind.STARTS, WaitKind.BACK_OFF):  # what is there says why
                continue
            reason = summary(
                place.kind,
                quota=place.quota,
                limit=place.limit,
                detail=place.detail,
                is_preempted=place.job.is_preempted,
            )
            if place.job.reason != reason:
                self._store.explain(place.job.job_id, state=JobState.QUEUED, reason=reason)
                changed += 1
                if changed == _NUM_EXPLAINED:
                    return


def _unreadable(fields: str) -> str:
    return f"this release cannot read the job: {fields}"
