"""Python client of the HTTP API."""

import re
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, TypeAdapter

from service.catalog.methods import MethodsView
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import TERMINAL, JobState, Verb
from service.wire.access import DEFAULT_PROJECT, AuditPage, IssuedKey, KeyView, Me, Role, SignInCode
from service.wire.views import (
    Cloned,
    Event,
    EventKind,
    JobPage,
    JobReport,
    JobView,
    ScheduleView,
    Series,
    Snapshot,
    StageView,
    TrialView,
    Validated,
)
from trainers import overload
from trainers.overload import explained

T = TypeVar("T")
Spec = JobSpec | Mapping[str, Any]

POLL_S = 0.5
#: A watcher outlives a restart of the service that takes no longer than this.
PATIENCE_S = 20.0
#: A stream of events has a sign of life every 15 s; one that is silent for so long is dead.
_SILENCE_S = 45.0
#: Ids look so; what does not is looked up.
_WHOLE_ID = re.compile("job-[0-9a-f]{24}")
#: Of the jobs that an ambiguous word may mean, so many are named.
_NUM_CANDIDATES = 8
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TRIALS = TypeAdapter(tuple[TrialView, ...])
_STAGES = TypeAdapter(tuple[StageView, ...])
_SERIES = TypeAdapter(tuple[Series, ...])
_KEYS = TypeAdapter(tuple[KeyView, ...])


class ApiError(Exception):
    """The service refused a request; printed, it says why, field by field."""

    def __init__(self, status: int, title: str, *, detail: str, errors: tuple[Problem, ...] = ()) -> None:
        self.status, self.title, self.detail, self.errors = status, title, detail, errors
        lines = [f"  {error}" for error in errors] or [f"  {detail}"]
        super().__init__("\n".join([f"{title} (HTTP {status})", *lines]))


class UnknownJob(LookupError):
    """No job, or more than one, goes by a word; printed, it names those that do."""


class Unreachable(Exception):
    """Nothing answers at the service's URL; `overload` of the machine may be why."""

    def __init__(self, url: str, cause: Exception, overload: str | None = None) -> None:
        self.url, self.overload = url, overload
        super().__init__(explained(f"no Wiretune service answers at {url}: {cause}{_hint(url, cause)}", overload))


def _hint(url: str, cause: Exception) -> str:
    """Return what else may be the matter; nothing for what its cause explains."""
    said, (scheme, _, place) = str(cause), url.partition("://")
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return "; if its certificate is one of your own, name the authority's file in SSL_CERT_FILE"
    if scheme == "https" and "SSL" in said:
        return f"; it may not speak TLS: try http://{place}"
    if scheme == "http" and isinstance(cause, httpx2.RemoteProtocolError):
        return f"; it may speak TLS: try https://{place}"
    return ""


def with_scheme(url: str) -> str:
    """Return `url` with a scheme, and without a last slash: `http` of this machine, `https` of any other."""
    url = url.rstrip("/")
    if "://" in url:
        return url
    return f"{'http' if httpx2.URL(f'http://{url}').host in _LOOPBACK else 'https'}://{url}"


def is_passing(error: ApiError | Unreachable) -> bool:
    """Return whether to try again: the service, or what it needs, is away; it may be starting anew."""
    return isinstance(error, Unreachable) or error.status == 503


class Client:
    """Calls a Wiretune service. A context manager; every call raises `ApiError` or `Unreachable`.

    Args:
        url: e.g. `http://127.0.0.1:8470`; without a scheme it is `http` of this machine, `https` of any other.
        key: an API key, `wt_...`.
        timeout_s: of one request.
    """

    def __init__(self, url: str, key: str, *, timeout_s: float = 10.0) -> None:
        self.url = with_scheme(url)
        self._is_local = httpx2.URL(self.url).host in _LOOPBACK
        self._http = httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=timeout_s,
            trust_env=not self._is_local,  # a proxy of the environment does not lead back to this machine
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> JobView:
        """Queue a job; with a key, however often this is called with it, one job is made."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return JobView.model_validate_json(self._send("POST", "/v1/jobs", json=_plain(spec), headers=headers))

    def validate(self, spec: Spec) -> Validated:
        """Check a job without queueing it; the answer has every default filled in."""
        return Validated.model_validate_json(self._send("POST", "/v1/jobs:validate", json=_plain(spec)))

    def methods(
        self,
        name: str | None = None,
        *,
        workload: str | None = None,
        shapes: str | None = None,
        workers: int | None = None,
    ) -> MethodsView:
        """Return what a job can choose: papers, knobs, what goes with what.

        What `workers` (2) send in a step is predicted for a built-in `workload` (`digits-mlp`), or for `shapes`, such
        as `512x64,512`.
        """
        answer = self._get("/v1/methods", name=name, workload=workload, shapes=shapes, workers=workers)
        return MethodsView.model_validate_json(answer)

    def jobs(
        self,
        *,
        state: JobState | None = None,
        label: tuple[str, str] | None = None,
        ref: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """Return a page of jobs, newest first; `ref` is as in `find`."""
        pair = "=".join(label) if label else None
        answer = self._get("/v1/jobs", state=state, label=pair, ref=ref, limit=limit, cursor=cursor)
        return JobPage.model_validate_json(answer)

    def find(self, ref: str) -> str:
        """Return the id of the job that `ref` means; a whole id costs no call.

        `ref` is `latest`, or four characters or more that the id begins or ends with and no other does (`job-` may be
        left out), or else the job's whole name. Raises `UnknownJob` where no job, or more than one, goes by it.
        """
        if _WHOLE_ID.fullmatch(ref):
            return ref
        found = self.jobs(limit=1) if ref == "latest" else self.jobs(ref=ref, limit=_NUM_CANDIDATES)
        if len(found.jobs) == 1:
            return found.jobs[0].id
        if not found.jobs:
            raise UnknownJob("there is no job yet" if ref == "latest" else f"no job goes by `{ref}`; see `list`")
        candidates = [f"  {job.id}  {job.state}  {job.name}" for job in found.jobs]
        more = ["  and more"] * (found.next_cursor is not None)
        raise UnknownJob("\n".join([f"`{ref}` is ambiguous; give more of the id:", *candidates, *more]))

    def job(self, job_id: str) -> JobView:
        """Return one job."""
        return JobView.model_validate_json(self._get(f"/v1/jobs/{job_id}"))

    def trials(self, job_id: str) -> tuple[TrialView, ...]:
        """Return the job's trials, in its order."""
        return _TRIALS.validate_json(self._get(f"/v1/jobs/{job_id}/trials"))

    def stages(self, job_id: str, *, trial: str | None = None, with_posterior: bool = False) -> tuple[StageView, ...]:
        """Return the decided stages, trial by trial; the posteriors are large."""
        posterior = with_posterior or None
        return _STAGES.validate_json(self._get(f"/v1/jobs/{job_id}/stages", trial=trial, posterior=posterior))

    def metrics(
        self, job_id: str, name: str, *, trial: str | None = None, max_points: int = 2000
    ) -> tuple[Series, ...]:
        """Return a metric's series, one per trial, thinned to `max_points` each."""
        path = f"/v1/jobs/{job_id}/metrics/{name}"
        return _SERIES.validate_json(self._get(path, trial=trial, max_points=max_points))

    def schedule(self, job_id: str, *, arm: str | None = None, seed: int | None = None) -> ScheduleView:
        """Return the learned schedule of one trial; by default of the first arm and seed."""
        return ScheduleView.model_validate_json(self._get(f"/v1/jobs/{job_id}/schedule", arm=arm, seed=seed))

    def report(self, job_id: str) -> JobReport:
        """Return the job's result: every trial's, and every arm's over its seeds."""
        return JobReport.model_validate_json(self._get(f"/v1/jobs/{job_id}/report"))

    def snapshot(self, job_id: str, *, since: int | None = None, max_points: int | None = None) -> Snapshot:
        """Return all that the job's page shows, of one moment; with an earlier one's `cursor`, what changed since."""
        path = f"/v1/jobs/{job_id}/snapshot"
        return Snapshot.model_validate_json(self._get(path, since=since, max_points=max_points))

    def events(
        self, job_id: str | None = None, *, after: int | None = None, kinds: Collection[EventKind] = ()
    ) -> Iterator[Event]:
        """Yield what changes, of one job or of all, from now on or behind the event `after`; never ends by itself.

        A lost connection is made again, without a gap and without a double. An event of kind `gap` says that the
        service does not have all events behind `after` any more: look at the whole (`snapshot`), and go on.
        Raises `Unreachable` or `ApiError` once the service does not answer for `PATIENCE_S`.
        """
        heard = time.monotonic()
        while True:
            try:
                for text, newest in self._stream(job_id, after, kinds):
                    after, heard = newest, time.monotonic()
                    if text:
                        yield Event.model_validate_json(text)
            except (ApiError, Unreachable) as error:
                if not is_passing(error) or time.monotonic() - heard > PATIENCE_S:
                    raise
            time.sleep(POLL_S)

    def _stream(self, job_id: str | None, after: int | None, kinds: Collection[EventKind]) -> Iterator[tuple[str, int]]:
        """Yield the text of each event, empty for a sign of life, and the id to go on from."""
        path = "/v1/events" if job_id is None else f"/v1/jobs/{job_id}/events"
        options: dict[str, Any] = {
            "params": _given({"after": after}) | {"kind": list(kinds)},
            "headers": {"Accept": "text/event-stream"},
            "timeout": httpx2.Timeout(_SILENCE_S, connect=self._http.timeout.connect),
        }
        try:
            with self._http.stream("GET", path, **options) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                for event in httpx2.EventSource(response):
                    yield event.data, int(event.id)
        except httpx2.HTTPError as error:
            raise Unreachable(self.url, error) from error

    def logs(self, job_id: str, *, attempt: int | None = None, offset: int = 0) -> bytes:
        """Return what an attempt, by default the last, has printed, from byte `offset` on."""
        return self._get(f"/v1/jobs/{job_id}/logs", attempt=attempt, offset=offset)

    def save_weights(
        self,
        job_id: str,
        out: BinaryIO,
        *,
        arm: str | None = None,
        seed: int | None = None,
        which: Literal["best", "last"] | None = None,
    ) -> None:
        """Write a trial's safetensors file to `out`; by default that of the first arm and seed.

        `which`: of the best evaluated state, or of the end; None: as the job's `checkpoint.export` says.
        """
        self._save(f"/v1/jobs/{job_id}/weights", out, arm=arm, seed=seed, which=which)

    def save_metrics(self, job_id: str, out: BinaryIO, *, arm: str | None = None, seed: int | None = None) -> None:
        """Write every point of every series to `out`, as CSV; by default of all trials."""
        self._save(f"/v1/jobs/{job_id}/metrics.csv", out, arm=arm, seed=seed)

    def pause(self, job_id: str, *, version: int | None = None) -> JobView:
        """Have the job checkpoint and give its resources back; `version` is as in `resume`."""
        return self._ask(job_id, Verb.PAUSE, version)

    def resume(self, job_id: str, *, workers: int | None = None, version: int | None = None) -> JobView:
        """Have a paused job go on, at its old place in the queue; with as many `workers` per run, None: as before.

        With a job's `version`, here as for every verb: only if it still is the job's; if not, `ApiError` 412.
        """
        return self._ask(job_id, Verb.RESUME, version, workers=workers)

    def stop(self, job_id: str, *, version: int | None = None) -> JobView:
        """Have the job end as if its budget were spent, and keep its result; `version` is as in `resume`."""
        return self._ask(job_id, Verb.STOP, version)

    def cancel(self, job_id: str, *, version: int | None = None) -> JobView:
        """Have the job end without a result; `version` is as in `resume`."""
        return self._ask(job_id, Verb.CANCEL, version)

    def retry(self, job_id: str, *, workers: int | None = None, version: int | None = None) -> JobView:
        """Have a failed or cancelled job go on from its last checkpoint; `workers` and `version` are as in `resume`."""
        return self._ask(job_id, Verb.RETRY, version, workers=workers)

    def extend(
        self,
        job_id: str,
        *,
        seconds: float | None = None,
        steps: int | None = None,
        bytes: int | None = None,
        workers: int | None = None,
        version: int | None = None,
    ) -> JobView:
        """Give a job that succeeded a larger budget; its `reason` says where each trial goes on from.

        `workers` and `version` are as in `resume`.
        """
        caps = _given({"seconds": seconds, "steps": steps, "bytes": bytes})
        return self._ask(job_id, Verb.EXTEND, version, workers=workers, json=caps)

    def clone(
        self, job_id: str, changes: Mapping[str, Any], *, dry_run: bool = False, idempotency_key: str | None = None
    ) -> Cloned:
        """Queue a new job that is this one with `changes`, a JSON merge patch; in a dry run only see what differs."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        path, params = f"/v1/jobs/{job_id}:clone", {"dry_run": dry_run}
        return Cloned.model_validate_json(self._send("POST", path, json=changes, params=params, headers=headers))

    def _ask(self, job_id: str, verb: Verb, version: int | None, *, workers: int | None = None, **body: Any) -> JobView:
        headers = {} if version is None else {"If-Match": f'"{version}"'}
        path, params = f"/v1/jobs/{job_id}:{verb}", _given({"workers": workers})
        return JobView.model_validate_json(self._send("POST", path, headers=headers, params=params, **body))

    def me(self) -> Me:
        """Return whom the service takes this client for."""
        return Me.model_validate_json(self._get("/v1/me"))

    def create_key(
        self,
        name: str,
        *,
        owner: str | None = None,
        role: Role = Role.SUBMITTER,
        project: str = DEFAULT_PROJECT,
        expires_at: datetime | None = None,
    ) -> IssuedKey:
        """Make an API key, as an admin; its `secret` is shown this once."""
        ends = expires_at and expires_at.isoformat()
        given = _given({"name": name, "owner": owner, "role": role, "project": project, "expires_at": ends})
        return IssuedKey.model_validate_json(self._send("POST", "/v1/keys", json=given))

    def keys(self) -> tuple[KeyView, ...]:
        """Return this client's owner's keys, to an admin all of them."""
        return _KEYS.validate_json(self._get("/v1/keys"))

    def rotate_key(self, key_id: str) -> IssuedKey:
        """Give a key another secret; the old one ends at once."""
        return IssuedKey.model_validate_json(self._send("POST", f"/v1/keys/{key_id}:rotate"))

    def revoke_key(self, key_id: str) -> KeyView:
        """End a key for ever."""
        return KeyView.model_validate_json(self._send("POST", f"/v1/keys/{key_id}:revoke"))

    def audit(self, *, limit: int = 50, cursor: int | None = None) -> AuditPage:
        """Return what users changed, newest first; for admins."""
        return AuditPage.model_validate_json(self._get("/v1/audit", limit=limit, cursor=cursor))

    def sign_in_link(self, job_id: str | None = None) -> str:
        """Return a link that signs one browser in to the page of the job, or of all; good once, for five minutes."""
        made = SignInCode.model_validate_json(self._send("POST", "/v1/sign-in-codes"))
        query = "" if job_id is None else f"?job={quote(job_id)}"
        return f"{self.url}/{query}#code={made.code}"  # browsers do not send what is behind the `#`

    def watch(self, job_id: str, *, timeout_s: float | None = None, poll_s: float = POLL_S) -> Iterator[JobView]:
        """Yield the job at once and then every `poll_s` seconds, last in its terminal state.

        Raises `TimeoutError` after `timeout_s`, `Unreachable` or `ApiError` once it does not answer for `PATIENCE_S`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        heard = time.monotonic()
        while True:
            try:
                view = self.job(job_id)
            except (ApiError, Unreachable) as error:
                if not is_passing(error) or time.monotonic() - heard > PATIENCE_S:
                    raise
            else:
                heard = time.monotonic()
                yield view
                if view.state in TERMINAL:
                    return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {job_id} was not over after {timeout_s} s")
            time.sleep(poll_s)

    def wait(self, job_id: str, *, timeout_s: float | None = None, poll_s: float = POLL_S) -> JobView:
        """Return the job once it is over. Raises `TimeoutError` after `timeout_s`."""
        *_, last = self.watch(job_id, timeout_s=timeout_s, poll_s=poll_s)
        return last

    def _get(self, path: str, **params: Any) -> bytes:
        return self._send("GET", path, params=_given(params))

    def _save(self, path: str, out: BinaryIO, **params: Any) -> None:
        try:
            with self._http.stream("GET", path, params=_given(params)) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                for chunk in response.iter_bytes():
                    out.write(chunk)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx2.HTTPError) -> Unreachable:
        """Return the failure, of a machine that is too busy to answer as such."""
        is_late = self._is_local and isinstance(error, httpx2.TimeoutException)
        return Unreachable(self.url, error, overload.here() if is_late else None)

    def _send(self, method: str, path: str, **options: Any) -> bytes:
        try:
            response = self._http.request(method, path, **options)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        if response.is_success:
            return response.content
        raise _refusal(response)


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _plain(spec: Spec) -> Any:
    return spec.model_dump(mode="json") if isinstance(spec, BaseModel) else dict(spec)


def _refusal(response: httpx2.Response) -> ApiError:
    """Return the error of a problem document, or of whatever a proxy put in its place."""
    if response.headers.get("content-type", "") != "application/problem+json":
        return ApiError(response.status_code, response.reason_phrase, detail=response.text[:500])
    document = response.json()
    errors = tuple(Problem.model_validate(each) for each in document["errors"])
    return ApiError(response.status_code, document["title"], detail=document["detail"], errors=errors)
