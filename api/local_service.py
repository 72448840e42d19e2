"""The service on this machine: find it."""

import json
from pathlib import Path
from typing import NamedTuple

import httpx2

from service.control import processes
from service.settings import Settings
from trainers import overload

ANSWER_S = 10.0
#: Of the file in the state dir with the key that commands here use.
KEY_NAME = "api_key"


class Server(NamedTuple):
    """The address of a running server, and a key for it."""

    url: str
    key: str


class LocalServerError(Exception):
    """The local server failed to do something; the message says where to look."""


def running_server(settings: Settings, *, timeout_s: float = ANSWER_S) -> Server | None:
    """Return the server of the state dir, if one runs.

    Raises `LocalServerError` if it does not answer or its files cannot be read.
    """
    found = announced(settings.state_dir)
    if found is None:
        return None
    try:
        if not httpx2.get(f"{found.url}/healthz", timeout=timeout_s, trust_env=False).is_success:
            return None
    except httpx2.TimeoutException as error:
        late = f"the service at {found.url} (process {found.pid}) is up and did not answer within {timeout_s:g} s"
        raise LocalServerError(overload.explained(late, overload.here())) from error
    except httpx2.HTTPError:
        return None
    key = settings.state_dir / KEY_NAME
    try:
        return Server(found.url, key.read_text().strip())
    except OSError as error:
        raise LocalServerError(
            f"cannot read the key to {found.url}, {key}: {error.strerror}; give --url and --key"
        ) from error


class Announced(NamedTuple):
    """The contents of `server.json`. After a crash another process may have its pid, but not its start time."""

    url: str
    pid: int
    started_at: int  # clock ticks since boot

    @property
    def is_alive(self) -> bool:
        """True while that process lives."""
        return processes.is_running(self.pid, word="serve") and processes.started_at(self.pid) == self.started_at


def announced(state_dir: Path) -> Announced | None:
    """Return the announced server of the state dir if its process lives; it may still not answer."""
    path = state_dir / "server.json"
    try:
        found = Announced(**json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LocalServerError(f"cannot read {path}: {error.strerror}; check WIRETUNE_STATE_DIR") from error
    except (TypeError, ValueError) as error:
        raise LocalServerError(
            f"{path} does not say which service runs here: end one that does by its process, and remove the file"
        ) from error
    return found if found.is_alive else None
