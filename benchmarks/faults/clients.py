"""Users of a service that is being killed: they submit all the time, insist, and remember what was acknowledged."""

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from faults.live import LiveService, insist

from api.failures import ApiError
from service.job.states import TERMINAL
from service.wire.jobs import JobView

#: What all jobs share. The link paces them without taking the machine's cores; the budget in steps makes them exact.
_COMMON: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "link": {"mode": "emulate", "mbps": 100, "latency_ms": 10},
    "checkpoint": {"every_seconds": 2},
    "budget": {"steps": 500},
}
#: Jobs of a family are equal, so their weights and losses must be.
FAMILIES: dict[str, dict[str, Any]] = {
    "dense": _COMMON | {"controller": {"kind": "fixed"}},
    "searched": _COMMON
    | {"exchange": {"kind": "threshold", "density": [0.003, 0.1]}, "budget": {"steps": 500, "bytes": 10**12}},
    "powersgd": _COMMON
    | {"exchange": {"kind": "powersgd"}, "controller": {"kind": "fixed"}, "optimizer": {"kind": "adamw"}},
}
_PAUSE_S = 0.2  # between two submissions
_SEND_AGAIN = 0.1  # share of submissions that are sent once more after their answer
KEY_LABEL = "key"  # the label that repeats a job's Idempotency-Key


@dataclass
class Book:
    """The jobs that the users know of. Mutable."""

    sent: int = 0  # keys of which a submission was tried
    acknowledged: dict[str, str] = field(default_factory=dict)  # job by key
    contradicted: list[str] = field(default_factory=list)  # keys that were answered with another job later
    runs: dict[str, str] = field(default_factory=dict)  # family by job, of those that are to train


class Clients:
    """Keeps `num_running` jobs under way, and submits others that it cancels at once, from a thread of its own."""

    def __init__(self, service: LiveService, *, num_running: int, seed: int) -> None:
        self.book = Book()
        self._service, self._num_running, self._random = service, num_running, random.Random(seed)
        self._open: set[str] = set()
        self._done, self.failure = threading.Event(), ""
        self._thread = threading.Thread(target=self._run, name="clients", daemon=True)

    def run_undisturbed(self, *, timeout_s: float) -> None:
        """Have one job of each family run undisturbed: the others are compared with them."""
        for family in FAMILIES:
            self._submit(family)
        self.wait_for_all(timeout_s=timeout_s)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop submitting; raises RuntimeError if the thread came to an end before."""
        self._done.set()
        self._thread.join(180)
        if self.failure or self._thread.is_alive():
            raise RuntimeError(f"the clients failed: {self.failure or 'they hang'}")

    def wait_for_all(self, *, timeout_s: float) -> list[JobView]:
        """Return the jobs that are not over after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (views := self._unfinished()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return views

    def _run(self) -> None:
        try:
            while not self._done.wait(_PAUSE_S):
                self._submit_and_cancel()
                if len(self._unfinished()) < self._num_running:
                    self._submit(self._random.choice(sorted(FAMILIES)))
        except Exception as error:  # told by `stop`, in the thread that can react
            self.failure = repr(error)

    def _unfinished(self) -> list[JobView]:
        with self._service.client() as client:
            views = [insist(lambda job=job: client.job(job).view) for job in sorted(self._open)]
        left = [view for view in views if view.state not in TERMINAL]
        self._open -= {view.id for view in views} - {view.id for view in left}
        return left

    def _submit(self, family: str) -> str:
        key = f"{family}-{self.book.sent}"
        self.book.sent += 1
        spec = FAMILIES[family] | {"name": family, "labels": {KEY_LABEL: key}}
        with self._service.client() as client:
            job = insist(lambda: client.submit(spec, idempotency_key=key)).id
            self.book.acknowledged[key] = job
            self.book.runs[job] = family
            self._open.add(job)
            if self._random.random() < _SEND_AGAIN:
                self._send_again(client, spec, key)
        return job

    def _submit_and_cancel(self) -> None:
        key = f"cancelled-{self.book.sent}"
        self.book.sent += 1
        spec = FAMILIES["dense"] | {"name": "cancelled", "labels": {KEY_LABEL: key}}
        with self._service.client() as client:
            job = insist(lambda: client.submit(spec, idempotency_key=key)).id
            self.book.acknowledged[key] = job
            if self._random.random() < _SEND_AGAIN:
                self._send_again(client, spec, key)
            insist(lambda: self._cancel(client, job))

    def _send_again(self, client: Any, spec: dict[str, Any], key: str) -> None:
        again = insist(lambda: client.submit(spec, idempotency_key=key)).id
        if again != self.book.acknowledged[key]:
            self.book.contradicted.append(key)

    def _cancel(self, client: Any, job: str) -> None:
        try:
            client.cancel(job)
        except ApiError as error:
            if error.status != 409:  # a cancel whose answer was lost has been done
                raise
