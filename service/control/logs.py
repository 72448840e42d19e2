"""An attempt's log: what its driver and its workers printed. With Ray while Ray has it, on storage afterwards."""

import logging
from collections.abc import Callable

from service.control.clusters import RayApi
from service.control.ray_jobs import RayStatus
from service.control.storage import Storage
from service.control.store import Attempt, Store
from service.errors import NotFound, Unavailable

_log = logging.getLogger(__name__)
_HEAD_BYTES, _TAIL_BYTES = 1_000_000, 3_000_000
_LAST_WORDS_S = 30.0  # a driver that has reported its end may still print for so long
_RETRY_S = 10.0  # after a storage or a Ray that failed
_LIVE = (RayStatus.PENDING, RayStatus.RUNNING)


class Logs:
    """Reads logs, and keeps those of ended attempts. `ray` gives Ray where it runs, without starting it."""

    def __init__(self, store: Store, ray: Callable[[], RayApi | None]) -> None:
        self._store, self._ray = store, ray
        self._storage = Storage(store.settings.resolved_storage_url)
        self._retry_at = 0.0

    def read(self, job_id: str, *, number: int | None = None) -> bytes:
        """Return the log of an attempt, by default the last; raises NotFound where there is none, and says why."""
        attempt = self._store.attempt(job_id, number)
        if not attempt.log_kept and (ray := self._ray()) is not None and (text := self._text(ray, attempt)):
            return text.encode()
        try:
            return b"".join(self._storage.open(job_id, self._url(attempt)).chunks())
        except NotFound as error:
            raise NotFound(f"attempt {attempt.number} of job `{job_id}` has no log: {_reason(attempt)}") from error

    def keep_ended(self, now: float) -> None:
        """Write the logs of attempts that have ended to storage, once their drivers have; what fails is tried again."""
        ray = self._ray()
        if ray is None or now < self._retry_at:
            return
        try:
            for attempt in self._store.attempts_without_log():
                if attempt.ended_at is not None and not self._may_still_print(ray, attempt, now=now):
                    self._keep(ray, attempt)
                    self._store.note_log(attempt.job_id, attempt.number)
        except Unavailable as error:
            self._retry_at = now + _RETRY_S
            _log.warning("logs are not kept yet: %s", error)

    def _may_still_print(self, ray: RayApi, attempt: Attempt, *, now: float) -> bool:
        assert attempt.ended_at is not None
        return now < attempt.ended_at + _LAST_WORDS_S and ray.status(attempt.submission_id) in _LIVE

    def keep_all(self) -> None:
        """Write what there is of every log that only Ray has: Ray may be about to end."""
        ray = self._ray()
        if ray is None:
            return
        try:
            for attempt in self._store.attempts_without_log():
                self._keep(ray, attempt)
        except Unavailable as error:
            _log.warning("not every log is kept: %s", error)

    def _keep(self, ray: RayApi, attempt: Attempt) -> None:
        if text := self._text(ray, attempt):
            self._storage.write(self._url(attempt), bounded(text.encode()))

    def _text(self, ray: RayApi, attempt: Attempt) -> str:
        # A model that prints its environment prints the attempt's token, too.
        token = self._store.token(attempt.job_id, attempt.number)
        return ray.logs(attempt.submission_id).replace(token, "[token]")

    def _url(self, attempt: Attempt) -> str:
        return self._storage.log_url(attempt.job_id, attempt.number)


def _reason(attempt: Attempt) -> str:
    if attempt.ended_at is None:
        return "its driver has not printed anything yet"
    return "Ray ended before it could be kept, or `wiretune clean` removed it"


def bounded(log: bytes, *, head: int = _HEAD_BYTES, tail: int = _TAIL_BYTES) -> bytes:
    """Return `log`, or of a longer one its first and last so many bytes, in whole lines, and what was cut between."""
    if len(log) <= head + tail:
        return log
    first = log[: log.rfind(b"\n", 0, head) + 1]
    end = log.find(b"\n", len(log) - tail) + 1
    last = log[end or len(log) - tail :]
    num_cut = len(log) - len(first) - len(last)
    return first + f"[... {num_cut} bytes are cut here; the whole log had {len(log)} ...]\n".encode() + last
