"""Calls beside each other: some at a time, or one that may never return."""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, wait
from typing import TypeVar

from service.errors import Unavailable
from service.log_lines import log_fields

_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


def side_by_side(pool: Executor, acts: Mapping[str, Callable[[], None]]) -> None:
    """Call each act of a job, by its id; many can share what they wait for: Ray, and the database's writes.

    An act that fails leaves the others alone, and the round goes on. Raises Unavailable where one did, after all.
    """
    calls = [pool.submit(_guarded, job_id, act) for job_id, act in acts.items()]
    wait(calls)
    for call in calls:
        call.result()


def _guarded(job_id: str, act: Callable[[], None]) -> None:
    try:
        act()
    except Unavailable:  # the database: it is so for all
        raise
    except Exception:
        with log_fields(job=job_id):
            _log.exception("the turn of job %s failed; the others have theirs, and it has the next", job_id)


def in_background(act: Callable[[], Answer], *, name: str) -> "Future[Answer]":
    """Call `act` in a thread that keeps no process from ending, should it never return."""
    future: Future[Answer] = Future()

    def call() -> None:
        try:
            future.set_result(act())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=call, name=f"wiretune-{name}", daemon=True).start()
    return future
