"""One process of the service: HTTP API, store and reconciler, from start to clean exit."""

import asyncio
import errno
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from api.http.app import create_app
from api.http.broadcast import Broadcaster
from api.http.connections import Deadlines, connection_class
from service.catalog import methods
from service.control import processes
from service.control.access.keys import given_key, write_private
from service.control.reconciling.assembly import assemble
from service.control.storage import Storage
from service.control.store import Store
from service.errors import Unavailable
from service.settings import Settings

GRACEFUL_S = 5
_PREPARE_AFTER_S = 10.0  # after the service and its first job have started
_WILDCARDS = ("0.0.0.0", "::", "")

log = logging.getLogger("wiretune")


class PortBusy(Exception):
    """The port is not available."""


class Linger:
    """Decides when an unused server ends.

    Args:
        store: says whether there are unfinished jobs.
        linger_s: seconds without a request and without an unfinished job.
        now: the current time, in seconds.
    """

    def __init__(self, store: Store, *, linger_s: float, now: float) -> None:
        self._store, self._linger_s = store, linger_s
        self._requests, self._since = 0, now

    def is_over(self, num_requests: int, now: float, *, num_readers: int = 0) -> bool:
        """Return whether to end, given the requests served so far, the current time, and the readers of events."""
        if num_requests != self._requests or num_readers:
            self._requests, self._since = num_requests, now
        if now - self._since < self._linger_s:
            return False
        if self._store.work.is_busy():
            self._since = now
            return False
        return True


class _Server(uvicorn.Server):
    linger: Linger | None = None
    broadcaster: Broadcaster | None = None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.broadcaster is not None:  # event streams never end by themselves
            self.broadcaster.close()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # accepted during the shutdown
            connection.transport.abort()
        await asyncio.sleep(0)  # a transport closes its socket in the loop's next turn

    async def on_tick(self, counter: int) -> bool:
        if await super().on_tick(counter):
            return True
        if self.linger is None or counter % 10:
            return False
        num_readers = 0 if self.broadcaster is None else self.broadcaster.num_readers
        return self.linger.is_over(self.server_state.total_requests, time.monotonic(), num_readers=num_readers)


def serve(settings: Settings, *, linger_s: float | None = None) -> None:
    """Serve until SIGTERM or SIGINT, or until nobody has used the service for `linger_s` seconds.

    Writes `server.json` and, the first time, `api_key` into the state dir. Raises `PortBusy`, and
    `service.errors.Unavailable` if another process serves the same state dir or SQLite file, or if the storage is not
    mounted or cannot be written.
    """
    require_storage(settings)
    with ExitStack() as stack:
        store = Store.open(settings)
        stack.callback(store.close)
        require_mounted(store)
        bound = stack.enter_context(bind(settings.host, settings.port))
        url = _url(settings.host, bound.getsockname()[1])
        ensure_key(store, settings.state_dir)
        assembly = assemble(store, settings, api_url=settings.api_url or url)
        app = create_app(
            store,
            conflicts=assembly.reconciler.conflicts,
            outlook=lambda: assembly.reconciler.outlook,
            user_code=settings.user_code,
            logs=assembly.logs,
            occupancy=assembly.occupancy,
        )
        server = _Server(server_config(app, Deadlines(stall_s=settings.stall_s)))
        server.broadcaster = app.state.services.broadcaster
        if linger_s is not None:
            server.linger = Linger(store, linger_s=linger_s, now=time.monotonic())
        _exit_on_signals(server)
        prepare_process()
        stack.callback(_prepare_methods().cancel)
        assembly.start()
        stack.callback(assembly.stop)
        stack.enter_context(_announced(settings.state_dir, url))
        server.run(sockets=[bound])


def require_storage(settings: Settings) -> None:
    """Raise Unavailable unless a storage outside the state dir can be written, read and cleaned.

    A full storage passes, since the service is needed to make room.
    """
    if not settings.storage_url:
        return
    try:
        Storage(settings.storage_url).require_writable()
    except Unavailable as error:
        if not _is_full(error):
            raise
        log.warning("%s: no job begins before `wiretune clean` makes room", error)


def require_mounted(store: Store) -> None:
    """Leave the service's mark on the storage. Raise Unavailable if an earlier one is gone, as when not mounted."""
    try:
        store.attempts.mark.require()
    except Unavailable as error:
        if store.settings.storage_url and not _is_full(error):
            raise
        log.warning("%s", error)


def _is_full(error: Unavailable) -> bool:
    return getattr(error.__cause__, "errno", None) == errno.ENOSPC


def server_config(app: ASGIApp, deadlines: Deadlines) -> uvicorn.Config:
    """Return the configuration with which uvicorn serves `app`."""
    return uvicorn.Config(
        app,
        http=connection_class(deadlines),
        log_config=None,  # uvicorn logs to the same place as we do
        log_level="warning",
        access_log=False,
        timeout_keep_alive=deadlines.idle_s,
        timeout_graceful_shutdown=GRACEFUL_S,
        lifespan="off",
        server_header=False,
    )


def _prepare_methods() -> threading.Timer:
    """Build the catalogue of methods ahead of the first request: it takes two seconds, once per process."""

    def prepare() -> None:
        methods.methods()
        _keep_all()

    timer = threading.Timer(_PREPARE_AFTER_S, prepare)
    timer.daemon = True
    timer.start()
    return timer


def prepare_process() -> None:
    """Prepare this process for many clients at once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # often 1024, which slow clients could use up
    sys.setswitchinterval(0.001)  # a small answer waits at each change of threads
    _keep_all()


def _keep_all() -> None:
    """Exempt all present objects from garbage collection: a full one took 0.1 s, most of it for modules."""
    gc.collect()
    gc.freeze()


@contextmanager
def bind(host: str, port: int) -> Iterator[socket.socket]:
    """Give a socket bound to `host`:`port`. Raises `PortBusy`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol, asyncio turns Nagle's algorithm off.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except OSError as error:
            raise PortBusy(
                f"cannot listen on {host} port {port}: {error.strerror}; "
                "choose another with --port or WIRETUNE_PORT (0: any free port)"
            ) from error
        yield bound


def ensure_key(store: Store, state_dir: Path) -> str:
    """Return the first key and write it to the state dir's `api_key`: the operator's, or else a generated one.

    A new one is generated only if this database does not know the one there. Raises Unavailable for a weak key.
    """
    path = state_dir / "api_key"
    if (given := given_key()) is not None:
        store.adopt_key("first", given)
        write_private(path, f"{given}\n")
        return given
    if path.exists() and store.check_key(path.read_text().strip()):
        return path.read_text().strip()
    key = store.add_key("first")
    write_private(path, f"{key}\n")
    return key


@contextmanager
def _announced(state_dir: Path, url: str) -> Iterator[None]:
    """Announce this server in `server.json` while it runs. The announcement of another server is left there."""
    path = state_dir / "server.json"
    pid = os.getpid()
    announcement = json.dumps({"url": url, "pid": pid, "started_at": processes.started_at(pid)})
    write_private(path, announcement)
    key_path = state_dir / "api_key"
    log.info("Wiretune is at %s; `wiretune page` opens it, `wiretune stop` ends it; an admin's key: %s", url, key_path)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            if path.read_bytes() == announcement.encode():
                path.unlink()


def _url(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in _WILDCARDS else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _exit_on_signals(server: uvicorn.Server) -> None:
    """Make SIGTERM and SIGINT end the server at any time.

    When uvicorn is done, it raises the received signals again. This handler keeps them from ending the process before
    Ray is stopped and the database is closed.
    """

    def ask(number: int, frame: FrameType | None) -> Any:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
