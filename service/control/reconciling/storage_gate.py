"""Let attempts begin only if the storage accepts their files, without waiting for a storage that hangs."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from service.control.moments import is_ahead
from service.control.queue.queued import Waiting
from service.control.reconciling import calls
from service.control.store import Store
from service.errors import NotFound, Unavailable

_log = logging.getLogger(__name__)
_AGAIN_S = 10.0  # between two checks for a refused job; others may use its room meanwhile
_FRESH_S = 2 * _AGAIN_S  # no attempt begins on an older answer


class Postponement(NamedTuple):
    """Why a job's next attempt may not begin, and until when: seconds since the epoch."""

    reason: str
    until: float


@dataclass
class _Question:
    """A check of the storage for a job's next attempt, and its answer."""

    attempt: int  # the last one
    at_once: int  # its trials that write checkpoints side by side
    before: str  # the answer to the question before this one
    answer: str | None = None  # why it is refused; empty: it may begin; None: the storage has not answered
    until: float = 0.0  # how long the answer is valid, in seconds since the epoch

    def is_out_of_date(self, at_once: int, *, now: float) -> bool:
        if self.answer is None:
            return False
        return (self.answer == "" and at_once > self.at_once) or not is_ahead(self.until, now=now, within_s=_FRESH_S)


class StorageGate:
    """Checks the storage for jobs that are about to begin, all at once. Mutable: it keeps the answers.

    The storage may hang, and a network folder may hang for ever. It is checked in its own thread, one check at a time.
    A round waits only briefly. Until there is an answer, the jobs are refused.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._questions: dict[str, _Question] = {}  # by job
        self._asked: calls.Background[dict[str, str]] | None = None  # the question under way: of these jobs
        self._asked_for: dict[str, _Question] = {}

    def ask(self, jobs: Iterable[tuple[Waiting, int]], *, now: float) -> None:
        """Check the storage for jobs, each with its number of concurrent trials. Briefly waits for unknown answers."""
        for job, at_once in jobs:
            if not (job.attempt or self._store.storage.is_folder):  # the first one tells what else may be wrong
                continue
            known = self._questions.get(job.job_id)
            if known is None or known.attempt != job.attempt:
                self._questions[job.job_id] = _Question(job.attempt, at_once, before="")
            elif known.is_out_of_date(at_once, now=now):
                self._questions[job.job_id] = _Question(job.attempt, at_once, before=known.answer or known.before)
        while self._is_free(now=now):
            self._asked_for = {job_id: each for job_id, each in self._questions.items() if each.answer is None}
            if not self._asked_for:
                return
            self._asked = calls.Background(partial(self._answers, dict(self._asked_for)), name="storage")

    def _is_free(self, *, now: float) -> bool:
        """Take the answers of the current check, if they come in time. Return whether no check is running any more."""
        if self._asked is None:
            return True
        if not self._asked.has_ended(patience_s=calls.PATIENCE_S):
            return False
        asked, self._asked = self._asked, None
        answers = asked.answer()
        for job_id, question in self._asked_for.items():
            holds_s = (_AGAIN_S if answers[job_id] else _FRESH_S) - asked.age_s  # no round may have come for it
            if holds_s > 0:  # else it is asked again
                question.answer, question.until = answers[job_id], now + holds_s
        return True

    def refusals(self, waiting: Iterable[Waiting], *, now: float) -> dict[str, Postponement]:
        """Return the refusals of the waiting jobs, by job, and forget the checks for all others."""
        known, self._questions = self._questions, {}
        if known:
            self._questions = {job.job_id: known[job.job_id] for job in waiting if job.job_id in known}
        return {job_id: found for job_id in self._questions if (found := self.refusal(job_id, now=now))}

    def refusal(self, job_id: str, *, now: float) -> Postponement | None:
        """Return why the next attempt of a checked job may not begin; None if it may."""
        question = self._questions.get(job_id)
        if question is None:
            return None
        if question.answer is None:
            silent = f"the storage at {self._store.storage.root} does not answer: check WIRETUNE_STORAGE_URL"
            return Postponement(question.before or silent, now + _AGAIN_S)
        return Postponement(question.answer, question.until) if question.answer else None

    def _answers(self, questions: Mapping[str, _Question]) -> dict[str, str]:
        """Check the storage, and return the answer for each job."""
        if refused := _refused(self._store.attempts.mark.require):
            return dict.fromkeys(questions, refused)
        if any(each.attempt for each in questions.values()):  # the last one may have been lost to the storage
            refused = _refused(self._store.storage.require_writable)
        return {
            job_id: (refused or _refused(partial(self._require_room, job_id, each))) if each.attempt else ""
            for job_id, each in questions.items()
        }

    def _require_room(self, job_id: str, question: _Question) -> None:
        """Raise Unavailable if the disk has no room for a job's next checkpoints."""
        attempts, storage = self._store.attempts, self._store.storage
        with suppress(NotFound):  # it was cancelled and deleted in the meantime
            if attempts.of_job(job_id)[-1].outcome == "failed":  # one that was paused has the room it had
                storage.require_room(job_id, attempts.last_checkpoints(job_id), at_once=question.at_once)


def _refused(require: Callable[[], None]) -> str:
    """Return why the storage refuses a job's requirement; empty if it does not."""
    try:
        require()
    except Unavailable as error:
        return str(error)
    except Exception as error:  # of one job: the others have their answers
        _log.exception("a question to the storage failed; it is asked again")
        return f"the storage failed: {type(error).__name__}: {error}"
    return ""
