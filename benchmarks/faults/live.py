"""A real service of its own on this machine, and the processes that it is made of."""

import ctypes
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple, TypeVar

from api.cli.local import start_server, stop_server
from api.client import Client
from api.failures import ApiError, Unreachable
from api.local_service import Server
from api.retries import is_passing
from service.control import processes
from service.control.ray_cluster import embedded
from service.settings import Settings

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_HEAD = {"gcs": b"/gcs_server", "raylet": b"/raylet/raylet", "jobs": b"dashboard/dashboard.py"}
_PROC = Path("/proc")
T = TypeVar("T")
#: Longest wait for a process that a round is to kill.
_VICTIM_S = 120.0


class Victim(NamedTuple):
    """A process to kill. `name` says which of its kind; the job is known for drivers."""

    pid: int
    name: str
    job_id: str | None = None


class NobodyToKill(Exception):
    """A service had no such process for a long time."""


def adopt_orphans() -> None:
    """Make every process whose parent dies a child of ours, so that none escapes the count at the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class LiveService:
    """SQLite and an embedded Ray below `folder`, on a port that stays the same when the server is started again."""

    def __init__(self, folder: Path, *, num_cpus: int, **settings: object) -> None:
        fixed = {"state_dir": folder, "host": "127.0.0.1", "port": free_port(), "num_cpus": num_cpus, "num_gpus": 0}
        local = {"database_url": "", "ray_address": "", "storage_url": "", "api_url": ""}
        self.settings = Settings.model_validate(fixed | local | settings)
        self.server: Server = start_server(self.settings)

    def client(self) -> Client:
        return Client(self.server.url, self.server.key)

    def restart_api(self) -> float:
        """Start the server, as whatever watches over it would, and return the seconds until it has answered a query."""
        started = time.monotonic()
        start_server(self.settings)
        with self.client() as client:
            insist(lambda: client.jobs(limit=1))
        return time.monotonic() - started

    def stop(self) -> None:
        stop_server(self.settings)

    # Who is there

    def victim(self, kind: str, *, jobs: Collection[str], draw: random.Random) -> Victim:
        """Wait for a process of `kind`, if there is one of `jobs` for such; raises NobodyToKill."""
        found: list[Victim] = []

        def is_there() -> bool:
            there = sorted(self.candidates(kind))
            found.extend([each for each in there if each.job_id in jobs] or there)
            return bool(found)

        if not processes.wait_until(is_there, timeout_s=_VICTIM_S):
            raise NobodyToKill(f"no {kind} within {_VICTIM_S:g} s; see {self.settings.state_dir}/server.log")
        return draw.choice(found)

    def candidates(self, kind: str) -> list[Victim]:
        """Return the living processes of `kind`."""
        if kind == "api":
            return [Victim(self._announced("server.json"), "api")]
        if kind == "tree":
            return [Victim(pid, "tree") for pid in processes.descendants(os.getpid())]
        below = {pid: command_line(pid) for pid in self._rays()}
        if kind == "driver":
            return [Victim(pid, "driver", _job_of(pid)) for pid, line in below.items() if is_driver(line)]
        if kind == "trial":
            return [Victim(pid, "trial") for pid, line in below.items() if line.startswith(b"ray::ImplicitFunc")]
        if kind == "worker":
            return [Victim(pid, "worker") for pid, line in below.items() if line.startswith(b"ray::RankActor")]
        assert kind == "head", kind
        parts = [Victim(pid, name) for pid, line in below.items() for name, word in _HEAD.items() if word in line]
        return [*parts, Victim(self._announced("ray/head.json"), "watchdog")] if parts else []

    def _rays(self) -> list[int]:
        """Return Ray's processes: the head's, drivers, and what runs for them."""
        pid = self._announced("ray/head.json", default=0)
        return processes.descendants(pid) if pid else []

    def _announced(self, name: str, default: int | None = None) -> int:
        try:
            return int(json.loads((self.settings.state_dir / name).read_text())["pid"])
        except FileNotFoundError:
            if default is None:
                raise
            return default

    def temp_dir(self) -> Path | None:
        """Return the folder of an embedded Ray that is not there any more, if it has left one."""
        return embedded.stale_dir(self.settings)


def kill(victim: Victim) -> None:
    """End a process, or everything below us, without a word."""
    if victim.name != "tree":
        processes.send(victim.pid, signal.SIGKILL)
        return
    while pids := processes.descendants(os.getpid()):
        for pid in pids:
            processes.send(pid, signal.SIGKILL)


def is_driver(line: bytes) -> bool:
    """Return whether a command line is that of a driver, not of the shell around it."""
    return b"service.cluster.entrypoint" in line and b"python" in line.split(b"\0")[0]


def command_line(pid: int) -> bytes:
    """Return what /proc tells of a process's command; nothing if it is gone."""
    return _read(pid, "cmdline")


def _job_of(pid: int) -> str | None:
    variables = dict(each.partition(b"=")[::2] for each in _read(pid, "environ").split(b"\0"))
    job = variables.get(b"WIRETUNE_JOB")
    return None if job is None else job.decode()


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""  # it has just ended


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def insist(call: Callable[[], T], *, for_s: float = 120.0) -> T:
    """Repeat `call` while the service is away, as a careful client does, for at most `for_s` seconds."""
    deadline = time.monotonic() + for_s
    while True:
        try:
            return call()
        except (ApiError, Unreachable) as error:
            if not is_passing(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
