"""Python clients of the HTTP API: `Client` blocks, `AsyncClient` is awaited; both make the calls of `api.calls`."""

import asyncio
import base64
import hashlib
import math
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Concatenate, ParamSpec, Self, TypeVar, Unpack
from urllib.parse import quote

import httpx2

from api import calls
from api.calls import Call, JobFilters, Spec, reading
from api.jobs import POLL_S, AsyncJob, Job
from service.job.problems import Problem
from service.job.states import TERMINAL
from service.wire.access import SignInCode
from service.wire.base import MAX_PAGE
from service.wire.code import CodeView, of_folder
from service.wire.views import Event, EventKind, JobPage, JobSummary, JobView, Which
from trainers import overload

T = TypeVar("T")
P = ParamSpec("P")

#: A restart of the service that takes no longer than this goes unnoticed.
PATIENCE_S = 20.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
#: A stream of events has a sign of life every 15 s; one that is silent for so long is dead.
_SILENCE_S = 45.0
_read_event = reading(Event.model_validate_json)
#: Ids look so; what does not is looked up.
_WHOLE_ID = re.compile("job-[0-9a-f]{24}")
#: Of the jobs that an ambiguous word may mean, so many are named.
_NUM_CANDIDATES = 8
_SHA256_OF = re.compile("sha-256=:([A-Za-z0-9+/]{43}=):")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: A proxy has no answer of the service behind it; the service itself says neither.
_OF_PROXIES = (502, 504)
#: Raised by what makes a request of a call.
_UNSAYABLE = (UnicodeEncodeError, httpx2.InvalidURL)
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_HUNG_UP = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)


class ApiError(Exception):
    """The service refused a request; printed, it says why, field by field."""

    def __init__(
        self,
        status: int,
        title: str,
        *,
        detail: str,
        errors: tuple[Problem, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        self.status, self.title, self.detail, self.errors = status, title, detail, errors
        self.retry_after_s = retry_after_s
        lines = [f"  {error}" for error in errors] or [f"  {detail}"]
        super().__init__("\n".join([f"{title} (HTTP {status})", *lines]))


class UnknownJob(LookupError):
    """No job, or more than one, goes by a word; printed, it names those that do."""


class Unreachable(Exception):
    """Nothing answers at the service's URL, or no longer; `overload` of the machine may be why.

    `has_answered`: the service has done so before, so the URL is right. Not `is_repeatable`: a second request may do
    what was asked for a second time.
    """

    def __init__(
        self,
        url: str,
        cause: Exception,
        overloaded: str | None = None,
        *,
        has_answered: bool = False,
        is_repeatable: bool = True,
    ) -> None:
        self.url, self.overload = url, overloaded
        self.was_sent = not isinstance(cause, _NOT_CONNECTED)
        self.is_broken = has_answered and isinstance(cause, _HUNG_UP)
        what = f"the connection to {url} broke" if self.is_broken else f"no Wiretune service answers at {url}"
        said = f"{what}: {cause}{'' if has_answered else _hint(url, cause)}"
        if self.was_sent and not is_repeatable:
            said += "; what was asked for may have been done: look, as with `wiretune show`, before you ask again"
        super().__init__(overload.explained(said, overloaded))


class DamagedDownload(Exception):
    """A file arrived with another SHA-256 than the service says it has. Download it again."""


class _Checked:
    """A file that is written, held to the `Repr-Digest` (RFC 9530) of the answer that it comes in, if it has one."""

    def __init__(self, response: httpx2.Response, out: BinaryIO) -> None:
        self._response, self._out, self._digest = response, out, hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self._out.write(chunk)

    def check(self) -> None:
        """Raise DamagedDownload unless what was written is what the answer says it holds."""
        said = _SHA256_OF.search(self._response.headers.get("Repr-Digest", ""))
        if said and base64.b64decode(said[1]) != self._digest.digest():
            raise DamagedDownload(
                f"{self._response.url} arrived damaged: its SHA-256 is {self._digest.hexdigest()}, and the service "
                f"says {base64.b64decode(said[1]).hex()}; download it again"
            )


def _hint(url: str, cause: Exception) -> str:
    """Return what else may be the matter; nothing for what its cause explains."""
    said, (scheme, _, place) = str(cause), url.partition("://")
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return "; if its certificate is one of your own, name the authority's file in SSL_CERT_FILE"
    if scheme == "https" and "SSL" in said:
        return f"; it may not speak TLS: try http://{place}"
    if scheme == "http" and isinstance(cause, _HUNG_UP):
        return f"; it may speak TLS: try https://{place}"
    return ""


def with_scheme(url: str) -> str:
    """Return `url` with a scheme, and without a last slash: `http` of this machine, `https` of any other."""
    url = url.rstrip("/")
    if "://" in url:
        return url
    return f"{'http' if is_loopback(f'http://{url}') else 'https'}://{url}"


def is_loopback(url: str) -> bool:
    """Return whether `url` is of this machine, to which no proxy of the environment leads back."""
    return httpx2.URL(url).host in _LOOPBACK


class _Patience:
    """Decides after each failure of one call whether it is made again, and when.

    A service that has never answered is not waited for; a refusal is an answer.
    """

    def __init__(self, call: Call[Any], retry_s: float, *, has_answered: bool = True) -> None:
        self._call, self._deadline, self._pause_s = call, time.monotonic() + retry_s, _FIRST_PAUSE_S
        self._has_answered = has_answered

    def pause_s(self, error: ApiError | Unreachable) -> float:
        """Return how long to wait before the next attempt; raises `error` where there is none."""
        self._has_answered = self._has_answered or isinstance(error, ApiError)
        asked_s = (error.retry_after_s or 0.0) if isinstance(error, ApiError) else 0.0
        pause_s = max(asked_s, self._pause_s * random.uniform(0.5, 1.0))
        is_late = time.monotonic() + pause_s > self._deadline
        if is_late or not self._has_answered or not may_repeat(self._call, error):
            raise error
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s


class _Restarts:
    """Decides after each break of a download whether it begins again, in the place of what has come so far.

    Patience is counted from the first break on: a long download has outlived it by then.
    """

    def __init__(self, out: BinaryIO, patience: Callable[[], _Patience]) -> None:
        self._out, self._begin = out, patience
        self._patience: _Patience | None = None
        try:
            self._start: int | None = out.tell()
        except (AttributeError, OSError):  # it cannot seek
            self._start = None

    def pause_s(self, error: Unreachable) -> float:
        """Return how long to wait before the next attempt, with `out` as it was; raises `error` where there is none."""
        if self._start is None:
            raise error
        self._patience = self._patience or self._begin()
        pause_s = self._patience.pause_s(error)
        try:
            self._out.seek(self._start)
            self._out.truncate()
        except OSError:  # such as a device's
            raise error from None
        return pause_s


def may_repeat(call: Call[Any], error: ApiError | Unreachable) -> bool:
    """Return whether the failure may pass, and the call, made again, is not done twice."""
    if isinstance(error, Unreachable):
        return call.is_repeatable or not error.was_sent
    return error.status == 429 or (error.status == 503 and call.is_repeatable)


def is_passing(error: ApiError | Unreachable) -> bool:
    """Return whether to try again: the service, or what it needs, is away or busy; it may be starting anew."""
    return isinstance(error, Unreachable) or error.status in (429, 503)


class _Failures:
    """The failures of a stream, one after the other, without a word of the service between them."""

    def __init__(self) -> None:
        self._since: float | None = None

    def end(self) -> None:
        """Note that the service was heard."""
        self._since = None

    def bear(self, error: ApiError | Unreachable) -> None:
        """Raise `error` unless it may pass, and the first of these failures is no older than `PATIENCE_S`."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not is_passing(error) or now - self._since > PATIENCE_S:
            raise error


def _only(ref: str, found: JobPage) -> str:
    """Return the id of the one job that goes by `ref`; raises UnknownJob."""
    if len(found.jobs) == 1:
        return found.jobs[0].id
    if not found.jobs:
        raise UnknownJob(
            "no job is listed yet; an archived one goes by its id or name"
            if ref == "latest"
            else f"no job goes by `{ref}`; see `list`"
        )
    candidates = [f"  {job.id}  {job.state}  {job.name}" for job in found.jobs]
    more = ["  and more"] * (found.next_cursor is not None)
    raise UnknownJob("\n".join([f"`{ref}` is ambiguous; give more of the id:", *candidates, *more]))


class _Connection:
    """The state that both clients share."""

    def __init__(self, url: str, key: str, *, timeout_s: float = 10.0, retry_s: float = PATIENCE_S) -> None:
        try:
            self.url = with_scheme(url)
            self._is_local = is_loopback(self.url)
            httpx2.URL(self.url).raw_host.decode().encode("idna")  # as a connection has it: no label is empty or long
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise Unreachable(url, error) from error
        if wrong := [(each, at) for at, each in enumerate(key, start=1) if not each.isascii()]:
            detail = f"a key is ASCII, as `wt_...`; got {wrong[0][0]!a} at character {wrong[0][1]}"
            raise ApiError(401, "A valid key is required", detail=detail)
        self._retry_s, self._has_answered = retry_s, False
        self._options: dict[str, Any] = {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {key}".rstrip()},  # without a key the service says what to do
            "timeout": timeout_s,
            "trust_env": not self._is_local,
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    def _checked(self, call: Call[Any], response: httpx2.Response) -> httpx2.Response:
        if response.status_code in _OF_PROXIES:
            said = f"a proxy says {response.status_code} {response.reason_phrase}"
            raise self._unreachable(call, httpx2.HTTPStatusError(said, request=response.request, response=response))
        self._has_answered = True
        if response.is_success:
            return response
        raise _refusal(response)

    def _unreachable(self, call: Call[Any], error: httpx2.HTTPError) -> Unreachable:
        """Return the failure, of a machine that is too busy to answer as such."""
        is_late = self._is_local and isinstance(error, httpx2.TimeoutException)
        overloaded = overload.here() if is_late else None
        return Unreachable(
            self.url, error, overloaded, has_answered=self._has_answered, is_repeatable=call.is_repeatable
        )

    def _link(self, code: SignInCode, job_id: str | None) -> str:
        query = "" if job_id is None else f"?job={quote(job_id)}"
        return f"{self.url}/{query}#code={code.code}"  # browsers do not send what is behind the `#`

    def _patience(self, call: Call[Any], within_s: float) -> _Patience:
        return _Patience(call, min(self._retry_s, within_s), has_answered=self._has_answered)

    def _restarts(self, call: Call[Any], out: BinaryIO) -> _Restarts:
        return _Restarts(out, lambda: self._patience(call, math.inf))


def _blocking(describe: Callable[P, Call[T]]) -> "Callable[Concatenate[Client, P], T]":
    """Return a method that makes the call which `describe` describes."""

    @wraps(describe)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(_described(describe, *args, **kwargs))

    return _with_self(method)


def _awaited(describe: Callable[P, Call[T]]) -> "Callable[Concatenate[AsyncClient, P], Awaitable[T]]":
    """Return a method that makes the call which `describe` describes, and is awaited."""

    @wraps(describe)
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(_described(describe, *args, **kwargs))

    return _with_self(method)


F = TypeVar("F", bound=Callable[..., Any])


def _with_self(method: F) -> F:
    """Have `help` show the parameters of the call, behind `self`."""
    described = signature(method)
    parameters = [Parameter("self", Parameter.POSITIONAL_ONLY), *described.parameters.values()]
    method.__signature__ = described.replace(parameters=parameters)  # type: ignore[attr-defined]
    return method


class Client(_Connection):
    """Calls a Wiretune service. A context manager; every call raises `ApiError` or `Unreachable`.

    A key or a URL that can be none raises them at once. An answer that this release cannot read is an
    `api.calls.UnreadableAnswer`.

    Args:
        url: e.g. `http://127.0.0.1:8470`; without a scheme it is `http` of this machine, `https` of any other.
        key: an API key, `wt_...`.
        timeout_s: of one request.
        retry_s: how long a call is made again while the service is away or too busy, where that does nothing twice. A
            service that has never answered is not waited for: the URL may be wrong.
    """

    def __init__(self, url: str, key: str, *, timeout_s: float = 10.0, retry_s: float = PATIENCE_S) -> None:
        super().__init__(url, key, timeout_s=timeout_s, retry_s=retry_s)
        self._http = httpx2.Client(**self._options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    validate = _blocking(calls.validate)
    methods = _blocking(calls.methods)
    predict = _blocking(calls.predict)
    jobs = _blocking(calls.jobs)
    trials = _blocking(calls.trials)
    stages = _blocking(calls.stages)
    metrics = _blocking(calls.metrics)
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
    delete_quota = _blocking(calls.delete_quota)
    code = _blocking(calls.code)
    list_code = _blocking(calls.list_code)
    delete_code = _blocking(calls.delete_code)

    def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> Job:
        """Queue a job; with a key, however often this is called with it, one job is made."""
        return Job(self, self.send(calls.submit(spec, idempotency_key=idempotency_key)))

    def job(self, job_id: str) -> Job:
        """Return one job."""
        return Job(self, self.send(calls.job(job_id)))

    def find(self, ref: str) -> str:
        """Return the id of the job that `ref` means; a whole id costs no call.

        `ref` is `latest`, or four characters or more that the id begins or ends with and no other does (`job-` may be
        left out), or else the job's whole name. Raises `UnknownJob` where no job, or more than one, goes by it.
        """
        if _WHOLE_ID.fullmatch(ref):
            return ref
        return _only(ref, self.send(calls.candidates(ref, limit=_NUM_CANDIDATES)))

    def upload_code(self, folder: str | Path, *, exclude: Sequence[str] = ()) -> str:
        """Upload a folder of Python code and return its digest, for a job's `workload.code`.

        Nothing is sent where this client's project has it. Histories, caches and virtual environments stay behind,
        and what matches `exclude`, such as `data` or `*.csv`. Raises `CodeRefused` (a `ValueError`) for what is no
        package.
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
        """Return a link that signs one browser in to the page of the job, or of all; good once, for five minutes."""
        return self._link(self.send(calls.sign_in_code()), job_id)

    def events(
        self, job_id: str | None = None, *, after: int | None = None, kinds: Collection[EventKind] = ()
    ) -> Iterator[Event]:
        """Yield what changes, of one job or of all, from now on or behind the event `after`; never ends by itself.

        A lost connection is made again, without a gap and without a double. An event of kind `gap` says that the
        service does not have all events behind `after` any more: look at the whole (`snapshot`), and go on.
        Raises `Unreachable` or `ApiError` once the service does not answer for `PATIENCE_S`.
        """
        failures = _Failures()
        while True:
            try:
                for text, newest in self._stream(calls.events(job_id, after=after, kinds=kinds)):
                    after = newest
                    failures.end()
                    if text:
                        yield _read_event(text.encode())
            except (ApiError, Unreachable) as error:
                failures.bear(error)
            time.sleep(POLL_S)

    def _stream(self, call: Call[Any]) -> Iterator[tuple[str, int]]:
        """Yield the text of each event, empty for a sign of life, and the id to go on from."""
        timeout = httpx2.Timeout(_SILENCE_S, connect=self._http.timeout.connect)
        options: dict[str, Any] = {"params": call.params, "headers": call.headers, "timeout": timeout}
        try:
            with self._http.stream(call.method, call.path, **options) as response:
                if not response.is_success:
                    response.read()
                for event in httpx2.EventSource(self._checked(call, response)):
                    yield event.data, int(event.id)
        except httpx2.HTTPError as error:
            raise self._unreachable(call, error) from error
        except _UNSAYABLE as error:
            raise _unsayable(error) from error

    def iter_jobs(self, **filters: Unpack[JobFilters]) -> Iterator[JobSummary]:
        """Yield every job, newest first, page by page; `filters` and another order are those of `jobs`."""
        cursor: str | None = None
        while True:
            page = self.jobs(**filters, limit=MAX_PAGE, cursor=cursor)
            yield from page.jobs
            if (cursor := page.next_cursor) is None:
                return

    def iter_code(self) -> Iterator[CodeView]:
        """Yield every package of code that this client sees, newest first, page by page."""
        cursor: str | None = None
        while True:
            page = self.list_code(limit=MAX_PAGE, cursor=cursor)
            yield from page.packages
            if (cursor := page.next_cursor) is None:
                return

    def save_weights(
        self, job_id: str, out: BinaryIO, *, arm: str | None = None, seed: int | None = None, which: Which | None = None
    ) -> None:
        """Write a trial's safetensors file to `out`; by default that of the first arm and seed.

        `which`: of the best evaluated state, or of the end; None: as the job's `checkpoint.export` says.
        """
        self.save(calls.weights(job_id, arm=arm, seed=seed, which=which), out)

    def save_metrics(self, job_id: str, out: BinaryIO, *, arm: str | None = None, seed: int | None = None) -> None:
        """Write every point of every series to `out`, as CSV; by default of all trials."""
        self.save(calls.table(job_id, arm=arm, seed=seed), out)

    def save_file(self, job_id: str, path: str, out: BinaryIO) -> None:
        """Write a file of the job's folder on storage to `out`: a checkpoint's manifest, or one that it names."""
        self.save(calls.file(job_id, path), out)

    def watch(self, job_id: str, *, timeout_s: float | None = None, poll_s: float = POLL_S) -> Iterator[JobView]:
        """Yield the job at once and then every `poll_s` seconds, last in its terminal state.

        Raises `TimeoutError` after `timeout_s`.
        """
        deadline = _deadline(timeout_s)
        while True:
            view = self.send(calls.job(job_id), within_s=deadline - time.monotonic())
            yield view
            if view.state in TERMINAL:
                return
            time.sleep(_pause_s(poll_s, deadline, job_id, timeout_s))

    def wait(self, job_id: str, *, timeout_s: float | None = None, poll_s: float = POLL_S) -> JobView:
        """Return the job once it is over. Raises `TimeoutError` after `timeout_s`."""
        *_, last = self.watch(job_id, timeout_s=timeout_s, poll_s=poll_s)
        return last

    def send(self, call: Call[T], *, within_s: float = math.inf) -> T:
        """Make a call, again if need be and if that is safe, and return its answer."""
        return call.read(self._answer(call, within_s=within_s).content)

    def save(self, call: Call[Any], out: BinaryIO) -> None:
        """Write a call's answer to `out` as it comes. Raises DamagedDownload if its SHA-256 is not what it says.

        Where the connection breaks, this begins again if `out` can seek, for `retry_s` from the first break on.
        """
        restarts = self._restarts(call, out)
        while True:
            try:
                with closing(self._answer(call, stream=True)) as response:
                    checked = _Checked(response, out)
                    for chunk in response.iter_bytes():
                        checked.write(chunk)
                return checked.check()
            except httpx2.HTTPError as error:
                time.sleep(restarts.pause_s(self._unreachable(call, error)))

    def _answer(self, call: Call[Any], *, within_s: float = math.inf, stream: bool = False) -> httpx2.Response:
        patience = self._patience(call, within_s)
        while True:
            try:
                return self._try(call, stream=stream)
            except (ApiError, Unreachable) as error:
                time.sleep(patience.pause_s(error))

    def _try(self, call: Call[Any], *, stream: bool) -> httpx2.Response:
        try:
            response = self._http.send(_request(self._http, call), stream=stream)
            if not response.is_success:
                response.read()
        except httpx2.HTTPError as error:
            raise self._unreachable(call, error) from error
        return self._checked(call, response)


class AsyncClient(_Connection):
    """Calls a Wiretune service from asyncio, as `Client` does elsewhere: an asynchronous context manager.

    Its arguments are those of `Client`.
    """

    def __init__(self, url: str, key: str, *, timeout_s: float = 10.0, retry_s: float = PATIENCE_S) -> None:
        super().__init__(url, key, timeout_s=timeout_s, retry_s=retry_s)
        self._http = httpx2.AsyncClient(**self._options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    validate = _awaited(calls.validate)
    methods = _awaited(calls.methods)
    predict = _awaited(calls.predict)
    jobs = _awaited(calls.jobs)
    trials = _awaited(calls.trials)
    stages = _awaited(calls.stages)
    metrics = _awaited(calls.metrics)
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
    delete_quota = _awaited(calls.delete_quota)
    code = _awaited(calls.code)
    list_code = _awaited(calls.list_code)
    delete_code = _awaited(calls.delete_code)

    async def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> AsyncJob:
        """Queue a job; with a key, however often this is called with it, one job is made."""
        return AsyncJob(self, await self.send(calls.submit(spec, idempotency_key=idempotency_key)))

    async def job(self, job_id: str) -> AsyncJob:
        """Return one job."""
        return AsyncJob(self, await self.send(calls.job(job_id)))

    async def find(self, ref: str) -> str:
        """Return the id of the job that `ref` means; a whole id costs no call.

        `ref` is `latest`, or four characters or more that the id begins or ends with and no other does (`job-` may be
        left out), or else the job's whole name. Raises `UnknownJob` where no job, or more than one, goes by it.
        """
        if _WHOLE_ID.fullmatch(ref):
            return ref
        return _only(ref, await self.send(calls.candidates(ref, limit=_NUM_CANDIDATES)))

    async def upload_code(self, folder: str | Path, *, exclude: Sequence[str] = ()) -> str:
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
        """Return a link that signs one browser in to the page of the job, or of all; good once, for five minutes."""
        return self._link(await self.send(calls.sign_in_code()), job_id)

    async def events(
        self, job_id: str | None = None, *, after: int | None = None, kinds: Collection[EventKind] = ()
    ) -> AsyncIterator[Event]:
        """Yield what changes, of one job or of all, from now on or behind the event `after`; never ends by itself.

        A lost connection is made again, without a gap and without a double. An event of kind `gap` says that the
        service does not have all events behind `after` any more: look at the whole (`snapshot`), and go on.
        Raises `Unreachable` or `ApiError` once the service does not answer for `PATIENCE_S`.
        """
        failures = _Failures()
        while True:
            try:
                async for text, newest in self._stream(calls.events(job_id, after=after, kinds=kinds)):
                    after = newest
                    failures.end()
                    if text:
                        yield _read_event(text.encode())
            except (ApiError, Unreachable) as error:
                failures.bear(error)
            await asyncio.sleep(POLL_S)

    async def _stream(self, call: Call[Any]) -> AsyncIterator[tuple[str, int]]:
        """Yield the text of each event, empty for a sign of life, and the id to go on from."""
        timeout = httpx2.Timeout(_SILENCE_S, connect=self._http.timeout.connect)
        options: dict[str, Any] = {"params": call.params, "headers": call.headers, "timeout": timeout}
        try:
            async with self._http.stream(call.method, call.path, **options) as response:
                if not response.is_success:
                    await response.aread()
                async for event in httpx2.EventSource(self._checked(call, response)):
                    yield event.data, int(event.id)
        except httpx2.HTTPError as error:
            raise self._unreachable(call, error) from error
        except _UNSAYABLE as error:
            raise _unsayable(error) from error

    async def iter_jobs(self, **filters: Unpack[JobFilters]) -> AsyncIterator[JobSummary]:
        """Yield every job, newest first, page by page; `filters` and another order are those of `jobs`."""
        cursor: str | None = None
        while True:
            page = await self.jobs(**filters, limit=MAX_PAGE, cursor=cursor)
            for summary in page.jobs:
                yield summary
            if (cursor := page.next_cursor) is None:
                return

    async def iter_code(self) -> AsyncIterator[CodeView]:
        """Yield every package of code that this client sees, newest first, page by page."""
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
        """Write a trial's safetensors file to `out`; by default that of the first arm and seed.

        `which`: of the best evaluated state, or of the end; None: as the job's `checkpoint.export` says.
        """
        await self.save(calls.weights(job_id, arm=arm, seed=seed, which=which), out)

    async def save_metrics(
        self, job_id: str, out: BinaryIO, *, arm: str | None = None, seed: int | None = None
    ) -> None:
        """Write every point of every series to `out`, as CSV; by default of all trials."""
        await self.save(calls.table(job_id, arm=arm, seed=seed), out)

    async def save_file(self, job_id: str, path: str, out: BinaryIO) -> None:
        """Write a file of the job's folder on storage to `out`: a checkpoint's manifest, or one that it names."""
        await self.save(calls.file(job_id, path), out)

    async def watch(
        self, job_id: str, *, timeout_s: float | None = None, poll_s: float = POLL_S
    ) -> AsyncIterator[JobView]:
        """Yield the job at once and then every `poll_s` seconds, last in its terminal state.

        Raises `TimeoutError` after `timeout_s`.
        """
        deadline = _deadline(timeout_s)
        while True:
            view = await self.send(calls.job(job_id), within_s=deadline - time.monotonic())
            yield view
            if view.state in TERMINAL:
                return
            await asyncio.sleep(_pause_s(poll_s, deadline, job_id, timeout_s))

    async def wait(self, job_id: str, *, timeout_s: float | None = None, poll_s: float = POLL_S) -> JobView:
        """Return the job once it is over. Raises `TimeoutError` after `timeout_s`."""
        async for view in self.watch(job_id, timeout_s=timeout_s, poll_s=poll_s):
            last = view
        return last

    async def send(self, call: Call[T], *, within_s: float = math.inf) -> T:
        """Make a call, again if need be and if that is safe, and return its answer."""
        return call.read((await self._answer(call, within_s=within_s)).content)

    async def save(self, call: Call[Any], out: BinaryIO) -> None:
        """As `Client.save`."""
        restarts = self._restarts(call, out)
        while True:
            try:
                async with aclosing(await self._answer(call, stream=True)) as response:
                    checked = _Checked(response, out)
                    async for chunk in response.aiter_bytes():
                        checked.write(chunk)
                return checked.check()
            except httpx2.HTTPError as error:
                await asyncio.sleep(restarts.pause_s(self._unreachable(call, error)))

    async def _answer(self, call: Call[Any], *, within_s: float = math.inf, stream: bool = False) -> httpx2.Response:
        patience = self._patience(call, within_s)
        while True:
            try:
                return await self._try(call, stream=stream)
            except (ApiError, Unreachable) as error:
                await asyncio.sleep(patience.pause_s(error))

    async def _try(self, call: Call[Any], *, stream: bool) -> httpx2.Response:
        try:
            response = await self._http.send(_request(self._http, call), stream=stream)
            if not response.is_success:
                await response.aread()
        except httpx2.HTTPError as error:
            raise self._unreachable(call, error) from error
        return self._checked(call, response)


def _request(http: httpx2.Client | httpx2.AsyncClient, call: Call[Any]) -> httpx2.Request:
    given = {"params": call.params, "headers": call.headers, "json": call.json, "content": call.content}
    try:
        return http.build_request(call.method, call.path, **given)
    except _UNSAYABLE as error:
        raise _unsayable(error) from error
    except ValueError:  # JSON has no NaN and no infinity
        errors = tuple(_not_finite(call.json))
        if not errors:
            raise
    raise ApiError(422, "The request is not valid", detail="not all of its numbers are finite", errors=errors)


def _described(describe: Callable[P, Call[T]], *args: P.args, **kwargs: P.kwargs) -> Call[T]:
    try:
        return describe(*args, **kwargs)
    except UnicodeEncodeError as error:  # a name that is quoted in the call's path
        raise _unsayable(error) from error


def _unsayable(error: UnicodeEncodeError | httpx2.InvalidURL) -> ApiError:
    """Return the refusal of text that a request cannot hold: half of a surrogate pair, or a header beyond ASCII."""
    if isinstance(error, httpx2.InvalidURL):
        return ApiError(422, "The request is not valid", detail=str(error))
    wrong, near = error.object[error.start], error.object[max(0, error.start - 20) : error.end + 20]
    detail = f"text must be {error.encoding.upper()}, got {wrong!a} in {near!a}"
    return ApiError(422, "The request is not valid", detail=detail)


def _not_finite(content: Any, pointer: str = "") -> Iterator[Problem]:
    """Yield a problem for each number in `content` that JSON cannot say."""
    if isinstance(content, float) and not math.isfinite(content):
        yield Problem(pointer=pointer, message=f"must be a finite number, got {content}", value=str(content))
    elif isinstance(content, Mapping):
        for name, each in content.items():
            yield from _not_finite(each, f"{pointer}/{name}")
    elif isinstance(content, list | tuple):
        for index, each in enumerate(content):
            yield from _not_finite(each, f"{pointer}/{index}")


def _deadline(timeout_s: float | None) -> float:
    return math.inf if timeout_s is None else time.monotonic() + timeout_s


def _pause_s(poll_s: float, deadline: float, job_id: str, timeout_s: float | None) -> float:
    """Return how long to wait before the next look: until the deadline at most. Raises TimeoutError behind it."""
    left_s = deadline - time.monotonic()
    if left_s < 0:
        raise TimeoutError(f"job {job_id} was not over after {timeout_s} s")
    return min(poll_s, left_s)


def _refusal(response: httpx2.Response) -> ApiError:
    """Return the error of a problem document, ours or a proxy's, or of whatever a proxy put in its place."""
    retry_after = response.headers.get("retry-after", "")
    retry_after_s = float(retry_after) if retry_after.isdecimal() else None  # a date is as good as none
    if response.headers.get("content-type", "") != "application/problem+json":
        detail = response.text[:500]
        return ApiError(response.status_code, response.reason_phrase, detail=detail, retry_after_s=retry_after_s)
    document = response.json()
    errors = tuple(Problem.model_validate(each) for each in document.get("errors", ()))
    return ApiError(
        response.status_code,
        document.get("title", response.reason_phrase),
        detail=document.get("detail", ""),
        errors=errors,
        retry_after_s=retry_after_s,
    )
