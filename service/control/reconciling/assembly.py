"""Assemble the background parts of a service, besides its API."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from service.control.ray_cluster.clusters import Cluster, cluster_of
from service.control.ray_cluster.logs import Logs
from service.control.ray_cluster.occupancy import Occupancy
from service.control.ray_cluster.orphans import Orphans
from service.control.reconciling.loops import Loops
from service.control.reconciling.reconciler import Reconciler
from service.control.reconciling.uptime import Uptime
from service.control.store import Store
from service.control.webhooks import Webhooks
from service.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """The parts that the API calls, and the background loops."""

    reconciler: Reconciler
    logs: Logs
    occupancy: Occupancy
    loops: Loops

    def start(self, *, interval_s: float = 1.0) -> None:
        """Run a round of each loop every `interval_s` until `stop`."""
        self.loops.start(interval_s=interval_s)

    def stop(self) -> None:
        """End the loops and the embedded Ray. Its jobs go on in a later attempt."""
        self.loops.stop()
        self.reconciler.close()


def assemble(
    store: Store,
    settings: Settings,
    *,
    api_url: str,
    cluster: Cluster | None = None,
    clock: Callable[[], float] = time.time,
) -> Assembly:
    """Build the parts for a store. Nothing runs yet.

    Args:
        store: the database.
        settings: the service's settings.
        api_url: the URL of the API for drivers.
        cluster: the connection to Ray; None: as in `settings`, which raises Unavailable if its token is missing.
        clock: seconds since the epoch.
    """
    cluster = cluster_of(settings) if cluster is None else cluster
    now = clock()
    uptime = Uptime(lease_s=settings.lease_s, failed_at=lambda: store.failed_at, now=now, steady=time.monotonic())
    logs = Logs(store, cluster.running, cluster.adopt)

    def expire(now: float) -> None:
        store.expiry.remove_expired(now, is_clock_steady=uptime.is_clock_steady(now))

    reconciler = Reconciler(store, settings, cluster=cluster, logs=logs, uptime=uptime, api_url=api_url, now=now)
    rounds = {
        "reconciler": reconciler.tick,
        "logs": logs.keep_ended,
        "orphans": Orphans(store, cluster.running).remove_expired,
        "expiry": expire,
        "webhooks": Webhooks(store, settings).send_due,
    }
    loops = Loops(rounds, telemetry=store.telemetry, uptime=uptime, clock=clock)
    return Assembly(reconciler=reconciler, logs=logs, occupancy=Occupancy(store, cluster.running), loops=loops)
