"""Completes the ids of jobs for a shell, if a service of this machine answers at once."""

from collections.abc import Iterator

from api.cli.local import LocalServerError, running_server
from api.client import Client
from api.failures import ApiError, Unreachable
from service.settings import Settings

#: A shell waits for no longer.
PATIENCE_S = 0.3
_NUM_JOBS = 50


def jobs(incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the ids that begin as typed, newest first, each with its job's state and name; `latest` comes first."""
    if "latest".startswith(incomplete):
        yield "latest", "your newest job"
    try:
        server = running_server(Settings(), timeout_s=PATIENCE_S)
        if server is None:
            return
        with Client(server.url, server.key, timeout_s=PATIENCE_S, retry_s=0.0) as client:
            begun = incomplete if len(incomplete) > len("job-") else None
            found = client.jobs(ref=begun, limit=_NUM_JOBS).jobs
    except (ApiError, Unreachable, LocalServerError, OSError, ValueError):  # no word of it: the user is typing
        return
    yield from ((job.id, f"{job.state}: {job.name}") for job in found if job.id.startswith(incomplete))
