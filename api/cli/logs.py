"""Follow the output of a job's attempts."""

import time
from collections.abc import Iterator

from api.client import Client
from api.failures import ApiError

POLL_S = 1.0
#: Every poll fetches the log from Ray again, so long logs are polled less often.
_BYTES_PER_S = 1_000_000
_MAX_PAUSE_S = 10.0
#: A first guess of the size of lines, and the factor by which to ask for more if they are longer.
_LEAST_BYTES, _BYTES_PER_LINE, _GROWTH = 65_536, 200, 8


def last_lines(client: Client, job_id: str, number: int | None, num_lines: int) -> tuple[bytes, int]:
    """Return the last lines of an attempt's output, or all if there are fewer, and the offset to read on from."""
    num_bytes = max(_LEAST_BYTES, _BYTES_PER_LINE * num_lines)
    while True:
        text = client.logs(job_id, attempt=number, tail=num_bytes)
        at = len(text) - text.endswith(b"\n")
        for _ in range(num_lines):
            if (at := text.rfind(b"\n", 0, at)) < 0:
                break
        if at >= 0 or text.offset == 0:
            return text[at + 1 :], text.end
        num_bytes *= _GROWTH


def follow_log(client: Client, job_id: str, number: int | None, *, num_lines: int | None = None) -> Iterator[bytes]:
    """Yield the output of attempt `number` until it ends; by default that of the last attempt and every later one.

    Earlier output is limited to the last `num_lines`. Raises `ApiError` for an attempt without a log, but only once no
    output can follow.
    """
    current, offset = number or 0, 0
    for view in client.watch(job_id, poll_s=POLL_S):
        last = number or view.attempt
        is_over = view.is_over or last < view.attempt
        for attempt in range(current or last, last + 1):
            current, offset = attempt, offset if attempt == current else 0
            may_be_missing = attempt < last or not is_over
            piece, end = _piece(client, job_id, attempt, offset, num_lines=num_lines, may_be_missing=may_be_missing)
            num_lines = None
            if piece:
                offset = end
                yield piece
        if last < view.attempt:
            return
        time.sleep(0 if is_over else min(offset / _BYTES_PER_S, _MAX_PAUSE_S))


def _piece(
    client: Client, job_id: str, attempt: int, offset: int, *, num_lines: int | None, may_be_missing: bool
) -> tuple[bytes, int]:
    """Return the output from `offset` on, or the last `num_lines`, and the offset to read on from."""
    try:
        if num_lines is not None:
            return last_lines(client, job_id, attempt or None, num_lines)
        text = client.logs(job_id, attempt=attempt or None, offset=offset)
        return text, text.end
    except ApiError as error:
        if error.status == 404 and may_be_missing:
            return b"", offset
        raise
