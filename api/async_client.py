"""A Python client of the HTTP API for asyncio, the twin of `api.client`."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Concatenate, Self, Unpack

import httpx2

from api import calls, references
from api.calls import Call, JobFilters, Spec, T
from api.connection import BaseClient, Key, P, described_by, is_answer, read_event, request, with_self
from api.failures import UNSAYABLE, ApiError, Unreachable, unsayable
from api.jobs import AsyncJob
from api.retries import AWAY_S, PATIENCE_S, Patience
from api.waiting import POLL_S, Looks, SeveralJobs, all_of
from service.code_package import of_folder
from service.wire.artifacts import Which
from service.wire.base import MAX_PAGE
from service.wire.code import CodeView
from service.wire.events import Event, EventKind
from service.wire.jobs import JobSummary, JobView


def _awaited(describe: Callable[P, Call[T]]) -> "Callable[Concatenate[AsyncClient, P], Awaitable[T]]":
    """Return an async method that sends the call described by `describe`."""

    @wraps(describe)
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(described_by(describe, *args, **kwargs))

    return with_self(method)


class AsyncClient(BaseClient):
    """A client of a Wiretune service for asyncio, and an asynchronous context manager.

    It takes the arguments of `Client`, and its methods do the same.
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
        self._http = httpx2.AsyncClient(**self._options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    validate = _awaited(calls.validate)
    methods = _awaited(calls.methods)
    predict = _awaited(calls.predict)
    jobs = _awaited(calls.jobs)
    trials = _awaited(calls.trials)
    stages = _awaited(calls.stages)
    metrics = _awaited(calls.metrics)
    recorded = _awaited(calls.recorded)
    attempts = _awaited(calls.attempts)
    schedule = _awaited(calls.schedule)
    report = _awaited(calls.report)
    comparison = _awaited(calls.comparison)
    snapshot = _awaited(calls.snapshot)
    artifacts = _awaited(calls.artifacts)
    logs = _awaited(calls.logs)
    pause = _awaited(calls.pause)
    resume = _awaited(calls.resume)
    stop = _awaited(calls.stop)
    stop_trial = _awaited(calls.stop_trial)
    cancel = _awaited(calls.cancel)
    retry = _awaited(calls.retry)
    extend = _awaited(calls.extend)
    steer = _awaited(calls.steer)
    steering = _awaited(calls.steering)
    clone = _awaited(calls.clone)
    edit = _awaited(calls.edit)
    delete = _awaited(calls.delete)
    me = _awaited(calls.me)
    create_key = _awaited(calls.create_key)
    keys = _awaited(calls.keys)
    key = _awaited(calls.key)
    rotate_key = _awaited(calls.rotate_key)
    revoke_key = _awaited(calls.revoke_key)
    audit = _awaited(calls.audit)
    cluster = _awaited(calls.cluster)
    queue = _awaited(calls.queue)
    quotas = _awaited(calls.quotas)
    set_quota = _awaited(calls.set_quota)
    edit_quota = _awaited(calls.edit_quota)
    delete_quota = _awaited(calls.delete_quota)
    code = _awaited(calls.code)
    list_code = _awaited(calls.list_code)
    delete_code = _awaited(calls.delete_code)

    async def submit(self, spec: Spec, *, idempotency_key: str | None = None, source: str | None = None) -> AsyncJob:
        """As `Client.submit`."""
        return AsyncJob(self, await self.send(calls.submit(spec, idempotency_key=idempotency_key, source=source)))

    async def job(self, job_id: str) -> AsyncJob:
        """Return one job."""
        return AsyncJob(self, await self.send(calls.job(job_id)))

    async def find(self, ref: str) -> str:
        """Return the id of the job that `ref` means. A whole id costs no request.

        `ref` is `latest`, the beginning or end of an id, or a job's whole name. A part of an id has four characters or
        more, with or without `job-`, and must fit one job only. `latest` is the newest job of the key's owner in the
        key's project. Raises `UnknownJob` if no job fits, or more than one.
        """
        if references.WHOLE_ID.fullmatch(ref):
            return ref
        if ref == "latest":
            me = await self.send(calls.me())
            if own := (await self.send(calls.newest(me))).jobs:
                return own[0].id
            raise references.without_own(me, await self.send(calls.newest()))
        return references.only(ref, await self.send(calls.candidates(ref, limit=references.NUM_CANDIDATES)))

    async def upload_code(self, folder: str | Path, *, exclude: str | Sequence[str] = ()) -> str:
        """As `Client.upload_code`."""
        package = await asyncio.to_thread(of_folder, Path(folder), exclude)
        try:
            if (await self.send(calls.code(package.digest))).project == (await self.send(calls.me())).project:
                return package.digest
        except ApiError as error:
            if error.status != 404:
                raise
        return (await self.send(calls.upload_code(package))).digest

    async def sign_in_link(self, job_id: str | None = None) -> str:
        """Return a link that signs one browser in to the job's page, or to the list; works once, for five minutes."""
        return self._link(await self.send(calls.sign_in_code()), job_id)

    async def events(
        self, job_id: str | None = None, *, after: int | None = None, kinds: Collection[EventKind] = ()
    ) -> AsyncIterator[Event]:
        """Yield the events of one job or of all, from now on or from behind the event `after`; never ends by itself.

        A lost connection is reopened without losing or repeating an event. An event of kind `gap` says that the
        service no longer has all events behind `after`: take a `snapshot`, and go on from there.
        Raises `Unreachable` or `ApiError` once the service has not answered for `away_s`.
        """
        failures = self._stream_failures(calls.events(job_id, after=after, kinds=kinds))
        while True:
            pause_s = POLL_S
            try:
                async for text, newest in self._stream(calls.events(job_id, after=after, kinds=kinds)):
                    after = newest
                    failures.end()
                    if text:
                        yield read_event(text.encode())
            except (ApiError, Unreachable) as error:
                pause_s = max(pause_s, failures.pause_s(error))
            await asyncio.sleep(pause_s)

    async def _stream(self, call: Call[Any]) -> AsyncIterator[tuple[str, int]]:
        """Yield each event's text and the id to resume from; the text of a keep-alive is empty."""
        try:
            async with self._http.stream(call.method, call.path, **self._stream_options(call)) as response:
                if not is_answer(call, response):
                    await response.aread()
                async for event in httpx2.EventSource(self._checked(call, response)):
                    yield event.data, int(event.id)
        except httpx2.HTTPError as error:
            raise self._unreachable(call, error) from error
        except UNSAYABLE as error:
            raise unsayable(error) from error

    async def iter_jobs(self, **filters: Unpack[JobFilters]) -> AsyncIterator[JobSummary]:
        """Yield every job, newest first, page by page; takes the `filters` and `order_by` of `jobs`."""
        cursor: str | None = None
        while True:
            page = await self.jobs(**filters, limit=MAX_PAGE, cursor=cursor)
            for summary in page.jobs:
                yield summary
            if (cursor := page.next_cursor) is None:
                return

    async def iter_code(self) -> AsyncIterator[CodeView]:
        """Yield every package of code that this client can see, newest first, page by page."""
        cursor: str | None = None
        while True:
            page = await self.list_code(limit=MAX_PAGE, cursor=cursor)
            for package in page.packages:
                yield package
            if (cursor := page.next_cursor) is None:
                return

    async def save_weights(
        self, job_id: str, out: BinaryIO, *, arm: str | None = None, seed: int | None = None, which: Which | None = None
    ) -> None:
        """Write a trial's safetensors file to `out`; by default of a sweep's best trial, else the first arm and seed.

        The `arm` `best` means the best trial.

        `which` chooses the best evaluated state or the last one. None follows the job's `checkpoint.export`.
        """
        await self.save(calls.weights(job_id, arm=arm, seed=seed, which=which), out)

    async def save_metrics(
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
        await self.save(calls.table(job_id, arm=arm, seed=seed, name=name, first_step=first_step), out)

    async def save_file(self, job_id: str, path: str, out: BinaryIO) -> None:
        """Write a file of the job's folder on storage to `out`: a checkpoint's manifest, or a file that it names."""
        await self.save(calls.file(job_id, path), out)

    async def save_code(self, digest: str, out: BinaryIO, *, project: str | None = None) -> None:
        """Write the files of a package of code to `out`, as a zip. For `project` see `delete_code`."""
        await self.save(calls.code_content(digest, project=project), out)

    async def watch(
        self, job_id: str, *, timeout_s: float | None = None, poll_s: float | None = None
    ) -> AsyncIterator[JobView]:
        """As `Client.watch`."""
        looks = Looks(timeout_s, poll_s)
        while True:
            view = await self.send(calls.job(job_id), within_s=looks.begin(), is_waiting=True)
            yield view
            if view.is_over:
                return
            await asyncio.sleep(looks.pause_s(f"job {job_id} was"))

    async def wait(self, job_id: str, *, timeout_s: float | None = None, poll_s: float | None = None) -> JobView:
        """Return the job once it is over. Raises `TimeoutError` after `timeout_s`."""
        async for view in self.watch(job_id, timeout_s=timeout_s, poll_s=poll_s):
            last = view
        return last

    async def wait_all(
        self, job_ids: Iterable[str], *, timeout_s: float | None = None, poll_s: float | None = None
    ) -> tuple[JobSummary, ...]:
        """As `Client.wait_all`."""
        several, looks = SeveralJobs(job_ids), Looks(timeout_s, poll_s)
        while True:
            within_s = looks.begin()
            for ids in several.pages():
                several.take(ids, await self.send(all_of(ids), within_s=within_s, is_waiting=True))
            if several.are_over:
                return several.jobs
            await asyncio.sleep(looks.pause_s(several.told))

    async def send(self, call: Call[T], *, within_s: float = math.inf, is_waiting: bool = False) -> T:
        """As `Client.send`."""
        if call.known is not None:
            return call.known
        response = await self._answer(call, self._patience(call, within_s, is_waiting=is_waiting))
        return call.answer(response.content, response.headers)

    async def save(self, call: Call[Any], out: BinaryIO) -> None:
        """As `Client.save`."""
        file = self._file(call, out)
        while True:
            try:
                async with aclosing(await self._answer(file.call, self._patience(file.call), stream=True)) as response:
                    file.begin(response)
                    async for chunk in response.aiter_bytes():
                        file.write(chunk)
                return file.check()
            except httpx2.HTTPError as error:
                await asyncio.sleep(file.pause_s(self._unreachable(call, error)))

    async def _answer(self, call: Call[Any], patience: Patience, *, stream: bool = False) -> httpx2.Response:
        while True:
            try:
                return await self._try(call, stream=stream)
            except (ApiError, Unreachable) as error:
                await asyncio.sleep(patience.pause_s(error))

    async def _try(self, call: Call[Any], *, stream: bool) -> httpx2.Response:
        try:
            response = await self._http.send(request(self._http, call), stream=stream)
            if not is_answer(call, response):
                await response.aread()
        except httpx2.HTTPError as error:
            raise self._unreachable(call, error) from error
        return self._checked(call, response)
