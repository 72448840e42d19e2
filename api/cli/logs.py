"""Follow what the attempts of a job print."""

import time
from collections.abc import Iterator

from api.client import Client
from api.failures import ApiError

POLL_S = 1.0
#: A log is fetched anew from Ray for every look, so a long one is looked at less often.
_BYTES_PER_S = 1_000_000
_MAX_PAUSE_S = 10.0


def follow_log(client: Client, job_id: str, number: int | None) -> Iterator[bytes]:
    """Yield what attempt `number` prints until it has ended; by default the last one's, and every later one's.

    Raises `ApiError` for an attempt without a log once nothing follows it.
    """
    current, offset = number or 0, 0
    for view in client.watch(job_id, poll_s=POLL_S):
        last = number or view.attempt
        is_over = view.is_over or last < view.attempt
        for attempt in range(current or last, last + 1):
            current, offset = attempt, offset if attempt == current else 0
            piece = _piece(client, job_id, attempt, offset=offset, may_be_missing=attempt < last or not is_over)
            offset += len(piece)
            if piece:
                yield piece
        if last < view.attempt:
            return
        time.sleep(0 if is_over else min(offset / _BYTES_PER_S, _MAX_PAUSE_S))


def _piece(client: Client, job_id: str, attempt: int, *, offset: int, may_be_missing: bool) -> bytes:
    try:
        return client.logs(job_id, attempt=attempt or None, offset=offset)
    except ApiError as error:
        if error.status == 404 and may_be_missing:
            return b""
        raise
