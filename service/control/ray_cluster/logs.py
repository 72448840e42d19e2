"""The log of an attempt: the output of its driver and workers. It is in Ray at first, and on storage afterwards."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
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
_BLANK_LINES = 20  # that a log may end with, when its last lines are asked for
_LAST_LINES = 1000  # of a log that is not given whole
_TOKEN = b"[token]"  # in place of an attempt's token
_TOO_LONG = b"\n[this log ends here: on storage is more than was kept]\n"


class _Refusal(NamedTuple):
    """A log that Ray did not return, or the storage did not accept. Times are seconds since the epoch."""

    first_at: float
    ask_at: float


class Logs:
    """Reads logs, and saves those of ended attempts to storage.

    `ray` returns Ray if it runs, without starting it. `adopt` takes over a Ray left behind by an earlier service, and
    returns whether there is one that is not ours yet.
    """

    def __init__(
        self, store: Store, ray: Callable[[], RayApi | None], adopt: Callable[[], bool] = lambda: False
    ) -> None:
        self._store, self._ray, self._adopt = store, ray, adopt
        self._storage, self._mark = store.storage, store.attempts.mark
        self._retry_at = 0.0  # of the storage
        self._writable_at = 0.0  # the last round that found the storage to take files
        self._unwritable: set[str] = set()  # submissions whose logs it does not take all the same
        self._refusals: dict[str, _Refusal] = {}  # by the submission's id
        self._to_forget: dict[str, float] = {}  # when Ray is to forget a submission, by its id

    def read(self, job_id: str, *, number: int | None = None) -> bytes:
        """Return the log of an attempt, by default the last. A long saved log is shortened by `bounded`.

        Raises NotFound where there is none, and says why; Unavailable while Ray has it and is silent.
        """
        attempt = self._store.attempts.one(job_id, number)
        silence: Unavailable | None = None
        try:
            if not attempt.log_kept and (ray := self._ray()) is not None and (log := self._log(ray, attempt)):
                return log
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
        """Return the last lines of an attempt's log, else the last line of Ray's own reason; empty if there is none.

        Lines are cut to `_MAX_LINE_CHARS` characters.
        """
        if (ray := self._ray()) is None:
            return ""
        try:
            attempt = self._store.attempts.one(job_id, number)
            log = self._log(ray, attempt, lines=num_lines + _BLANK_LINES).decode(errors="replace")
            lines = log.strip().splitlines()
            if not lines:  # the driver did not get as far as printing
                lines = self._reason(ray, attempt).strip().splitlines()[-1:]
            return "\n".join(line[:_MAX_LINE_CHARS] for line in lines[-num_lines:])
        except Unavailable:
            return ""

    def keep_ended(self, now: float) -> None:
        """Write the logs of ended attempts to storage, once their drivers have ended.

        If the storage refuses a log, it is tried again for ever; if Ray refuses it, for `_PATIENCE_S`, in which a Ray
        that does not answer at all does not count. Neither delays the logs of other attempts.
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
        """Write a log. Return whether it is done with.

        Raises Unavailable if the storage is not mounted, or accepts no files at all.
        """
        self._mark.require()
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
        """Delete drivers with saved logs from Ray, which otherwise keeps all of them, and lists them in one answer."""
        waits = partial(is_ahead, now=now, within_s=_ASK_AGAIN_S)
        for submission_id in [each for each, due in self._to_forget.items() if not waits(due)]:
            try:
                ray.delete(submission_id)
                del self._to_forget[submission_id]
            except Unavailable as error:  # such as one that is still being stopped
                self._to_forget[submission_id] = now + _ASK_AGAIN_S
                _log.warning("Ray keeps %s: %s", submission_id, error)

    def _whole(self, ray: RayApi, attempt: Attempt, *, now: float) -> bytes | None:
        """Return an attempt's log once it has ended, or the reason why there is none; None: not yet.

        Raises Unavailable if Ray does not answer at all.
        """
        first_at, ask_at = self._refusals.get(attempt.submission_id, (now, now))
        if attempt.ended_at is None or is_ahead(ask_at, now=now, within_s=_ASK_AGAIN_S):
            return None
        try:
            may_print = now < attempt.ended_at + _LAST_WORDS_S and ray.status(attempt.submission_id) in LIVE
            log = None if may_print else self._log(ray, attempt)
        except Unavailable as error:
            self._require_answer(ray)
            if now >= first_at + _PATIENCE_S:
                return self._parts(ray, attempt, error)
            self._refusals[attempt.submission_id] = _Refusal(min(first_at, now), now + _ASK_AGAIN_S)
            _log.warning("the log of %s is not kept yet: %s", attempt.submission_id, error)
            return None
        self._refusals.pop(attempt.submission_id, None)
        return log

    def _require_answer(self, ray: RayApi) -> None:
        """Raise Unavailable if Ray is away, and not a single log. Then no log has been refused so far."""
        try:
            ray.version()
        except Unavailable:
            self._refusals.clear()
            raise

    def _parts(self, ray: RayApi, attempt: Attempt, why: Unavailable) -> bytes:
        """Return what there is of a log that Ray does not give whole: what was saved before, and its last lines."""
        first = last = b""
        with suppress(NotFound):
            first = self._kept(attempt)
        with suppress(Unavailable):
            last = ending(self._log(ray, attempt, lines=_LAST_LINES), _TAIL_BYTES)[1]  # without a cut of their own
        if last and first.endswith(last):
            return first
        gap = f"[a part of this log is missing here: {why}]\n" if last else f"[this log ends here: {why}]\n"
        return continued(first, gap.encode() + last)

    def keep_all(self) -> None:
        """Save all logs that only Ray has, as far as they go, before Ray may end. Takes about `_STOP_S` at most."""
        ray = self._ray()
        if ray is None:
            return
        deadline = time.monotonic() + _STOP_S
        for attempt in self._store.attempts.without_log():
            try:
                if time.monotonic() > deadline:
                    raise Unavailable(f"Ray and the storage took more than {_STOP_S:g} s for those before it")
                self._mark.require()
                self._keep(attempt, self._log(ray, attempt))
            except (NotFound, Unavailable) as error:
                _log.warning("the log of %s is not kept: %s", attempt.submission_id, error)

    def _keep(self, attempt: Attempt, log: bytes) -> None:
        if log:
            self._storage.write(self._url(attempt), log)

    def _kept(self, attempt: Attempt) -> bytes:
        log = self._storage.open(attempt.job_id, self._url(attempt)).first(_MAX_KEPT_BYTES + 1)
        return log if len(log) <= _MAX_KEPT_BYTES else log[:_MAX_KEPT_BYTES] + _TOO_LONG

    def _log(self, ray: RayApi, attempt: Attempt, *, lines: int | None = None) -> bytes:
        """Return what `bounded` leaves of the log that Ray has, or of its last `lines`; raises Unavailable."""
        return bounded(_without(self._token(attempt).encode(), ray.log(attempt.submission_id, lines=lines)))

    def _reason(self, ray: RayApi, attempt: Attempt) -> str:
        return ray.reason(attempt.submission_id).replace(self._token(attempt), _TOKEN.decode())

    def _token(self, attempt: Attempt) -> str:
        # A model that prints its environment prints the attempt's token, too.
        return self._store.attempts.token(attempt.job_id, attempt.number)

    def _url(self, attempt: Attempt) -> str:
        return self._storage.log_url(attempt.job_id, attempt.number)


def _without(token: bytes, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `chunks` with `[token]` in place of `token`, which may lie across several of them."""
    rest = b""
    for chunk in chunks:
        *before, rest = (rest + chunk).split(token)
        end = max(0, len(rest) - len(token) + 1)  # behind it the token may have begun
        yield _TOKEN.join([*before, rest[:end]])
        rest = rest[end:]
    yield rest


def bounded(chunks: Iterable[bytes], *, head: int = _HEAD_BYTES, tail: int = _TAIL_BYTES) -> bytes:
    """Return a log, or of a longer one its first and last so many bytes, in whole lines, and what was cut between.

    It holds `head` + 2 `tail` bytes and a chunk at most, however long the log is.
    """
    first, last, num_bytes = b"", bytearray(), 0
    for chunk in chunks:
        num_bytes += len(chunk)
        missing = head - len(first)
        first += chunk[:missing]
        last += chunk[missing:]
        if len(last) > 2 * tail:
            del last[:-tail]
    if num_bytes <= head + tail:
        return first + last
    first = first[: first.rfind(b"\n") + 1]
    last = last[-tail:]
    last = last[last.find(b"\n") + 1 :]
    return _cut(first, last, num_bytes)


def _cut(first: bytes, last: bytes | bytearray, num_bytes: int) -> bytes:
    num_cut = num_bytes - len(first) - len(last)
    return first + f"[... {num_cut} bytes are cut here; the whole log had {num_bytes} ...]\n".encode() + last


def continued(log: bytes, more: bytes, *, head: int = _HEAD_BYTES, tail: int = _TAIL_BYTES) -> bytes:
    """Return what `bounded` leaves of a log that began with what it cut to `log`, and went on with `more`."""
    cut = _CUT.search(log)
    if cut is None:
        return bounded([log, more], head=head, tail=tail)
    last = log[cut.end() :] + more
    if len(last) >= tail:
        last = last[-tail:]
        last = last[last.find(b"\n") + 1 :]
    return _cut(log[: cut.start()], last, whole_length(log) + len(more))


def whole_length(log: bytes) -> int:
    """Return the length of the whole log that `bounded` cut to `log`. From that offset, `since` returns nothing."""
    cut = _CUT.search(log)
    return len(log) if cut is None else len(log) - len(cut[0]) + int(cut[1])


def since(log: bytes, offset: int) -> bytes:
    """Return the part after byte `offset` of the whole log that `bounded` cut to `log`."""
    cut = _CUT.search(log)
    if cut is None or offset <= cut.start():
        return log[offset:]
    num_cut = int(cut[1])
    behind = offset - cut.start() - num_cut  # bytes already read of the end
    return log[cut.end() + behind :] if behind >= 0 else log[cut.start() :]


def ending(log: bytes, num_bytes: int) -> tuple[int, bytes]:
    """Return the last lines of a log, at most `num_bytes` in all, and the offset at which `since` returns the same.

    If the last line is longer, its end is returned.
    """
    start = max(0, len(log) - num_bytes)
    if start:  # behind the first end of a line but the log's own
        start = log.find(b"\n", start - 1, len(log) - 1) + 1 or start
    cut = _CUT.search(log)
    if cut is None or start <= cut.start():
        return start, log[start:]
    start = max(start, cut.end())
    return start - cut.end() + cut.start() + int(cut[1]), log[start:]
