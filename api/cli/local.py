"""The server on this machine: start it, stop it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from api.local_service import Announced, LocalServerError, Server, announced, running_server
from service.control import processes
from service.control.database.locks import prepare_state_dir
from service.control.ray_cluster import embedded
from service.settings import Settings
from trainers import overload

START_S = 60.0
STOP_S = 90.0
_POLL_S = 0.05
_TAIL_BYTES = 2000
#: Servers that this process started. A child's end is known by waiting for it, not by its id.
_children: dict[int, "subprocess.Popen[bytes]"] = {}


class StartedElsewhere(Exception):
    """Another process was faster to start a service of the same state dir: this one is to be used, and not stopped."""

    def __init__(self, server: Server) -> None:
        super().__init__(f"another process started the service at {server.url}")
        self.server = server


def start_server(settings: Settings, *, linger_s: float | None = None) -> Server:
    """Start a server in a session of its own, and return once it answers.

    Raises `LocalServerError`, `Unavailable`, and `StartedElsewhere` if another process starts one at the same time.

    Args:
        settings: passed on to the server. If the default port is taken and no other was set, it uses any free one.
        linger_s: the server ends after this many seconds without a request and without an active job.
    """
    prepare_state_dir(settings)
    log_file = settings.log_file or settings.state_dir / "server.log"
    settings = settings.model_copy(update={"log_file": log_file})
    # Passes on every setting, whatever its source. Secrets that a dump hides are in the environment, or unknown.
    given = settings.model_dump(
        mode="json", exclude={"host", "port", "webhook_secret", "webhook_url", "oidc_client_secret"}, exclude_none=True
    )
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    for _ in range(2):  # again if another service had the state dir and has ended meanwhile
        if (server := _start(settings, linger_s, texts)) is not None:
            return server
    raise LocalServerError(f"other services of {settings.state_dir} began and ended meanwhile; try again")


def _start(settings: Settings, linger_s: float | None, texts: Mapping[str, str]) -> Server | None:
    """Start a server with settings as `texts`. None: another service had the state dir, and has ended meanwhile."""
    printed = settings.state_dir / "server.out"  # besides its log, e.g. why it does not start
    with printed.open("wb") as output:
        # Not the caller's pipes: their readers would wait as long as the server lives.
        process = subprocess.Popen(
            _command(settings, linger_s),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | {f"WIRETUNE_{name.upper()}": text for name, text in texts.items()},
        )
    _children[process.pid] = process
    server = None
    try:
        server = _await_answer(settings, process, printed)
    finally:
        if server is None:  # it did not start, or the caller was interrupted
            process.terminate()
            process.wait(STOP_S)
    return server


def _await_answer(settings: Settings, process: "subprocess.Popen[bytes]", printed: Path) -> Server | None:
    """Return the server once it answers. None: another service kept it from starting, and has ended meanwhile.

    That one may be starting, too, or shutting down.
    """
    holder = ""

    def look() -> Server | bool:
        nonlocal holder
        with suppress(LocalServerError):  # it runs, but is busy
            if (server := running_server(settings)) is not None:
                return server
        if process.poll() is None:
            return False
        found = _holder(settings.state_dir)
        holder = found or holder
        return not found

    settled = processes.wait_until(look, timeout_s=START_S, every_s=_POLL_S)
    if isinstance(settled, Server):
        found = announced(settings.state_dir)
        if found is not None and found.pid != process.pid:
            raise StartedElsewhere(settled)
        return settled
    if settled and holder:
        return None
    if settled:
        code = process.returncode
        raise LocalServerError(f"the server ended at once (exit code {code}):\n{_tail(printed)}")
    who = f"{holder}, which has locked {settings.state_dir}," if holder else "the server"
    late = overload.explained(f"{who} did not answer within {START_S:.0f} s", overload.here())
    raise LocalServerError(f"{late}; see {settings.log_file}:\n{_tail(printed)}")


def _holder(state_dir: Path) -> str:
    """Return the live service that has locked the state dir, in words; empty if there is none."""
    with suppress(OSError, ValueError, psutil.Error):
        pid = (state_dir / "service.lock").read_text()
        if not pid:
            return "a process that starts"  # between its lock and its pid
        if "serve" in psutil.Process(int(pid)).cmdline():  # others lock it, too, such as a restore
            return f"process {pid}"
    return ""


def stop_server(settings: Settings) -> str:
    """Stop the state dir's server, even a busy one, with its Ray and all workers; return what was stopped.

    Raises `LocalServerError` if no server runs.
    """
    found = announced(settings.state_dir)
    if found is None:
        raise LocalServerError(f"no server of {settings.state_dir} is running")
    processes.send(found.pid, signal.SIGTERM)
    if _ends(found):
        return f"stopped the service at {found.url} (process {found.pid}), its Ray and all workers"
    processes.send(found.pid, signal.SIGKILL)
    _ends(found)
    embedded.stop_head(settings)
    return f"the service at {found.url} (process {found.pid}) did not stop within {STOP_S:.0f} s and was killed"


def _is_alive(server: Announced) -> bool:
    child = _children.get(server.pid)
    return server.is_alive if child is None else child.poll() is None


def _ends(server: Announced) -> bool:
    """Wait for the server to end, and return whether it did in time."""
    has_ended = processes.wait_until(lambda: not _is_alive(server), timeout_s=STOP_S, every_s=_POLL_S)
    if has_ended:
        _children.pop(server.pid, None)
    return has_ended


def _command(settings: Settings, linger_s: float | None) -> list[str]:
    port = settings.port
    if "port" not in settings.model_fields_set and not _is_free(settings.host, port):
        port = 0
    # -P: the user's folder may have an `api.py` or a `search.py`, which would be imported in place of ours.
    command = [sys.executable, "-P", "-m", "api.cli.main", "serve", "--host", settings.host, "--port", str(port)]
    return command if linger_s is None else [*command, "--linger", str(linger_s)]


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _tail(printed: Path) -> str:
    return printed.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
