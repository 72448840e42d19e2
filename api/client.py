"""A blocking Python client of the HTTP API. `api.async_client` is the same for asyncio."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Concatenate, Self, Unpack

import httpx2

from api import calls, references
from api.calls import Call, JobFilters, Spec, T
from api.connection import BaseClient, Key, P, described_by, is_answer, read_event, request, with_self
from api.failures import UNSAYABLE, ApiError, Unreachable, unsayable
from api.jobs import Job
from api.retries import AWAY_S, PATIENCE_S, Patience
from api.waiting import POLL_S, Looks, SeveralJobs, all_of
from service.code_package import of_folder
from service.wire.artifacts import Which
from service.wire.base import MAX_PAGE
from service.wire.code import CodeView
from service.wire.events import Event, EventKind
from service.wire.jobs import JobSummary, JobView


def _blocking(describe: Callable[P, Call[T]]) -> "Callable[Concatenate[Client, P], T]":
    """Return a method that sends the call described by `describe`."""

    @wraps(describe)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(described_by(describe, *args, **kwargs))

    return with_self(method)


class Client(BaseClient):
    """A client of a Wiretune service, and a context manager. Every call may raise `ApiError` or `Unreachable`.

    A malformed key or URL raises one of them at once. If this release cannot read an answer, the call raises
    `api.calls.UnreadableAnswer`.

    Args:
        url: e.g. `http://127.0.0.1:8470`. Without a scheme it is `http` for this machine and `https` for any other.
            By default that of `WIRETUNE_URL`, or else of the service that runs on this machine.
        key: an API key, `wt_...`. Or the path of a file that contains it, also as `@FILE`, or a function that returns
            it: these are read again after a 401, so waits survive a rotation with a grace. By default the key in
            `WIRETUNE_API_KEY`, or in the file that `WIRETUNE_API_KEY_FILE` names, or of the service on this machine.
        timeout_s: timeout of one request. Calls that the service may work on for long wait for a minute at least:
            `report`, `comparison`, `snapshot`, `stages`, `artifacts`, `retry`, `extend` and `upload_code`. If there is
            no answer then, they are retried only with a `retry_s` of over a minute.
        retry_s: how long to retry a call while the service is away or too busy, if it is safe to repeat. A service
            that has never answered is not retried: the URL may be wrong. A 429 may extend this by up to a minute,
            once. 0 turns retries off.
        away_s: how long `wait`, `watch` and `events` keep trying while the service is away; at least `retry_s`. After
            20 s the logger `wiretune.client` warns.
    """

    def __init__(
        self,
        url: str | None = None,
        key: Key | None = None,
        *,
        timeout_s: float = 10.0,
        retry_s: float = PATIENCE_S,
        away_s: float = AWAY_S,
    ) -> None:
        super().__init__(url, key, timeout_s=timeout_s, retry_s=retry_s, away_s=away_s)
        self._http = httpx2.Client(**self._options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    validate = _blocking(calls.validate)
    methods = _blocking(calls.methods)
    predict = _blocking(calls.predict)
    jobs = _blocking(calls.jobs)
    trials = _blocking(calls.trials)
    stages = _blocking(calls.stages)
    metrics = _blocking(calls.metrics)
    recorded = _blocking(calls.recorded)
    attempts = _blocking(calls.attempts)
    schedule = _blocking(calls.schedule)
    report = _blocking(calls.report)
    comparison = _blocking(calls.comparison)
    snapshot = _blocking(calls.snapshot)
    artifacts = _blocking(calls.artifacts)
    logs = _blocking(calls.logs)
    pause = _blocking(calls.pause)
    resume = _blocking(calls.resume)
    stop = _blocking(calls.stop)
    stop_trial = _blocking(calls.stop_trial)
    cancel = _blocking(calls.cancel)
    retry = _blocking(calls.retry)
    extend = _blocking(calls.extend)
    steer = _blocking(calls.steer)
    steering = _blocking(calls.steering)
    clone = _blocking(calls.clone)
    edit = _blocking(calls.edit)
    delete = _blocking(calls.delete)
    me = _blocking(calls.me)
    create_key = _blocking(calls.create_key)
    keys = _blocking(calls.keys)
    key = _blocking(calls.key)
    rotate_key = _blocking(calls.rotate_key)
    revoke_key = _blocking(calls.revoke_key)
    audit = _blocking(calls.audit)
    cluster = _blocking(calls.cluster)
    queue = _blocking(calls.queue)
    quotas = _blocking(calls.quotas)
    set_quota = _blocking(calls.set_quota)
    edit_quota = _blocking(calls.edit_quota)
    delete_quota = _blocking(calls.delete_quota)
    code = _blocking(calls.code)
    list_code = _blocking(calls.list_code)
    delete_code = _blocking(calls.delete_code)

    def submit(self, spec: Spec, *, idempotency_key: str | None = None, source: str | None = None) -> Job:
        """Queue a job. Repeated calls with the same `idempotency_key` make one job.

        If the job is a clone, `source` is the id of the original.
        """
        return Job(self, self.send(calls.submit(spec, idempotency_key=idempotency_key, source=source)))

    def job(self, job_id: str) -> Job:
        """Return one job."""
        return Job(self, self.send(calls.job(job_id)))

    def find(self, ref: str) -> str:
        """Return the id of the job that `ref` means. A whole id costs no request.

        `ref` is `latest`, the beginning or end of an id, or a job's whole name. A part of an id has four characters or
        more, with or without `job-`, and must fit one job only. `latest` is the newest job of the key's owner in the
        key's project. Raises `UnknownJob` if no job fits, or more than one.
        """
        if references.WHOLE_ID.fullmatch(ref):
            return ref
        if ref == "latest":
            me = self.send(calls.me())
            if own := self.send(calls.newest(me)).jobs:
                return own[0].id
            raise references.without_own(me, self.send(calls.newest()))
        return references.only(ref, self.send(calls.candidates(ref, limit=references.NUM_CANDIDATES)))

    def upload_code(self, folder: str | Path, *, exclude: str | Sequence[str] = ()) -> str:
        """Upload a folder of Python code and return its digest, for a job's `workload.code`.

        Nothing is sent if this client's project already has it. Version histories, caches and virtual environments are
        left out, and so is what matches `exclude`: a pattern such as `data` or `*.csv`, or several. Raises
        `CodeRefused` (a `ValueError`) if the folder is not a valid package.
        """
        package = of_folder(Path(folder), exclude)
        try:
            if self.send(calls.code(package.digest)).project == self.send(calls.me()).project:
                return package.digest
        except ApiError as error:
            if error.status != 404:
                raise
        return self.send(calls.upload_code(package)).digest

    def sign_in_link(self, job_id: str | None = None) -> str:
        """Return a link that signs one browser in to the job's page, or to the list; works once, for five minutes."""
        return self._link(self.send(calls.sign_in_code()), job_id)

    def events(
        self, job_id: str | None = None, *, after: int | None = None, kinds: Collection[EventKind] = ()
    ) -> Iterator[Event]:
        """Yield the events of one job or of all, from now on or from behind the event `after`; never ends by itself.

        A lost connection is reopened without losing or repeating an event. An event of kind `gap` says that the
        service no longer has all events behind `after`: take a `snapshot`, and go on from there.
        Raises `Unreachable` or `ApiError` once the service has not answered for `away_s`.
        """
        failures = self._stream_failures(calls.events(job_id, after=after, kinds=kinds))
        while True:
            pause_s = POLL_S
            try:
                for text, newest in self._stream(calls.events(job_id, after=after, kinds=kinds)):
                    after = newest
                    failures.end()
                    if text:
                        yield read_event(text.encode())
            except (ApiError, Unreachable) as error:
                pause_s = max(pause_s, failures.pause_s(error))
            time.sleep(pause_s)

    def _stream(self, call: Call[Any]) -> Iterator[tuple[str, int]]:
        """Yield each event's text and the id to resume from; the text of a keep-alive is empty."""
        try:
            with self._http.stream(call.method, call.path, **self._stream_options(call)) as response:
                if not is_answer(call, response):
                    response.read()
                for event in httpx2.EventSource(self._checked(call, response)):
                    yield event.data, int(event.id)
        except httpx2.HTTPError as error:
            raise self._unreachable(call, error) from error
        except UNSAYABLE as error:
            raise unsayable(error) from error

    def iter_jobs(self, **filters: Unpack[JobFilters]) -> Iterator[JobSummary]:
        """Yield every job, newest first, page by page; takes the `filters` and `order_by` of `jobs`."""
        cursor: str | None = None
        while True:
            page = self.jobs(**filters, limit=MAX_PAGE, cursor=cursor)
            yield from page.jobs
            if (cursor := page.next_cursor) is None:
                return

    def iter_code(self) -> Iterator[CodeView]:
        """Yield every package of code that this client can see, newest first, page by page."""
        cursor: str | None = None
        while True:
            page = self.list_code(limit=MAX_PAGE, cursor=cursor)
            yield from page.packages
            if (cursor := page.next_cursor) is None:
                return

    def save_weights(
        self, job_id: str, out: BinaryIO, *, arm: str | None = None, seed: int | None = None, which: Which | None = None
    ) -> None:
        """Write a trial's safetensors file to `out`; by default of a sweep's best trial, else the first arm and seed.

        The `arm` `best` means the best trial.

        `which` chooses the best evaluated state or the last one. None follows the job's `checkpoint.export`.
        """
        self.save(calls.weights(job_id, arm=arm, seed=seed, which=which), out)

    def save_metrics(
        self,
        job_id: str,
        out: BinaryIO,
        *,
        arm: str | None = None,
        seed: int | None = None,
        name: str | None = None,
        first_step: int | None = None,
    ) -> None:
        """Write every point to `out` as CSV, by default of all trials, all series and all steps."""
        self.save(calls.table(job_id, arm=arm, seed=seed, name=name, first_step=first_step), out)

    def save_file(self, job_id: str, path: str, out: BinaryIO) -> None:
        """Write a file of the job's folder on storage to `out`: a checkpoint's manifest, or a file that it names."""
        self.save(calls.file(job_id, path), out)

    def save_code(self, digest: str, out: BinaryIO, *, project: str | None = None) -> None:
        """Write the files of a package of code to `out`, as a zip. For `project` see `delete_code`."""
        self.save(calls.code_content(digest, project=project), out)

    def watch(self, job_id: str, *, timeout_s: float | None = None, poll_s: float | None = None) -> Iterator[JobView]:
        """Yield the job at once and then every `poll_s` seconds; the last one is in its terminal state.

        By default the pause grows with the time waited, from 0.5 s to 5 s. It is also at least four times as long as
        the last poll and the caller's own work took, up to 10 s. Raises `TimeoutError` after `timeout_s`.
        """
        looks = Looks(timeout_s, poll_s)
        while True:
            view = self.send(calls.job(job_id), within_s=looks.begin(), is_waiting=True)
            yield view
            if view.is_over:
                return
            time.sleep(looks.pause_s(f"job {job_id} was"))

    def wait(self, job_id: str, *, timeout_s: float | None = None, poll_s: float | None = None) -> JobView:
        """Return the job once it is over. Raises `TimeoutError` after `timeout_s`."""
        for view in self.watch(job_id, timeout_s=timeout_s, poll_s=poll_s):
            last = view
        return last

    def wait_all(
        self, job_ids: Iterable[str], *, timeout_s: float | None = None, poll_s: float | None = None
    ) -> tuple[JobSummary, ...]:
        """Wait until all jobs are over, in whatever state, and return them in the order of their ids.

        A poll is one request per 200 jobs. For `poll_s` see `watch`. Raises `UnknownJob` if one of them does not exist,
        and `TimeoutError` after `timeout_s`.
        """
        several, looks = SeveralJobs(job_ids), Looks(timeout_s, poll_s)
        while True:
            within_s = looks.begin()
            for ids in several.pages():
                several.take(ids, self.send(all_of(ids), within_s=within_s, is_waiting=True))
            if several.are_over:
                return several.jobs
            time.sleep(looks.pause_s(several.told))

    def send(self, call: Call[T], *, within_s: float = math.inf, is_waiting: bool = False) -> T:
        """Send a call, retry it if that is safe, and return its answer.

        Calls retry for `retry_s` while the service is away, and for `away_s` if the caller `is_waiting` for a job.
        """
        if call.known is not None:
            return call.known
        response = self._answer(call, self._patience(call, within_s, is_waiting=is_waiting))
        return call.answer(response.content, response.headers)

    def save(self, call: Call[Any], out: BinaryIO) -> None:
        """Write a call's answer to `out` as it arrives. Raises DamagedDownload if its SHA-256 does not match.

        If the connection breaks and `out` can seek, the download resumes, or restarts if the file has changed. It
        retries for `retry_s` from a break on. Progress beyond the previous breaks renews that time.
        """
        file = self._file(call, out)
        while True:
            try:
                with closing(self._answer(file.call, self._patience(file.call), stream=True)) as response:
                    file.begin(response)
                    for chunk in response.iter_bytes():
                        file.write(chunk)
                return file.check()
            except httpx2.HTTPError as error:
                time.sleep(file.pause_s(self._unreachable(call, error)))

    def _answer(self, call: Call[Any], patience: Patience, *, stream: bool = False) -> httpx2.Response:
        while True:
            try:
                return self._try(call, stream=stream)
            except (ApiError, Unreachable) as error:
                time.sleep(patience.pause_s(error))

    def _try(self, call: Call[Any], *, stream: bool) -> httpx2.Response:
        try:
            response = self._http.send(request(self._http, call), stream=stream)
            if not is_answer(call, response):
                response.read()
        except httpx2.HTTPError as error:
            raise self._unreachable(call, error) from error
        return self._checked(call, response)
