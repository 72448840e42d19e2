"""The reconciler brings the cluster in line with the database: it begins, watches and ends attempts."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from service.control.moments import is_ahead
from service.control.queue.outlook import Outlook
from service.control.queue.waiting import Backlog
from service.control.ray_cluster.clusters import Cluster
from service.control.ray_cluster.logs import Logs
from service.control.reconciling.admission import Admission
from service.control.reconciling.calls import Background
from service.control.reconciling.cluster_sight import ClusterSight
from service.control.reconciling.storage_gate import StorageGate
from service.control.reconciling.submission import Submission
from service.control.reconciling.supervisor import Supervisor
from service.control.reconciling.uptime import Uptime
from service.control.store import Store
from service.control.work import Work
from service.errors import Unavailable
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import ACTIVE
from service.settings import Settings

_log = logging.getLogger(__name__)
_LOOK_S = 10.0  # between two checks of a cluster without work
_LOGS_S = 20.0  # for the last logs before Ray ends, since a storage may never answer
_AT_ONCE = 8  # attempts that are checked or begun at the same time


class Reconciler:
    """Owns all unfinished jobs. `tick` is one round over them.

    Args:
        store: the database.
        settings: the service's settings.
        cluster: the connection to Ray.
        logs: drivers' logs, saved before Ray ends.
        uptime: tells whether silence counts against drivers.
        api_url: the URL of the API for drivers.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        cluster: Cluster,
        logs: Logs,
        uptime: Uptime,
        api_url: str,
        now: float,
    ) -> None:
        self._store, self._cluster, self._logs, self._uptime = store, cluster, logs, uptime
        self._sight = ClusterSight(cluster, settings, store.telemetry)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="wiretune-attempts")
        submission = Submission(store, settings, python=cluster.python, api_url=api_url)
        self._supervisor = Supervisor(
            store, settings, sight=self._sight, submission=submission, logs=logs, uptime=uptime, pool=self._pool
        )
        self._admission = Admission(
            store, settings, submission=submission, gate=StorageGate(store), uptime=uptime, pool=self._pool
        )
        self._busy_at = self._look_at = now

    @property
    def outlook(self) -> Outlook:
        """The queue as it was last decided."""
        return self._admission.outlook

    def conflicts(self, spec: JobSpec) -> list[Problem]:
        """Return why the cluster can never place the job; see `ClusterSight.conflicts`."""
        return self._sight.conflicts(spec)

    def tick(self, now: float) -> None:
        """Do one round: check every unfinished job once."""
        jobs, backlog = self._store.work.owned(), self._store.work.backlog()
        active = [work for work in jobs if work.state in ACTIVE]
        self._supervisor.expire([work for work in jobs if work.state not in ACTIVE], now=now)
        if not active and not backlog.waiting:
            self._rest(backlog, now=now)
            return
        self._busy_at = now
        try:
            ray, nodes = self._sight.look(now=now)
        except Unavailable as error:
            self._without_ray(active, backlog, str(error), now=now)
            return
        self._uptime.note_ray(now, answers=True)
        self._store.telemetry.note_running(job.size for job in backlog.running)
        self._supervisor.watch(ray, active, now=now)
        self._admission.admit(ray, backlog, nodes, now=now)

    def _without_ray(self, active: Sequence[Work], backlog: Backlog, reason: str, *, now: float) -> None:
        self._uptime.note_ray(now, answers=False)
        self._supervisor.watch_alone(active, reason, now=now)
        self._admission.wait_for_ray(backlog, self._sight.nodes or (), reason, now=now)

    def _rest(self, backlog: Backlog, *, now: float) -> None:
        """Do the round of a service without work."""
        self._store.telemetry.note_running(())
        self._admission.rest(backlog, self._sight.nodes or (), now=now)
        self._busy_at = min(self._busy_at, now)  # the clock may be set back
        if self._cluster.is_spent(now - self._busy_at):
            self._let_go()
        if is_ahead(self._look_at, now=now, within_s=_LOOK_S):
            return
        self._look_at = now + _LOOK_S
        if self._store.attempts.without_log():  # Ray may have the logs, and ends if no service takes it over
            self._cluster.adopt()
        # An external cluster is asked for its capacity, so that even the first job is refused if it can never fit.
        if self._cluster.declared() is None:
            self._sight.look(now=now)

    def close(self) -> None:
        """Release Ray. An embedded one ends, and its jobs go on in a later attempt."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._let_go()

    def _let_go(self) -> None:
        keeping = Background(self._logs.keep_all, name="last-logs")
        try:
            if keeping.has_ended(patience_s=_LOGS_S):
                keeping.answer()
            else:
                _log.warning("the storage does not answer: logs that Ray alone has are lost, as Ray ends")
        finally:
            self._cluster.close()
