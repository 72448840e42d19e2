"""An attempt's log: what its driver and its workers printed. With Ray while Ray has it, on storage afterwards."""

import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from service.control.moments import is_ahead
from service.control.ray_cluster.clusters import RayApi
from service.control.ray_cluster.ray_jobs import LIVE
from service.control.store import Store
from service.control.work import Attempt
from service.errors import NotFound, Unavailable

_log = logging.getLogger(__name__)
_HEAD_BYTES, _TAIL_BYTES = 1_000_000, 3_000_000
_LAST_WORDS_S = 30.0  # a driver that has reported its end may still print for so long
_RETRY_S = 10.0  # after a storage that failed
_ASK_AGAIN_S = 60.0  # for a log that Ray did not give
_PATIENCE_S = 600.0  # with a log that Ray does not give at all
_FORGET_S = 10.0  # after a log is kept: Ray itself looks once more at a driver that has just ended
_STOP_S = 15.0  # for all logs together, while Ray waits for its end
_CUT = re.compile(rb"\[\.\.\. (\d{1,18}) bytes are cut here; the whole log had (\d{1,18}) \.\.\.\]\n")
#: Of a log that is kept; it is in the job's folder, where the job may have put a longer one.
_MAX_KEPT_BYTES = _HEAD_BYTES + _TAIL_BYTES + 1000
_MAX_LINE_CHARS = 500  # in a job's reason
_TOO_LONG = b"\n[this log ends here: on storage is more than was kept]\n"


class _Refusal(NamedTuple):
    """A log that Ray has not given, or the storage has not taken, in seconds since the epoch."""

    first_at: float
    ask_at: float


class Logs:
    """Reads logs, and keeps those of ended attempts.

    `ray` gives Ray where it runs, without starting it; `adopt` takes one over that an earlier service has left behind,
    and returns whether there is one, not ours yet.
    """

    def __init__(
        self, store: Store, ray: Callable[[], RayApi | None], adopt: Callable[[], bool] = lambda: False
    ) -> None:
        self._store, self._ray, self._adopt = store, ray, adopt
        self._storage = store.storage
        self._retry_at = 0.0  # of the storage
        self._writable_at = 0.0  # the last round that found the storage to take files
        self._unwritable: set[str] = set()  # submissions whose logs it does not take all the same
        self._refusals: dict[str, _Refusal] = {}  # by the submission's id
        self._to_forget: dict[str, float] = {}  # when Ray is to forget a submission, by its id

    def read(self, job_id: str, *, number: int | None = None) -> bytes:
        """Return the log of an attempt, by default the last; of a long one that was kept, what `bounded` left.

        Raises NotFound where there is none, and says why; Unavailable while Ray has it and is silent.
        """
        attempt = self._store.attempts.one(job_id, number)
        silence: Unavailable | None = None
        try:
            if not attempt.log_kept and (ray := self._ray()) is not None and (text := self._text(ray, attempt)):
                return text.encode()
        except Unavailable as error:
            silence = error
        try:
            return self._kept(attempt)
        except NotFound as error:
            if silence is None and not attempt.log_kept and self._adopt():
                silence = Unavailable("Ray is being taken over from an earlier service; try again in a moment")
            if silence is None and attempt.ended_at is None:
                return b""  # its driver has not printed anything yet
            why = "Ray ended before it could be kept, or `wiretune clean` removed it"
            raise silence or NotFound(f"attempt {attempt.number} of job `{job_id}` has no log: {why}") from error

    def tail(self, job_id: str, number: int, *, num_lines: int) -> str:
        """Return the last lines of an attempt's log, else the last one of Ray's own reason; empty where it has none.

        Of a longer line it gives the first `_MAX_LINE_CHARS` characters.
        """
        if (ray := self._ray()) is None:
            return ""
        try:
            attempt = self._store.attempts.one(job_id, number)
            lines = self._text(ray, attempt).strip().splitlines()
            if not lines:  # the driver did not get as far as printing
                lines = self._blanked(ray.reason(attempt.submission_id), attempt).strip().splitlines()[-1:]
            return "\n".join(line[:_MAX_LINE_CHARS] for line in lines[-num_lines:])
        except Unavailable:
            return ""

    def keep_ended(self, now: float) -> None:
        """Write the logs of attempts that have ended to storage, once their drivers have.

        What the storage does not take is tried again for ever; what Ray does not give, for `_PATIENCE_S`. Neither holds
        up the logs of other attempts.
        """
        ray = self._ray()
        if ray is None or is_ahead(self._retry_at, now=now, within_s=_RETRY_S):
            return
        try:
            for attempt in self._store.attempts.without_log():
                log = self._whole(ray, attempt, now=now)
                if log is not None and self._is_settled(attempt, log, now=now):
                    self._note(attempt)
                    if self._refusals.pop(attempt.submission_id, None) is None:
                        self._to_forget[attempt.submission_id] = now + _FORGET_S
            self._forget(ray, now)
        except (NotFound, Unavailable) as error:
            self._retry_at = now + _RETRY_S
            _log.warning("logs are not kept yet: %s", error)

    def _is_settled(self, attempt: Attempt, log: bytes, *, now: float) -> bool:
        """Write a log, and return whether it need not be tried again; raises Unavailable if storage takes no file."""
        submission = attempt.submission_id
        try:
            self._keep(attempt, log)
        except NotFound as error:  # the job has put a link there
            _log.warning("the log of %s is lost: %s", submission, error)
        except Unavailable as error:  # such as in a folder of another user
            if self._writable_at != now:  # else it has been looked at in this round
                self._storage.require_writable()
                self._writable_at = now
            if submission not in self._unwritable:
                _log.warning("the log of %s is not kept yet: %s", submission, error)
            self._unwritable.add(submission)
            self._refusals[submission] = _Refusal(now, now + _ASK_AGAIN_S)
            return False
        self._unwritable.discard(submission)
        return True

    def _note(self, attempt: Attempt) -> None:
        try:
            self._store.attempts.note_log(attempt.job_id, attempt.number)
        except NotFound:  # its job was deleted meanwhile
            self._storage.remove_job(attempt.job_id)

    def _forget(self, ray: RayApi, now: float) -> None:
        """Have Ray forget drivers whose logs are here: it keeps all that it was ever given, and lists them at once."""
        waits = partial(is_ahead, now=now, within_s=_ASK_AGAIN_S)
        for submission_id in [each for each, due in self._to_forget.items() if not waits(due)]:
            try:
                ray.delete(submission_id)
                del self._to_forget[submission_id]
            except Unavailable as error:  # such as one that is still being stopped
                self._to_forget[submission_id] = now + _ASK_AGAIN_S
                _log.warning("Ray keeps %s: %s", submission_id, error)

    def _whole(self, ray: RayApi, attempt: Attempt, *, now: float) -> bytes | None:
        """Return an attempt's log once it has ended, or why there is none; None: not yet."""
        first_at, ask_at = self._refusals.get(attempt.submission_id, (now, now))
        if attempt.ended_at is None or is_ahead(ask_at, now=now, within_s=_ASK_AGAIN_S):
            return None
        try:
            may_print = now < attempt.ended_at + _LAST_WORDS_S and ray.status(attempt.submission_id) in LIVE
            log = None if may_print else self._text(ray, attempt).encode()
        except Unavailable as error:
            if now >= first_at + _PATIENCE_S:
                earlier = b""
                with suppress(NotFound):
                    earlier = self._kept(attempt)
                return earlier + f"[this log ends here: {error}]\n".encode()
            self._refusals[attempt.submission_id] = _Refusal(min(first_at, now), now + _ASK_AGAIN_S)
            _log.warning("the log of %s is not kept yet: %s", attempt.submission_id, error)
            return None
        self._refusals.pop(attempt.submission_id, None)
        return log

    def keep_all(self) -> None:
        """Write what there is of every log that only Ray has: Ray may be about to end. Takes some `_STOP_S` at most."""
        ray = self._ray()
        if ray is None:
            return
        deadline = time.monotonic() + _STOP_S
        for attempt in self._store.attempts.without_log():
            try:
                if time.monotonic() > deadline:
                    raise Unavailable(f"Ray and the storage took more than {_STOP_S:g} s for those before it")
                self._keep(attempt, self._text(ray, attempt).encode())
            except (NotFound, Unavailable) as error:
                _log.warning("the log of %s is not kept: %s", attempt.submission_id, error)

    def _keep(self, attempt: Attempt, log: bytes) -> None:
        if log:
            self._storage.write(self._url(attempt), bounded(log))

    def _kept(self, attempt: Attempt) -> bytes:
        log = self._storage.open(attempt.job_id, self._url(attempt)).first(_MAX_KEPT_BYTES + 1)
        return log if len(log) <= _MAX_KEPT_BYTES else log[:_MAX_KEPT_BYTES] + _TOO_LONG

    def _text(self, ray: RayApi, attempt: Attempt) -> str:
        return self._blanked(ray.logs(attempt.submission_id), attempt)

    def _blanked(self, text: str, attempt: Attempt) -> str:
        # A model that prints its environment prints the attempt's token, too.
        return text.replace(self._store.attempts.token(attempt.job_id, attempt.number), "[token]")

    def _url(self, attempt: Attempt) -> str:
        return self._storage.log_url(attempt.job_id, attempt.number)


def bounded(log: bytes, *, head: int = _HEAD_BYTES, tail: int = _TAIL_BYTES) -> bytes:
    """Return `log`, or of a longer one its first and last so many bytes, in whole lines, and what was cut between."""
    if len(log) <= head + tail:
        return log
    first = log[: log.rfind(b"\n", 0, head) + 1]
    end = log.find(b"\n", len(log) - tail) + 1
    last = log[end or len(log) - tail :]
    num_cut = len(log) - len(first) - len(last)
    return first + f"[... {num_cut} bytes are cut here; the whole log had {len(log)} ...]\n".encode() + last


def whole_length(log: bytes) -> int:
    """Return the length of the whole log of which `log` is what `bounded` left: from there on `since` gives nothing."""
    cut = _CUT.search(log)
    return len(log) if cut is None else len(log) - len(cut[0]) + int(cut[1])


def since(log: bytes, offset: int) -> bytes:
    """Return what followed byte `offset` of a whole log of which `log` is what `bounded` left."""
    cut = _CUT.search(log)
    if cut is None or offset <= cut.start():
        return log[offset:]
    num_cut = int(cut[1])
    behind = offset - cut.start() - num_cut  # bytes already read of the end
    return log[cut.end() + behind :] if behind >= 0 else log[cut.start() :]


def ending(log: bytes, num_bytes: int) -> tuple[int, bytes]:
    """Return the last lines of a log, together at most `num_bytes`, and the offset with which `since` gives the same.

    Of a last line that is longer, the end is returned.
    """
    start = max(0, len(log) - num_bytes)
    if start:  # behind the first end of a line but the log's own
        start = log.find(b"\n", start - 1, len(log) - 1) + 1 or start
    cut = _CUT.search(log)
    if cut is None or start <= cut.start():
        return start, log[start:]
    start = max(start, cut.end())
    return start - cut.end() + cut.start() + int(cut[1]), log[start:]
