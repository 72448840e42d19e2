"""A job's trials as runs of an experiment tracker: every point once, and totals equal to the ledger's."""

import csv
import io
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from api.client import Client
from api.disclosure import without_secrets
from api.failures import ApiError
from search.sweep.spec import SampleValues
from service.errors import NotFound, WiretuneError
from service.job.states import TERMINAL, JobState
from service.job.sweep import at
from service.wire.jobs import JobView
from service.wire.reports import TrialReport
from service.wire.trials import SeriesExtent, TrialView

POLL_S = 2.0
#: Polls of many trials take long, so they come less often.
_PAUSE_SHARE, _MAX_PAUSE_S = 9.0, 60.0
#: The pause after a tracker's first failure.
_FIRST_AGAIN_S = 1.0


class Point(NamedTuple):
    """A point of a series. A value of None has diverged."""

    step: int
    seconds: float
    value: float | None


class TrackerError(WiretuneError):
    """A tracker refused a write, or could not be reached."""


@contextmanager
def told_as(tracker: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise the tracker's own `errors` as `TrackerError`; decorates a writer's methods."""
    try:
        yield
    except errors as error:
        line, *_ = str(error).strip().splitlines() or [type(error).__name__]
        said = re.sub(r"//[^/@\s]*@", "//", line)  # a URL may hold a password
        raise TrackerError(f"{tracker} did not take the points: {said}") from error


Points = Mapping[str, Sequence[Point]]
Trial = tuple[str, int]  # arm, seed


@dataclass(frozen=True)
class Subject:
    """A trial of a job, as the subject of a run."""

    job: JobView
    arm: str  # or a sample's name
    seed: int
    drawn: SampleValues = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run's name, unique within its job."""
        return f"{self.arm}-seed-{self.seed}"

    @property
    def parameters(self) -> dict[str, Any]:
        """The job as its user wrote it, for this seed, with the arm's overrides or the values drawn for a sample.

        Secrets are left out: others may read the tracker.
        """
        job = self.job.readable
        spec = at(job, self.drawn).model_dump(mode="json", exclude={"arms", "seeds"})
        arm = next((each for each in job.arms if each.name == self.arm), None)
        overrides = arm.model_dump(mode="json", exclude={"name"}, exclude_none=True) if arm else {}
        shown: dict[str, Any] = without_secrets(spec | overrides)
        return shown | {"job": self.job.id, "arm": self.arm, "seed": self.seed}

    def time_at(self, seconds: float) -> float:
        """Return the Unix time at `seconds` on the training clock, as if there had been no pause."""
        return (self.job.started_at or self.job.created_at).timestamp() + seconds


class Writer(Protocol):
    """A run in a tracker. It begins empty: an earlier export of the same trial is replaced.

    Beginning and every method raise `TrackerError`, and may then be repeated.
    """

    place: str

    def add(self, points: Points) -> None:
        """Write points that were not written before, or not all of them."""

    def finish(self, totals: Mapping[str, float], outcome: str) -> None:
        """Write the trial's final figures and its outcome."""

    def close(self, *, is_broken_off: bool = False) -> None:
        """Release open resources. Without a `finish` the run goes on, unless the user broke the export off."""


Begin = Callable[[Subject], Writer]


class _Written(NamedTuple):
    """The written part of a series: the number of its points, and the last of them."""

    num_points: int
    last: Point

    def ends(self, extent: SeriesExtent) -> bool:
        """Return whether the service has exactly this many points, up to the same last one."""
        found = extent.num_points, extent.last_step, extent.last_value
        return found == (self.num_points, self.last.step, self.last.value)


@dataclass
class Run:
    """A run, and a summary of what was written to it so far.

    A job may roll back steps and train them again. No tracker deletes points, so a run that holds such points is begun
    again.
    """

    begin: Callable[[], Writer]
    read: Callable[[int], Points]  # returns the trial's points from a step on
    writer: Writer = field(init=False)
    written: dict[str, _Written] = field(init=False)

    def __post_init__(self) -> None:
        self._begin_empty()

    @property
    def num_points(self) -> int:
        """The number of points written."""
        return sum(each.num_points for each in self.written.values())

    def update(self, extents: Iterable[SeriesExtent]) -> None:
        """Make the run hold exactly the points of the service; `extents` are those of the trial's series."""
        held = {each.name: each for each in extents if each.num_points}
        changed = {
            name: each for name, each in held.items() if name not in self.written or not self.written[name].ends(each)
        }
        is_gone = bool(self.written.keys() - held.keys())
        if not changed and not is_gone:
            return
        first = min((self.written[name].last.step if name in self.written else 0 for name in changed), default=0)
        found = self.read(first)
        if self.written and (is_gone or self._is_replaced(changed, found, first)):
            self.writer.close()
            self._begin_empty()
            found = self.read(0)
        self._add({name: self._later(name, found[name]) for name in found if name in changed or not self.written})

    def _is_replaced(self, changed: Mapping[str, SeriesExtent], found: Points, first: int) -> bool:
        """Return whether written points are no longer those of the service, by its points `found` from `first` on."""
        for name, old in self.written.items():
            if old.last.step >= first and old.last not in found.get(name, ()):
                return True
        for name, extent in changed.items():
            later = [point for point in self._later(name, found.get(name, ())) if point.step <= (extent.last_step or 0)]
            if (self.written[name].num_points if name in self.written else 0) + len(later) != extent.num_points:
                return True
        return False

    def _later(self, name: str, series: Sequence[Point]) -> Sequence[Point]:
        """Return the points behind the written ones."""
        old = self.written.get(name)
        return series if old is None else [point for point in series if point.step > old.last.step]

    def _add(self, points: Points) -> None:
        points = {name: series for name, series in points.items() if series}
        if points:
            self.writer.add(points)
        for name, series in points.items():
            before = self.written[name].num_points if name in self.written else 0
            self.written[name] = _Written(before + len(series), series[-1])

    def _begin_empty(self) -> None:
        self.writer, self.written = self.begin(), {}


class Exported(NamedTuple):
    """An exported run, and a summary of its content."""

    place: str
    content: str


def export(
    client: Client,
    job_id: str,
    begin: Begin,
    *,
    arm: str | None = None,
    seed: int | None = None,
    follow: bool = False,
    patience_s: float = 0.0,
    note_failure: Callable[[TrackerError], None] = lambda _: None,
) -> Iterator[Exported]:
    """Write the chosen trials of a job, by default all of what there is so far; with `follow`, until it is over.

    A write that the tracker refuses is repeated for `patience_s`, and then raises TrackerError; `note_failure` is told
    of the first refusal.
    """
    persist = partial(_persist, patience_s=patience_s, note_failure=note_failure)
    runs: dict[Trial, Run] = {}
    looks = client.watch(job_id, poll_s=POLL_S) if follow else iter([client.job(job_id).view])
    seen: tuple[TrialView, ...] = ()
    try:
        for job in looks:
            if follow and job.started_at is None and not job.is_over:
                continue  # a run's times count from the start, so it must be known
            begun = time.monotonic()
            if seen != (seen := client.trials(job_id)) or job.is_over:  # the trials may not show the last points
                persist(partial(_update, runs, client, job, seen, begin, arm=arm, seed=seed))
            if follow:
                time.sleep(min(_PAUSE_SHARE * (time.monotonic() - begun), _MAX_PAUSE_S))
        report = client.report(job_id)
        results = {(trial.arm, trial.seed): trial for trial in report.trials}
        for trial, run in list(runs.items()):
            persist(partial(run.writer.finish, totals(results[trial]), outcome_of(results[trial], report.state)))
            persist(run.writer.close)
            del runs[trial]
            yield Exported(run.writer.place, f"{run.num_points} points of arm {trial[0]}, seed {trial[1]}")
    finally:
        is_broken_off = isinstance(sys.exception(), KeyboardInterrupt)
        for run in runs.values():
            with suppress(TrackerError):  # the export has failed already
                run.writer.close(is_broken_off=is_broken_off)


def _persist(act: Callable[[], None], *, patience_s: float, note_failure: Callable[[TrackerError], None]) -> None:
    """Act until the tracker takes it. Raises TrackerError if it does not within `patience_s` of its first refusal."""
    pause_s, deadline = _FIRST_AGAIN_S, None
    while True:
        try:
            return act()
        except TrackerError as error:
            if deadline is None:
                deadline = time.monotonic() + patience_s
                if patience_s:
                    note_failure(error)
            if time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def _update(
    runs: dict[Trial, Run],
    client: Client,
    job: JobView,
    trials: Sequence[TrialView],
    begin: Begin,
    *,
    arm: str | None,
    seed: int | None,
) -> None:
    """Bring the runs up to date. A run begins with the first poll, or for a sample once it is drawn."""
    extents: dict[Trial, list[SeriesExtent]] = defaultdict(list)
    for each in _extents(client, job.id, trials):
        extents[each.arm, each.seed].append(each)
    for trial in trials:
        key = trial.arm, trial.seed
        drawn = {} if trial.sample is None else trial.sample.values
        if arm in (None, trial.arm) and seed in (None, trial.seed) and drawn is not None:
            if key not in runs:
                runs[key] = Run(partial(begin, Subject(job, *key, drawn)), partial(_points_of, client, job.id, key))
            runs[key].update(extents[key])


def _extents(client: Client, job_id: str, trials: Iterable[TrialView]) -> Iterator[SeriesExtent]:
    """Yield how far each series goes. An older service does not say it, so its points are counted."""
    try:
        yield from client.recorded(job_id)
        return
    except ApiError as error:
        if error.status != NotFound.status:
            raise
    found = read_points(client, job_id)
    for trial in trials:
        for name, points in found.get((trial.arm, trial.seed), {}).items():
            yield SeriesExtent(
                trial_id=trial.trial_id,
                arm=trial.arm,
                seed=trial.seed,
                name=name,
                num_points=len(points),
                last_step=points[-1].step,
                last_value=points[-1].value,
            )


def _points_of(client: Client, job_id: str, trial: Trial, first_step: int) -> Points:
    """Return the trial's points from a step on, by series."""
    arm, seed = trial
    return read_points(client, job_id, arm=arm, seed=seed, first_step=first_step).get(trial, {})


def read_points(
    client: Client, job_id: str, *, arm: str | None = None, seed: int | None = None, first_step: int = 0
) -> dict[Trial, dict[str, list[Point]]]:
    """Return the points that the service has, by trial and series; by default all."""
    table = io.BytesIO()
    try:
        client.save_metrics(job_id, table, arm=arm, seed=seed, first_step=first_step or None)
    except ApiError as error:
        if not error.is_about("first_step"):
            raise
        client.save_metrics(job_id, table, arm=arm, seed=seed)  # an older service has only all steps
    found: dict[Trial, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(io.StringIO(table.getvalue().decode(), newline="")):
        point = Point(int(row["step"]), float(row["seconds"]), float(row["value"]) if row["value"] else None)
        if point.step >= first_step:
            found[row["arm"], int(row["seed"])][row["name"]].append(point)
    return found


def totals(trial: TrialReport) -> dict[str, float]:
    """Return a trial's bill and final figures by name, e.g. `bill/bytes_sent`, without unknown ones."""
    on_test = {f"test_{name}": value for name, value in trial.test.items()}
    final = {"validation_loss": trial.validation_loss, **trial.validation_metrics, **on_test}
    given = {"bill": trial.bill.model_dump(mode="json"), "final": final}
    return {name: value for name, value in flat(given).items() if isinstance(value, int | float)}


def outcome_of(trial: TrialReport, state: JobState) -> str:
    """Return how a trial of a job in this `state` ended: its own outcome, else the job's, else `unfinished`.

    A stopped job has succeeded. Its trials that had no time to begin are `not finished`.
    """
    if trial.outcome is not None:
        return trial.outcome
    if state in (JobState.FAILED, JobState.CANCELLED):
        return str(state)
    return "not finished" if state in TERMINAL else "unfinished"


def flat(content: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return nested fields by path, e.g. `exchange/kind`. Lists become JSON, and missing values are left out."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{place}{name}/")
        elif value is not None:
            found[f"{place}{name}"] = json.dumps(value) if isinstance(value, list) else value
    return found
