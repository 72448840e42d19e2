"""A job as a handle: refresh, watch, wait, plot and download without repeating its id."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from api import calls, display, plots
from api.calls import Call
from api.downloads import resumable
from api.failures import ApiError
from api.waiting import stands_still
from service.errors import NotFound
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.events import Event, EventKind
from service.wire.jobs import JobView
from service.wire.trials import ScheduleView, TrialView

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

    from search.schedule import Schedule

T = TypeVar("T")
P = ParamSpec("P")
File = Literal["schedule", "metrics", "weights", "report"]

_FILES: dict[File, tuple[str, Callable[..., Call[Any]]]] = {
    "schedule": ("schedule.json", calls.schedule),
    "metrics": ("metrics.csv", calls.table),
    "weights": ("weights.safetensors", calls.weights),
    "report": ("report.json", calls.report),
}


class Blocking(Protocol):
    """The part of `Client` that a job needs."""

    def send(self, call: Call[T], /, *, is_waiting: bool = False) -> T:
        """Make a call and return its answer."""

    def save(self, call: Call[Any], out: BinaryIO, /) -> None:
        """Write a call's answer to `out` as it comes."""

    def watch(self, job_id: str, /, *, timeout_s: float | None, poll_s: float | None) -> Iterator[JobView]:
        """Yield the job until it is over."""

    def events(self, job_id: str, /, *, after: int | None, kinds: Collection[EventKind]) -> Iterator[Event]:
        """Yield what changes in the job."""


class Awaited(Protocol):
    """The part of `AsyncClient` that a job needs."""

    async def send(self, call: Call[T], /, *, is_waiting: bool = False) -> T:
        """Make a call and return its answer."""

    async def save(self, call: Call[Any], out: BinaryIO, /) -> None:
        """Write a call's answer to `out` as it comes."""

    def watch(self, job_id: str, /, *, timeout_s: float | None, poll_s: float | None) -> AsyncIterator[JobView]:
        """Yield the job until it is over."""

    def events(self, job_id: str, /, *, after: int | None, kinds: Collection[EventKind]) -> AsyncIterator[Event]:
        """Yield what changes in the job."""


class _Handle:
    """A job's state when the service was last asked; `refresh`, `wait`, `watch` and verbs update it."""

    def __init__(self, view: JobView) -> None:
        self.view = view
        self._trials: tuple[TrialView, ...] = ()  # as last fetched; may be empty

    @property
    def id(self) -> str:
        """The job's id, for `Client.job`."""
        return self.view.id

    @property
    def name(self) -> str:
        """The job's name, from its spec."""
        return self.view.name

    @property
    def state(self) -> JobState:
        """The job's state."""
        return self.view.state

    @property
    def reason(self) -> str:
        """The reason for its state, in words."""
        return self.view.reason

    @property
    def spec(self) -> JobSpec:
        """The job's spec with every default filled in. Raises UnreadableJob if this release cannot read it."""
        return self.view.readable

    def __repr__(self) -> str:
        return f"<Job {display.headline(self.view, self._trials)}>"

    def _repr_html_(self) -> str:
        return display.html(self.view, self._trials)


def _asked(describe: Callable[Concatenate[str, P], Call[T]]) -> "Callable[Concatenate[Job, P], T]":
    @wraps(describe)
    def method(self: "Job", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._client.send(describe(self.id, *args, **kwargs))

    return method


def _done(describe: Callable[Concatenate[str, P], Call[JobView]]) -> "Callable[Concatenate[Job, P], Job]":
    @wraps(describe)
    def method(self: "Job", /, *args: P.args, **kwargs: P.kwargs) -> "Job":
        self.view = self._client.send(describe(self.id, *args, **kwargs))
        return self

    return method


class Job(_Handle):
    """A job of a service, as of the last refresh. Every call raises what `Client` raises."""

    def __init__(self, client: Blocking, view: JobView) -> None:
        super().__init__(view)
        self._client = client

    trials = _asked(calls.trials)
    stages = _asked(calls.stages)
    metrics = _asked(calls.metrics)
    recorded = _asked(calls.recorded)
    attempts = _asked(calls.attempts)
    report = _asked(calls.report)
    comparison = _asked(calls.comparison)
    snapshot = _asked(calls.snapshot)
    artifacts = _asked(calls.artifacts)
    logs = _asked(calls.logs)
    pause = _done(calls.pause)
    resume = _done(calls.resume)
    stop = _done(calls.stop)
    stop_trial = _done(calls.stop_trial)
    cancel = _done(calls.cancel)
    retry = _done(calls.retry)
    extend = _done(calls.extend)
    steer = _done(calls.steer)
    steering = _asked(calls.steering)
    edit = _done(calls.edit)
    delete = _asked(calls.delete)

    def clone(
        self, changes: Mapping[str, Any], *, trial: str | None = None, idempotency_key: str | None = None
    ) -> "Job":
        """Queue a copy of this job with `changes`, a JSON merge patch, and return it.

        With `trial`, an arm or a sample such as `sample-3`, `best`, or an id, the copy trains what that trial trains.
        """
        made = self._client.send(calls.clone(self.id, changes, trial=trial, idempotency_key=idempotency_key))
        return Job(self._client, _made(made.job))

    def events(self, *, after: int | None = None, kinds: Collection[EventKind] = ()) -> Iterator[Event]:
        """Yield the job's events, as `Client.events` does; never ends by itself."""
        return self._client.events(self.id, after=after, kinds=kinds)

    def refresh(self) -> Self:
        """Fetch the job and its trials again."""
        self.view, self._trials = self._client.send(calls.job(self.id)), self.trials()
        return self

    def wait(self, *, timeout_s: float | None = None, poll_s: float | None = None) -> Self:
        """Wait until the job is over, in whatever state. Raises `TimeoutError` after `timeout_s`."""
        for view in self._client.watch(self.id, timeout_s=timeout_s, poll_s=poll_s):
            self.view = view
        self._trials = self._client.send(calls.trials(self.id), is_waiting=timeout_s is None)
        return self

    def watch(self, *, timeout_s: float | None = None, poll_s: float | None = None) -> Self:
        """Show the job as a table in a terminal or notebook until it is over. Raises `TimeoutError` after `timeout_s`.

        Interrupting this does not affect the job.
        """
        before: JobView | None = None
        far = ""
        with display.screen() as show:
            for view in self._client.watch(self.id, timeout_s=timeout_s, poll_s=poll_s):
                if not stands_still(before, view):
                    self._trials = self._client.send(calls.trials(self.id), is_waiting=timeout_s is None)
                    listed = self._client.send(calls.with_progress(self.id), is_waiting=timeout_s is None)
                    far = "".join(map(display.how_far, listed.jobs))
                before = self.view = view
                show(self.view, self._trials, far)
        return self

    def schedule(self, *, arm: str | None = None, seed: int | None = None) -> "Schedule":
        """Return a trial's learned schedule, ready for a plain torch optimizer.

        By default it is a sweep's best trial's, else the first trial's. The `arm` `best` means the best trial.
        """
        return _schedule(self._client.send(calls.schedule(self.id, arm=arm, seed=seed)))

    def frame(self, name: str | None = None, *, arm: str | None = None, seed: int | None = None) -> "DataFrame":
        """Return every point of metric `name` (None: of all metrics) as a data frame, by default of all trials.

        The columns are `arm`, `seed`, `step`, `seconds` and the metric's name; for all metrics, `name` and `value`. A
        diverged value is NaN. Raises `ValueError` if no trial reports that name.
        """
        try:
            points = self._client.send(calls.table(self.id, arm=arm, seed=seed, name=name))
        except ApiError as error:
            if error.status == NotFound.status and name is not None:
                display.require_name(name, (each.name for each in self.recorded()))
            if not error.is_about("name"):
                raise
            points = self._client.send(calls.table(self.id, arm=arm, seed=seed))  # an older service has only all
        return display.frame(points, name)

    @overload
    def plot(self) -> plots.Page: ...

    @overload
    def plot(self, name: str, *, x: display.Axis = "seconds") -> "Figure": ...

    def plot(self, name: str | None = None, *, x: display.Axis = "seconds") -> "plots.Page | Figure":
        """Return the job's page with all charts, as `wiretune plot` writes it; a notebook shows it.

        With a `name`, return a figure of that metric over `seconds` or the `step`, one line per trial.
        """
        if name is None:
            return plots.page(plots.plot(self._client, [self.id]))
        return display.figure(self.view, self.metrics(name), x)

    def download(
        self, what: File, path: str | Path | None = None, *, arm: str | None = None, seed: int | None = None
    ) -> Path:
        """Write the schedule, metrics, weights or report to a file and return its path.

        The file appears only when it is complete. If a download of weights breaks off, the next call continues it.
        By default the file goes to the working folder; in a folder it gets its usual name. `arm` and `seed` choose the
        trial: by default a sweep's best, else the first, for metrics all. The `arm` `best` means the best trial. Raises
        `OSError` at once if no file can be written there.
        """
        place, call = _download(self.id, what, path, arm=arm, seed=seed)
        with resumable(place) as out:
            self._client.save(call, out)
        return place

    def download_file(self, path: str, place: str | Path | None = None) -> Path:
        """Write a file of the job's folder on storage to `place`, and return its path.

        `path` is a checkpoint's manifest, or a file that it names. The file appears only when complete. If the download
        breaks off, the next call continues it. By default it goes to the working folder; in a folder it keeps its name.
        """
        place = _place(place, Path(path).name)
        with resumable(place) as out:
            self._client.save(calls.file(self.id, path), out)
        return place


def _asked_later(
    describe: Callable[Concatenate[str, P], Call[T]],
) -> "Callable[Concatenate[AsyncJob, P], Awaitable[T]]":
    @wraps(describe)
    async def method(self: "AsyncJob", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._client.send(describe(self.id, *args, **kwargs))

    return method


def _done_later(
    describe: Callable[Concatenate[str, P], Call[JobView]],
) -> "Callable[Concatenate[AsyncJob, P], Awaitable[AsyncJob]]":
    @wraps(describe)
    async def method(self: "AsyncJob", /, *args: P.args, **kwargs: P.kwargs) -> "AsyncJob":
        self.view = await self._client.send(describe(self.id, *args, **kwargs))
        return self

    return method


class AsyncJob(_Handle):
    """A job of a service for asyncio: the twin of `Job`. Every method that asks the service is awaited."""

    def __init__(self, client: Awaited, view: JobView) -> None:
        super().__init__(view)
        self._client = client

    trials = _asked_later(calls.trials)
    stages = _asked_later(calls.stages)
    metrics = _asked_later(calls.metrics)
    recorded = _asked_later(calls.recorded)
    attempts = _asked_later(calls.attempts)
    report = _asked_later(calls.report)
    comparison = _asked_later(calls.comparison)
    snapshot = _asked_later(calls.snapshot)
    artifacts = _asked_later(calls.artifacts)
    logs = _asked_later(calls.logs)
    pause = _done_later(calls.pause)
    resume = _done_later(calls.resume)
    stop = _done_later(calls.stop)
    stop_trial = _done_later(calls.stop_trial)
    cancel = _done_later(calls.cancel)
    retry = _done_later(calls.retry)
    extend = _done_later(calls.extend)
    steer = _done_later(calls.steer)
    steering = _asked_later(calls.steering)
    edit = _done_later(calls.edit)
    delete = _asked_later(calls.delete)

    async def clone(
        self, changes: Mapping[str, Any], *, trial: str | None = None, idempotency_key: str | None = None
    ) -> "AsyncJob":
        """As `Job.clone`."""
        made = await self._client.send(calls.clone(self.id, changes, trial=trial, idempotency_key=idempotency_key))
        return AsyncJob(self._client, _made(made.job))

    def events(self, *, after: int | None = None, kinds: Collection[EventKind] = ()) -> AsyncIterator[Event]:
        """As `Job.events`."""
        return self._client.events(self.id, after=after, kinds=kinds)

    async def refresh(self) -> Self:
        """Fetch the job and its trials again."""
        self.view, self._trials = await self._client.send(calls.job(self.id)), await self.trials()
        return self

    async def wait(self, *, timeout_s: float | None = None, poll_s: float | None = None) -> Self:
        """As `Job.wait`."""
        async for view in self._client.watch(self.id, timeout_s=timeout_s, poll_s=poll_s):
            self.view = view
        self._trials = await self._client.send(calls.trials(self.id), is_waiting=timeout_s is None)
        return self

    async def watch(self, *, timeout_s: float | None = None, poll_s: float | None = None) -> Self:
        """As `Job.watch`."""
        before: JobView | None = None
        far = ""
        with display.screen() as show:
            async for view in self._client.watch(self.id, timeout_s=timeout_s, poll_s=poll_s):
                if not stands_still(before, view):
                    self._trials = await self._client.send(calls.trials(self.id), is_waiting=timeout_s is None)
                    listed = await self._client.send(calls.with_progress(self.id), is_waiting=timeout_s is None)
                    far = "".join(map(display.how_far, listed.jobs))
                before = self.view = view
                show(self.view, self._trials, far)
        return self

    async def schedule(self, *, arm: str | None = None, seed: int | None = None) -> "Schedule":
        """As `Job.schedule`."""
        return _schedule(await self._client.send(calls.schedule(self.id, arm=arm, seed=seed)))

    async def frame(self, name: str | None = None, *, arm: str | None = None, seed: int | None = None) -> "DataFrame":
        """As `Job.frame`."""
        try:
            points = await self._client.send(calls.table(self.id, arm=arm, seed=seed, name=name))
        except ApiError as error:
            if error.status == NotFound.status and name is not None:
                display.require_name(name, [each.name for each in await self.recorded()])
            if not error.is_about("name"):
                raise
            points = await self._client.send(calls.table(self.id, arm=arm, seed=seed))  # an older service has only all
        return display.frame(points, name)

    @overload
    async def plot(self) -> plots.Page: ...

    @overload
    async def plot(self, name: str, *, x: display.Axis = "seconds") -> "Figure": ...

    async def plot(self, name: str | None = None, *, x: display.Axis = "seconds") -> "plots.Page | Figure":
        """As `Job.plot`."""
        if name is None:
            answers: dict[str, Any] = {}
            while asked := plots.calls_for([self.id], answers):
                answers |= {path: await self._client.send(call) for path, call in asked.items()}
            return plots.page(plots.answered([self.id], answers))
        return display.figure(self.view, await self.metrics(name), x)

    async def download(
        self, what: File, path: str | Path | None = None, *, arm: str | None = None, seed: int | None = None
    ) -> Path:
        """As `Job.download`."""
        place, call = _download(self.id, what, path, arm=arm, seed=seed)
        with resumable(place) as out:
            await self._client.save(call, out)
        return place

    async def download_file(self, path: str, place: str | Path | None = None) -> Path:
        """As `Job.download_file`."""
        place = _place(place, Path(path).name)
        with resumable(place) as out:
            await self._client.save(calls.file(self.id, path), out)
        return place


def _made(view: JobView | None) -> JobView:
    assert view is not None, "only a dry run makes no job"
    return view


def _schedule(view: ScheduleView) -> "Schedule":
    from search.schedule import Schedule  # loads torch

    return Schedule.model_validate(view.model_dump())


def _download(job_id: str, what: File, path: str | Path | None, **chosen: Any) -> tuple[Path, Call[Any]]:
    """Return the path of a file, and the call that fetches it."""
    if what not in _FILES:
        raise ValueError(f"`what` must be one of {', '.join(_FILES)}, got {what!r}")
    name, describe = _FILES[what]
    given = {option: value for option, value in chosen.items() if value is not None}
    return _place(path, name), describe(job_id, **given)


def _place(given: str | Path | None, name: str) -> Path:
    """Return the path for a file of that name: the given place, or the name inside it if it is a folder."""
    place = Path(given or name)
    return place / name if place.is_dir() else place
