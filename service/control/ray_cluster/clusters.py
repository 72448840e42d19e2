"""Connect to Ray: an external cluster, or an embedded head that starts with the first job."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from service.control.queue.capacity import Node
from service.control.ray_cluster import embedded
from service.control.ray_cluster.ray_jobs import Machine, RayJobs, RayStatus, Workers, log_name
from service.errors import Unavailable
from service.settings import Settings

_log = logging.getLogger(__name__)
_RETRY_S = 10.0  # after a start that failed


class RayApi(Protocol):
    """The reconciler's interface to Ray; `RayJobs` implements it."""

    def version(self) -> str:
        """Return the version of Ray itself."""

    def has_package(self, name: str) -> bool:
        """Return whether Ray has the package."""

    def upload(self, name: str, content: bytes) -> None:
        """Upload a package, a zip, to Ray."""

    def submit(
        self, submission_id: str, *, entrypoint: str, env_vars: dict[str, str], package: str | None = None
    ) -> None:
        """Start a driver, in a package if one is named. An existing submission counts as success."""

    def status(self, submission_id: str) -> RayStatus:
        """Return a driver's status."""

    def statuses(self) -> dict[str, RayStatus]:
        """Return the status of every driver that Ray knows, including other services' drivers."""

    def reason(self, submission_id: str) -> str:
        """Return Ray's reason why a driver failed; empty if it did not, or Ray does not say."""

    def live(self) -> tuple[str, ...]:
        """Return the ids of all drivers that have not ended, including other services' drivers."""

    def stop(self, submission_id: str) -> None:
        """Ask Ray to end a driver."""

    def delete(self, submission_id: str) -> None:
        """Delete an ended driver from Ray's list."""

    def log(self, submission_id: str, *, lines: int | None = None) -> Iterator[bytes]:
        """Yield a driver's output in pieces, or only its last `lines`."""

    def nodes(self) -> tuple[Node, ...]:
        """Return the cluster's resources."""

    def machines(self) -> tuple[Machine, ...]:
        """Return the living nodes."""

    def workers(self) -> tuple[Workers, ...]:
        """Return the number of each job's living workers on each node."""


class Cluster(Protocol):
    """A connection to Ray."""

    python: str  # the drivers' interpreter, by its path on the cluster's nodes

    def connect(self) -> RayApi:
        """Return Ray without waiting for it. Raises Unavailable, with a reason, while Ray is not up."""

    def running(self) -> RayApi | None:
        """Return Ray if it is up, without starting it."""

    def adopt(self) -> bool:
        """Take over a Ray left behind by an earlier service. Return whether there is one that is not ours yet."""

    def declared(self) -> tuple[Node, ...] | None:
        """Return the nodes' resources as known without Ray; None if unknown."""

    def is_spent(self, idle_s: float) -> bool:
        """Return whether Ray should be closed for now: no job has needed it for `idle_s` seconds."""

    def close(self) -> None:
        """Release Ray; an embedded one ends."""


class RemoteCluster:
    """An external cluster."""

    python = "python"

    def __init__(self, settings: Settings) -> None:
        """Raises Unavailable if the token file cannot be read."""
        path = settings.ray_token_path
        try:
            token = None if path is None else path.read_text().strip()
        except OSError as error:
            raise Unavailable(f"cannot read {path}: {error.strerror}; check WIRETUNE_RAY_TOKEN_PATH") from error
        self._ray = RayJobs(settings.ray_address, token)

    def connect(self) -> RayApi:
        """Return the cluster's Jobs server, without contacting it."""
        return self._ray

    def running(self) -> RayApi:
        """Return the cluster's Jobs server."""
        return self._ray

    def adopt(self) -> bool:
        """Return False: an external cluster needs no takeover."""
        return False

    def declared(self) -> tuple[Node, ...] | None:
        """Return None: only the cluster knows."""
        return None

    def is_spent(self, idle_s: float) -> bool:
        """Return False; the cluster is not ours to stop."""
        return False

    def close(self) -> None:
        """Close the connections; the cluster and its jobs go on."""
        self._ray.close()


class _EmbeddedJobs(RayJobs):
    """The Jobs server of a head on this machine."""

    def __init__(self, head: embedded.Head) -> None:
        super().__init__(head.address, head.token_path.read_text().strip())
        self._log_dir = head.log_dir

    def delete(self, submission_id: str) -> None:
        """Delete an ended driver from Ray's list, and its output, which Ray itself would leave on the disk."""
        super().delete(submission_id)
        (self._log_dir / log_name(submission_id)).unlink(missing_ok=True)


class EmbeddedCluster:
    """An embedded head on this machine. The first job starts it, in a thread; it stops when idle or closed."""

    python = sys.executable

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._starter: threading.Thread | None = None
        self._head: embedded.Head | None = None
        self._ray: RayJobs | None = None
        self._failure = ""
        self._retry_at = 0.0

    def connect(self) -> RayApi:
        """Return the head's Jobs server. If there is no head, start one and raise Unavailable meanwhile."""
        with self._lock:
            if (ray := self._living()) is not None:
                return ray
            starter = self._starter
            is_starting = starter is not None and starter.is_alive()
            if not is_starting and time.monotonic() >= self._retry_at:
                self._let_go()
                self._starter = threading.Thread(target=self._start, name="wiretune-ray-start", daemon=True)
                self._starter.start()
            raise Unavailable(self._failure or "Ray is starting on this machine; this takes some ten seconds")

    def running(self) -> RayApi | None:
        """Return the head's Jobs server if the head lives."""
        with self._lock:
            return self._living()

    def adopt(self) -> bool:
        """Take over the living head of an earlier service, in a thread, without starting one."""
        if self.running() is not None or embedded.head_status(self._settings) is None:
            return False
        with suppress(Unavailable):  # not in this moment
            self.connect()
        return True

    def _living(self) -> RayApi | None:
        is_alive = self._head is not None and embedded.is_alive(self._head)
        return self._ray if is_alive else None

    def _start(self) -> None:
        try:
            head = embedded.ensure_head(self._settings)
        except (Unavailable, OSError) as error:
            _log.error("Ray did not start: %s", error)
            self._failure, self._retry_at = f"Ray did not start: {error}", time.monotonic() + _RETRY_S
            return
        with self._lock:
            self._failure = ""
            self._head, self._ray = head, _EmbeddedJobs(head)

    def declared(self) -> tuple[Node, ...] | None:
        """Return this machine as in the settings, with the GPUs that it seems to have until Ray counts them."""
        num_gpus = self._settings.num_gpus
        return (Node(cpus=self._settings.num_cpus, gpus=found_gpus(Path("/dev")) if num_gpus is None else num_gpus),)

    def is_spent(self, idle_s: float) -> bool:
        """Return whether there is a head that has been idle for `embedded_idle_s`."""
        return self._head is not None and idle_s >= self._settings.embedded_idle_s

    def close(self) -> None:
        """Stop the head and every process of it."""
        if self._starter is not None:
            self._starter.join()  # bounded by the start's own timeout
        with self._lock:
            had_head = self._head is not None
            self._let_go()
        if had_head:
            embedded.stop_head(self._settings)

    def _let_go(self) -> None:
        if self._ray is not None:
            self._ray.close()
        if self._head is not None:
            self._head.owner.close()
        self._ray = self._head = None


def cluster_of(settings: Settings) -> Cluster:
    """Return the cluster of `settings`. Raises Unavailable if its token file is missing."""
    return RemoteCluster(settings) if settings.ray_address else EmbeddedCluster(settings)


def found_gpus(devices: Path) -> int:
    """Count the NVIDIA or AMD GPUs with a device in the folder, Linux's `/dev`. Ray examines them more closely."""
    if (devices / "kfd").exists():  # AMD's driver
        return len(list(devices.glob("dri/renderD*")))
    return len(list(devices.glob("nvidia[0-9]*"))) or int((devices / "dxg").exists())  # the last: under Windows
