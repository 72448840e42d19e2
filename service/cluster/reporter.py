"""The cluster's client of the API: it posts records in order, exactly once, and receives control requests."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from search.types import Steer
from service.wire.records import (
    Acknowledgement,
    AnyRecord,
    AttemptBrief,
    Batch,
    Checkpointed,
    Control,
    Lease,
    MetricPoints,
    Searched,
    StageClosed,
)

#: Seconds after which records are sent at the latest. An idle stream asks for control requests every `IDLE_S`.
GATHER_S = 0.25
IDLE_S = 2.0
MAX_BATCH, MAX_BATCH_POINTS = 200, 20_000
RETRY_S = (0.2, 0.5, 1.0, 2.0, 5.0)
TIMEOUT_S = 10.0  # per request
#: How long a driver retries to get its brief, if an older service submitted it and has not said.
BRIEF_S = 60.0
#: The media type of the API's own refusals, and their status codes that may pass: a slow body, or too many calls.
_PROBLEM, _PASSING = "application/problem+json", (408, 429)
#: A trial with more unsent records than this waits, so that memory is bounded.
MAX_WAITING = 20_000


Answer = TypeVar("Answer")
Told = TypeVar("Told", bound=BaseModel)


class Stopped(Exception):
    """The run must end: its user asked for it, another attempt owns the job, or the API was silent for too long."""

    def __init__(self, control: Control, reason: str) -> None:
        self.control, self.reason = control, reason
        super().__init__(reason)


class Door:
    """The HTTP calls of one attempt, with the attempt's token."""

    def __init__(self, *, api_url: str, job_id: str, attempt: int, token: str) -> None:
        self.job_id, self.attempt = job_id, attempt
        self._http = httpx2.Client(
            base_url=f"{api_url}/v1/attempts/{job_id}/{attempt}",
            headers={"Authorization": f"Bearer {token}"},
            # A transport of its own ignores the node's HTTP_PROXY, which is for the Internet: the API is beside the
            # cluster. Unlike `trust_env=False`, it still reads SSL_CERT_FILE.
            transport=httpx2.HTTPTransport(),
        )

    @classmethod
    def from_environment(cls) -> "Door":
        """Connect as the reconciler set in this process's environment."""
        return cls(
            api_url=os.environ["WIRETUNE_API_URL"],
            job_id=os.environ["WIRETUNE_JOB"],
            attempt=int(os.environ["WIRETUNE_ATTEMPT"]),
            token=os.environ["WIRETUNE_TOKEN"],
        )

    def brief(self, *, max_silence_s: float = BRIEF_S) -> AttemptBrief:
        """Ask for the brief.

        Raises `Stopped` if this attempt does not own the job, the API is silent for longer, or another release wrote
        the brief and this one cannot read it.
        """
        return _insist(lambda: self._answer(AttemptBrief, "GET", "", None), for_s=max_silence_s)

    def post(self, batch: Batch) -> Acknowledgement:
        return self._answer(Acknowledgement, "POST", "/records", batch.model_dump_json())

    def renew(self, *, held_s: float, timeout_s: float) -> Acknowledgement:
        body = Lease(held_s=held_s).model_dump_json()
        return self._answer(Acknowledgement, "POST", "/lease", body, timeout_s=timeout_s)

    def close(self) -> None:
        self._http.close()

    def _answer(
        self, kind: type[Told], method: str, path: str, body: str | None, *, timeout_s: float = TIMEOUT_S
    ) -> Told:
        headers = {"Content-Type": "application/json"} if body else None
        response = self._http.request(method, path, content=body, headers=headers, timeout=timeout_s)
        if _is_final(response):  # the attempt is over, or at fault: the API would say so again
            raise Stopped(Control.FENCED, f"the API refuses this attempt: {_detail(response)}")
        response.raise_for_status()
        try:
            return kind.model_validate_json(response.content, extra="ignore")  # a newer service may say more
        except ValidationError as error:
            if _document(response).get("job_id") == self.job_id:  # the API's own brief: it would send the same again
                raise Stopped(Control.FENCED, f"this release cannot read the brief: {_first(error)}") from error
            # A proxy's page, or an acknowledgement of another release, counts as no answer.
            raise httpx2.DecodingError(f"this is no answer of the API: {error}", request=response.request) from error


def _is_final(response: httpx2.Response) -> bool:
    """Return whether the API itself refuses for good. A proxy's refusal may pass, and so may a timeout."""
    is_own = response.headers.get("Content-Type", "").partition(";")[0].strip() == _PROBLEM
    return is_own and response.is_client_error and response.status_code not in _PASSING


def _detail(response: httpx2.Response) -> str:
    return str(_document(response).get("detail") or f"HTTP {response.status_code}")


def _document(response: httpx2.Response) -> dict[str, Any]:
    """Return the answer's JSON object; empty if it is none."""
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}"


class Reporter:
    """One stream of records, sent by its own thread during training.

    `report` returns at once; `flush` returns when everything is stored. Both raise `Stopped` once the API has
    said `cancel` or `fenced`, or has said nothing for `max_silence_s`.
    """

    def __init__(
        self,
        door: Door,
        stream: str,
        *,
        max_silence_s: float,
        steers: tuple[Steer, ...] = (),
        asked: Control = Control.RUN,
    ) -> None:
        self._steers, self._asked = steers, asked
        self._door, self._stream, self._max_silence_s = door, stream, max_silence_s
        self._waiting: deque[AnyRecord] = deque()
        self._sending: tuple[AnyRecord, ...] = ()
        self._sequence = 0
        self._stopped: Stopped | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._num_flushing = 0
        self._thread = threading.Thread(target=self._run, name=f"reporter-{stream}", daemon=True)
        self._thread.start()

    def report(self, *records: AnyRecord) -> None:
        """Queue `records`. Without records, only check that the run may go on."""
        with self._changed:
            self._wait_for(lambda: len(self._waiting) < MAX_WAITING)
            if any(isinstance(record, Searched) for record in records):  # the newest says all, and they are large
                self._waiting = deque(record for record in self._waiting if not isinstance(record, Searched))
            self._waiting.extend(records)

    def flush(self, *records: AnyRecord) -> None:
        """Queue `records` and wait until these and all earlier ones are stored."""
        self.report(*records)
        with self._changed:
            self._num_flushing += 1
            self._changed.notify_all()
            try:
                self._wait_for(lambda: not (self._waiting or self._sending))
            finally:
                self._num_flushing -= 1

    def is_clear(self) -> bool:
        """Return whether the API has stored the last record that a resume needs. Later records may still wait."""
        with self._changed:
            under_way = (*self._sending, *self._waiting)
            return not any(isinstance(record, Checkpointed | StageClosed | Searched) for record in under_way)

    def asked(self) -> Control:
        """Return the API's last control request: `run`, or `pause` or `stop`, which leave time to report."""
        return self._asked

    def steers(self) -> tuple[Steer, ...]:
        """Return the steers of the API's last answer."""
        return self._steers

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait while holding the lock. The sending thread ends the wait, after `max_silence_s` at the latest."""
        while not (self._stopped or is_so()):
            self._changed.wait(timeout=1.0)
            if not self._thread.is_alive():
                raise RuntimeError(f"the thread that reports `{self._stream}` has died; see the log")
        if self._stopped:
            raise self._stopped

    def close(self) -> None:
        """End the thread. It first sends the waiting records, if the API answers."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(self._is_due, timeout=GATHER_S)
                if self._stopped or (self._closing and not self._waiting):
                    return
                self._sending = batch = self._take()
            if batch or time.monotonic() - idle_since > IDLE_S:
                self._deliver(batch)
                idle_since = time.monotonic()

    def _is_due(self) -> bool:
        """Return whether the waiting records are sent at once, without gathering more."""
        is_awaited = self._num_flushing > 0 and len(self._waiting) > 0
        return self._closing or is_awaited or len(self._waiting) >= MAX_BATCH

    def _take(self) -> tuple[AnyRecord, ...]:
        """Take the next batch while holding the lock. It is small enough for the API, also after an outage."""
        batch: list[AnyRecord] = []
        num_points = 0
        while self._waiting and len(batch) < MAX_BATCH:
            record = self._waiting[0]
            num_points += len(record.steps) if isinstance(record, MetricPoints) else 0
            if batch and num_points > MAX_BATCH_POINTS:
                break
            batch.append(self._waiting.popleft())
        return tuple(batch)

    def _deliver(self, records: tuple[AnyRecord, ...]) -> None:
        self._sequence += 1
        batch = Batch(stream=self._stream, sequence=self._sequence, records=records)
        stopped = None
        try:
            answer = _insist(lambda: self._door.post(batch), for_s=self._max_silence_s)
            if answer.control in (Control.CANCEL, Control.FENCED):
                stopped = Stopped(answer.control, f"told to {answer.control}")
            elif answer.sequence != batch.sequence:  # the batch passed for another process's, and was dropped
                others = f"batch {answer.sequence} of `{self._stream}` came from another process of this attempt"
                stopped = Stopped(Control.FENCED, others)
            else:
                # A stop stays in force: a sample told to end at a rung may roll back to before that rung.
                is_stopping = self._asked is Control.STOP and answer.control is Control.RUN
                self._asked = Control.STOP if is_stopping else answer.control
                self._steers = answer.steers
        except Stopped as told:
            stopped = told
        with self._changed:
            self._sending, self._stopped = (), stopped
            self._changed.notify_all()


def _insist(call: Callable[[], Answer], *, for_s: float) -> Answer:
    """Repeat `call` while the API is silent, for at most `for_s` seconds."""
    started, failures = time.monotonic(), 0
    while True:
        try:
            return call()
        except httpx2.HTTPError as error:
            if stopped := _given_up(error, time.monotonic() - started, for_s):
                raise stopped from error
            time.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1


def _given_up(error: httpx2.HTTPError, silent_s: float, max_silence_s: float) -> Stopped | None:
    """Return a `Stopped` if the API was silent for too long, else None."""
    if silent_s <= max_silence_s:
        return None
    return Stopped(Control.FENCED, f"the API has not answered for {silent_s:.0f} s: {error}")


class LeaseKeeper:
    """Renews the attempt's lease from a timer. Calls `on_loss` once if the attempt must end.

    It asks every `renew_s`, or every 2 `renew_s` while the API hangs. Both are shorter than a lease: after an outage of
    any length, the API hears of the attempt before it judges the first lease. Each renewal says how long this process
    has lived, for the job's limit.
    """

    def __init__(self, door: Door, *, renew_s: float, max_silence_s: float, on_loss: Callable[[Stopped], None]) -> None:
        self._door, self._renew_s, self._max_silence_s = door, renew_s, max_silence_s
        self._on_loss = on_loss
        self._began = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        heard = time.monotonic()
        while not self._done.wait(self._renew_s):
            try:
                answer = self._door.renew(held_s=time.monotonic() - self._began, timeout_s=self._renew_s)
            except httpx2.HTTPError as error:
                stopped = _given_up(error, time.monotonic() - heard, self._max_silence_s)
            except Stopped as told:
                stopped = told
            else:
                heard, stopped = time.monotonic(), None
                if answer.control is Control.FENCED:
                    stopped = Stopped(Control.FENCED, "told to stop: another attempt owns the job")
            if stopped is not None:
                self._on_loss(stopped)
                return
