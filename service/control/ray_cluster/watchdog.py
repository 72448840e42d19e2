"""Watch one embedded Ray head: start it, and end it without traces when told to or when no service owns it.

It runs in its own process session (`python -m service.control.ray_cluster.watchdog <launch as JSON>`). So Ray survives
a killed service, until the next service adopts it or the idle time is over.
"""

import ctypes
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType

from pydantic import BaseModel, ConfigDict

from service.control import processes
from service.control.access.keys import write_private

_log = logging.getLogger("wiretune.watchdog")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_OBJECT_STORE_BYTES = 500_000_000  # snapshots and messages; a small machine's /dev/shm must hold it
_LOG_BYTES = 64 << 20  # as in `docker-compose.yml`
_DRIVER = "service.cluster.entrypoint"  # on the command line of every driver
_LOOK_S = 5.0  # between two looks for strays
_STRAY_S = 10.0  # that a process may take to notice that its parent is gone
_GRACES_S = {signal.SIGTERM: 3.0, signal.SIGKILL: 15.0}
_PORTS = (
    "port",
    "dashboard-port",
    "ray-client-server-port",
    "node-manager-port",
    "object-manager-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)


class Launch(BaseModel):
    """The arguments that a head is started with."""

    model_config = ConfigDict(frozen=True)

    folder: Path  # head.json, owner.lock, token, head.log
    temp_dir: Path  # short: sockets below it have at most 107 characters
    num_cpus: int
    num_gpus: int | None
    idle_s: float  # without an owner, and without a driver
    max_silence_s: float  # how long a driver trains without the service before it ends by itself

    @property
    def head_path(self) -> Path:
        return self.folder / "head.json"

    @property
    def owner_path(self) -> Path:
        return self.folder / "owner.lock"

    @property
    def token_path(self) -> Path:
        return self.folder / "token"

    @property
    def log_path(self) -> Path:
        return self.folder / "head.log"


def main(launch: Launch) -> None:
    """Run the head until SIGTERM, its own end, or `idle_s` without an owner or driver. Leave nothing behind."""
    told = _Told()
    signal.signal(signal.SIGTERM, told)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # processes that Ray leaves behind become our children, and are found
    ports = free_ports(len(_PORTS))
    ray = _start_ray(launch, dict(zip(_PORTS, ports, strict=True)))
    head = {"pid": os.getpid(), "port": ports[0], "address": f"http://127.0.0.1:{ports[1]}"}
    write_private(launch.head_path, json.dumps(head))
    _log.info("Ray head %d starts at %s", ray, head["address"])
    try:
        _log.info("ends: %s", _watch(launch, ray, told))
    finally:
        _end(launch)


class _Told:
    """A flag that a SIGTERM sets."""

    def __init__(self) -> None:
        self.to_end = False

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        self.to_end = True


class Strays:
    """Processes below `parent` that Ray no longer knows, because their parents were killed. Mutable.

    An example is a worker's own children, which hold cores and GPU memory that the next job needs.
    """

    def __init__(self, parent: int, *, keep: int) -> None:
        """`keep` is the only child that `parent` started itself."""
        self._parent, self._keep = parent, keep
        self._seen: dict[int, float] = {}
        self._look_at = 0.0

    def end(self, now: float) -> None:
        """Kill strays older than `_STRAY_S`, with their descendants. `now` is in monotonic seconds."""
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        here = set(processes.children(self._parent)) - {self._keep}
        self._seen = {pid: self._seen.get(pid, now) for pid in here}
        for pid in (pid for pid, since in self._seen.items() if now - since >= _STRAY_S):
            _log.warning("process %d has lost its parent and is ended", pid)
            for each in (*processes.descendants(pid), pid):
                processes.send(each, signal.SIGKILL)


def _watch(launch: Launch, ray: int, told: _Told) -> str:
    strays = Strays(os.getpid(), keep=ray)
    owned_at = time.monotonic()
    while not _is_forsaken(launch, time.monotonic() - owned_at):
        processes.reap()
        if told.to_end:
            return "told to"
        if not processes.is_own(ray):
            return "Ray's head ended by itself"
        strays.end(time.monotonic())
        if is_owned(launch.owner_path):
            owned_at = time.monotonic()
        time.sleep(0.5)
    return f"no service owned it for {launch.idle_s:g} s"


def _is_forsaken(launch: Launch, unowned_s: float) -> bool:
    """Return whether the service has been away so long that nobody needs the head any more."""
    if unowned_s < launch.idle_s:
        return False
    if unowned_s > launch.idle_s + launch.max_silence_s:
        return True
    return not any(processes.is_running(pid, word=_DRIVER) for pid in processes.descendants(os.getpid()))


def is_owned(path: Path) -> bool:
    """Return whether a process holds the lock on `path`."""
    with open(path, "a+") as file:  # readable: NFSv4 refuses a shared lock otherwise
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are free now; all are held until the last is found."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _start_ray(launch: Launch, ports: dict[str, int]) -> int:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--min-worker-port=0", "--max-worker-port=0"]  # any free ports; several heads would conflict in a range
    command += [f"--{name}={port}" for name, port in ports.items()]
    command += ["--dashboard-host=127.0.0.1", "--include-dashboard=true", f"--temp-dir={launch.temp_dir}"]
    command += [f"--num-cpus={launch.num_cpus}", f"--object-store-memory={_OBJECT_STORE_BYTES}"]
    if launch.num_gpus is not None:
        command.append(f"--num-gpus={launch.num_gpus}")
    environment = os.environ | {  # which is what workers may see, see `worker_environment`
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(launch.token_path),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ROTATION_MAX_BYTES": str(_LOG_BYTES),  # of each log of a process of Ray's; by default 512 MB, six times
        "RAY_ROTATION_BACKUP_COUNT": "2",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # else 30 s, for the good of Ray Serve
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a worker without GPUs cannot see a shared one
        "OMP_NUM_THREADS": "1",
    }
    # Ray must not outlive us unnoticed. No other thread runs in this process when it forks.
    ray = subprocess.Popen(command, env=environment, preexec_fn=partial(_prctl, _PR_SET_PDEATHSIG, signal.SIGTERM))
    return ray.pid


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _end(launch: Launch) -> None:
    """End all processes of Ray, first gracefully and then by force, and remove its files."""
    for number, grace_s in _GRACES_S.items():
        for pid in processes.descendants(os.getpid()):
            processes.send(pid, number)
        if processes.wait_until(_is_childless, timeout_s=grace_s):
            break
    left = processes.descendants(os.getpid())
    if left:
        _log.error("processes %s did not end; end them by hand", left)
    shutil.rmtree(launch.temp_dir, ignore_errors=True)
    launch.head_path.unlink(missing_ok=True)


def _is_childless() -> bool:
    processes.reap()
    return not processes.descendants(os.getpid())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    main(Launch.model_validate_json(sys.argv[1]))
