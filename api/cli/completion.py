"""Shell completion of job ids, if the service that the command would use answers at once."""

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from api.client import Client
from api.failures import ApiError, Unreachable
from api.local_service import LocalServerError, Server, running_server
from service.settings import Settings

#: A shell should not wait longer than this.
PATIENCE_S = 0.3
_NUM_JOBS = 50


def jobs(context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the matching ids, newest first, each with its job's state and name; `latest` comes first."""
    if "latest".startswith(incomplete):
        yield "latest", "your newest job"
    try:
        server = _asked(context.params)
        if server is None:
            return
        with Client(server.url, server.key, timeout_s=PATIENCE_S, retry_s=0.0) as client:
            begun = incomplete if len(incomplete) > len("job-") else None
            found = client.jobs(ref=begun, limit=_NUM_JOBS).jobs
    except (ApiError, Unreachable, LocalServerError, OSError, ValueError):  # silent: the user is typing
        return
    yield from ((job.id, f"{job.state}: {job.name}") for job in found if job.id.startswith(incomplete))


def _asked(options: Mapping[str, Any]) -> Server | None:
    """Return the service of --url or its variable, or else the one on this machine, if one runs."""
    url, key = options.get("url"), options.get("key")
    if url is not None:
        return Server(url, key or "")
    server = running_server(Settings(), timeout_s=PATIENCE_S)
    return server and server._replace(key=key or server.key)
