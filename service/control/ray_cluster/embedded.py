"""Start, adopt and stop the Ray head of a service without a cluster. The `watchdog` process runs it."""

import hashlib
import json
import os
import secrets
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from service.control import processes
from service.control.access.keys import write_private
from service.control.database.locks import lock
from service.control.ray_cluster.ray_jobs import RayJobs
from service.control.ray_cluster.watchdog import Launch
from service.control.ray_cluster.worker_environment import inherited
from service.errors import Unavailable
from service.settings import Settings
from trainers import overload

_WATCHDOG = "service.control.ray_cluster.watchdog"
#: On the command line of every release's.
ANY_WATCHDOG = ".watchdog"
_START_S = 90.0
_STOP_S = 40.0  # the watchdog's two graces, and some


@dataclass(frozen=True, kw_only=True)
class Status:
    """A running head."""

    address: str  # of the Jobs server
    token_path: Path
    log_dir: Path  # of Ray's processes and drivers
    pid: int  # of its watchdog


@dataclass(frozen=True, kw_only=True)
class Head(Status):
    """A head that this process owns while `owner` is open."""

    owner: IO[str]


def _launch(settings: Settings) -> Launch:
    folder = settings.state_dir / "ray"
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return Launch(
        folder=folder,
        temp_dir=Path(f"/tmp/wt-{name}"),
        num_cpus=settings.num_cpus,
        num_gpus=settings.num_gpus,
        idle_s=settings.embedded_idle_s,
        max_silence_s=settings.max_silence_s,
    )


def ensure_head(settings: Settings) -> Head:
    """Return the running head: adopt an earlier service's, or start one (about ten seconds).

    Raises Unavailable, saying where the log is, when another service owns the head or it does not start.
    """
    launch = _launch(settings)
    launch.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = _own(launch)
    try:
        pid = _watchdog_pid(launch)
        if pid is None:
            _clear(launch)
            pid = _spawn(launch, settings)
        status = _await_answer(settings, pid)
    except BaseException:
        owner.close()
        raise
    return Head(**vars(status), owner=owner)


def _await_answer(settings: Settings, pid: int) -> Status:
    log_path = _launch(settings).log_path
    settled = processes.wait_until(lambda: head_status(settings) or _is_gone(pid), timeout_s=_START_S, every_s=0.25)
    if isinstance(settled, Status):
        return settled
    if settled:
        raise Unavailable(f"Ray ended before it answered; its log is {log_path}")
    stop_head(settings)
    late = f"Ray did not answer within {_START_S:g} s of its start; its log is {log_path}"
    raise Unavailable(overload.explained(late, overload.here()))


def head_status(settings: Settings) -> Status | None:
    """Return the head if it can take jobs; None otherwise."""
    launch = _launch(settings)
    pid = _watchdog_pid(launch)
    if pid is None:
        return None
    log_dir = launch.temp_dir / "session_latest" / "logs"
    status = Status(address=_read(launch)["address"], token_path=launch.token_path, log_dir=log_dir, pid=pid)
    ray = RayJobs(status.address, launch.token_path.read_text().strip())
    try:
        ray.nodes()
    except Unavailable:
        return None
    finally:
        ray.close()
    return status


def is_alive(head: Status) -> bool:
    """Return whether the head's watchdog lives; cheap, and asks Ray nothing."""
    return not _is_gone(head.pid)


def stop_head(settings: Settings) -> None:
    """End the head, its jobs, and all its processes and temporary files. Do nothing if there is none.

    Raises Unavailable, naming the pid, if it does not end.
    """
    launch = _launch(settings)
    pid = _watchdog_pid(launch)
    if pid is not None:
        processes.send(pid, signal.SIGTERM)
        if not processes.wait_until(lambda: _is_gone(pid), timeout_s=_STOP_S):
            raise Unavailable(f"Ray's watchdog {pid} did not end within {_STOP_S:g} s; its log is {launch.log_path}")
    _clear(launch)


def stale_dir(settings: Settings) -> Path | None:
    """Return the temporary folder left by a head whose watchdog was killed, or None."""
    launch = _launch(settings)
    is_ours = launch.temp_dir.exists() and launch.temp_dir.stat().st_uid == os.getuid()
    return launch.temp_dir if is_ours and _watchdog_pid(launch) is None else None


def clear_stale(settings: Settings) -> None:
    """Remove that folder; raises Unavailable while a service is about to use it."""
    launch = _launch(settings)
    launch.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _own(launch):
        if stale_dir(settings) is not None:
            _clear(launch)


def _own(launch: Launch) -> IO[str]:
    """Take the owner's lock. Retry, because the watchdog holds it briefly now and then to check it."""
    end = time.monotonic() + 1.0
    while True:
        try:
            return lock(launch.owner_path, purpose="the embedded Ray")
        except Unavailable:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


def _spawn(launch: Launch, settings: Settings) -> int:
    """Start a watchdog in a session of its own and return its pid, once it has said where Ray will be."""
    write_private(launch.token_path, secrets.token_hex(32))
    try:
        launch.temp_dir.mkdir(mode=0o700)
    except FileExistsError:
        raise Unavailable(f"{launch.temp_dir} belongs to somebody else; Ray needs it, remove it") from None
    to_log = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", _WATCHDOG, launch.model_dump_json()],
        inherited(settings.worker_env, storage_url=settings.resolved_storage_url),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(launch.log_path), to_log, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    processes.wait_until(lambda: launch.head_path.exists() or _is_gone(pid), timeout_s=_START_S)
    return pid


def _watchdog_pid(launch: Launch) -> int | None:
    if not launch.head_path.exists():
        return None
    pid = int(_read(launch)["pid"])
    return None if _is_gone(pid) else pid


def _read(launch: Launch) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(launch.head_path.read_text())
    return head


def _is_gone(pid: int) -> bool:
    """Return whether the watchdog has ended; for our own child, ask the system: its command line is empty at first."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # another service's child, which the system reaps; or it has been collected
        return not processes.is_running(pid, word=ANY_WATCHDOG)


def _clear(launch: Launch) -> None:
    """Remove the files of a killed watchdog; Ray itself ended with it."""
    launch.head_path.unlink(missing_ok=True)
    if launch.temp_dir.exists() and launch.temp_dir.stat().st_uid == os.getuid():
        shutil.rmtree(launch.temp_dir, ignore_errors=True)
