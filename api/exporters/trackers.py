"""A job's trials as the runs of an experiment tracker: every point once, and totals that are the ledger's."""

import csv
import io
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from api.client import Client
from search.sweep.spec import SampleValues
from service.job.states import TERMINAL, JobState
from service.job.sweep import at
from service.wire.jobs import JobView
from service.wire.reports import TrialReport
from service.wire.trials import TrialView

POLL_S = 2.0
#: Every look reads all points, so that a long job is looked at less often.
_PAUSE_SHARE, _MAX_PAUSE_S = 9.0, 60.0


class Point(NamedTuple):
    """A point of a series; None: the value diverged."""

    step: int
    seconds: float
    value: float | None


Points = Mapping[str, Sequence[Point]]
Trial = tuple[str, int]  # arm, seed


@dataclass(frozen=True)
class Subject:
    """The subject of a run: a trial of a job."""

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
        """The job in its user's words, for this seed and with the arm's overrides, or the values drawn for a sample."""
        job = self.job.readable
        spec = at(job, self.drawn).model_dump(mode="json", exclude={"arms", "seeds"})
        arm = next((each for each in job.arms if each.name == self.arm), None)
        overrides = arm.model_dump(mode="json", exclude={"name"}, exclude_none=True) if arm else {}
        return spec | overrides | {"job": self.job.id, "arm": self.arm, "seed": self.seed}

    def time_at(self, seconds: float) -> float:
        """Return when that was on the training clock, in Unix time; pauses do not count."""
        return (self.job.started_at or self.job.created_at).timestamp() + seconds


class Writer(Protocol):
    """A run in a tracker, which begins empty: what an earlier export of the same trial wrote is gone."""

    place: str

    def add(self, points: Points) -> None:
        """Write points, none of which was written before."""

    def finish(self, totals: Mapping[str, float], outcome: str) -> None:
        """Write the trial's final figures, and how it ended."""

    def close(self, *, is_broken_off: bool = False) -> None:
        """Give back what the run holds open. One without a `finish` goes on, unless its user broke the export off."""


Begin = Callable[[Subject], Writer]


@dataclass
class Run:
    """A run, and the points it has: of each series those that came first.

    A job may take steps back and train them anew. A run in which such points were written is begun again, since no
    tracker forgets a point.
    """

    begin: Callable[[], Writer]
    writer: Writer = field(init=False)
    written: Points = field(init=False)

    def __post_init__(self) -> None:
        self._begin_empty()

    def update(self, points: Points) -> None:
        """Have the run hold `points` and no others."""
        if any(list(points.get(name, ()))[: len(old)] != old for name, old in self.written.items()):
            self.writer.close()
            self._begin_empty()
        new = {name: series[len(self.written.get(name, ())) :] for name, series in points.items()}
        self.writer.add({name: series for name, series in new.items() if series})
        self.written = points

    def _begin_empty(self) -> None:
        self.writer, self.written = self.begin(), {}


class Exported(NamedTuple):
    """A run, and what is in it."""

    place: str
    content: str


def export(
    client: Client, job_id: str, begin: Begin, *, arm: str | None = None, seed: int | None = None, follow: bool = False
) -> Iterator[Exported]:
    """Write the chosen trials of a job, by default all; `follow` it until it is over, else write what there is."""
    runs: dict[Trial, Run] = {}
    looks = client.watch(job_id, poll_s=POLL_S) if follow else iter([client.job(job_id).view])
    seen: tuple[TrialView, ...] = ()
    try:
        for job in looks:
            if follow and job.started_at is None and not job.is_over:
                continue  # a run keeps what its times are counted from
            begun = time.monotonic()
            if seen != (seen := client.trials(job_id)) or job.is_over:  # the last points may not show there
                _update(runs, client, job, seen, begin, arm=arm, seed=seed)
            if follow:
                time.sleep(min(_PAUSE_SHARE * (time.monotonic() - begun), _MAX_PAUSE_S))
        report = client.report(job_id)
        results = {(trial.arm, trial.seed): trial for trial in report.trials}
        for trial, run in runs.items():
            run.writer.finish(totals(results[trial]), outcome_of(results[trial], report.state))
            num_points = sum(map(len, run.written.values()))
            yield Exported(run.writer.place, f"{num_points} points of arm {trial[0]}, seed {trial[1]}")
    finally:
        is_broken_off = isinstance(sys.exception(), KeyboardInterrupt)
        for run in runs.values():
            run.writer.close(is_broken_off=is_broken_off)


def _update(
    runs: dict[Trial, Run],
    client: Client,
    job: JobView,
    trials: Iterable[TrialView],
    begin: Begin,
    *,
    arm: str | None,
    seed: int | None,
) -> None:
    """Bring the runs up to what the service has. A run begins with the first look, a sample's once it is drawn."""
    found = read_points(client, job.id, arm=arm, seed=seed)
    for trial in trials:
        key = trial.arm, trial.seed
        drawn = {} if trial.sample is None else trial.sample.values
        if arm in (None, trial.arm) and seed in (None, trial.seed) and drawn is not None:
            subject = Subject(job, *key, drawn)
            run = runs.get(key) or runs.setdefault(key, Run(partial(begin, subject)))
            run.update(found.get(key, {}))


def read_points(
    client: Client, job_id: str, *, arm: str | None = None, seed: int | None = None
) -> dict[Trial, dict[str, list[Point]]]:
    """Return every point that the service has, by trial and series."""
    table = io.BytesIO()
    client.save_metrics(job_id, table, arm=arm, seed=seed)
    found: dict[Trial, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(io.StringIO(table.getvalue().decode(), newline="")):
        point = Point(int(row["step"]), float(row["seconds"]), float(row["value"]) if row["value"] else None)
        found[row["arm"], int(row["seed"])][row["name"]].append(point)
    return found


def totals(trial: TrialReport) -> dict[str, float]:
    """Return a trial's bill and final figures by name, as `bill/bytes_sent`; what is unknown is left out."""
    final = {"validation_loss": trial.validation_loss, **trial.validation_metrics}
    given = {"bill": trial.bill.model_dump(mode="json"), "final": final}
    return {name: value for name, value in flat(given).items() if isinstance(value, int | float)}


def outcome_of(trial: TrialReport, state: JobState) -> str:
    """Return how a trial of a job in this `state` ended: its own outcome, else the job's; `unfinished`: neither has.

    A job that was stopped has succeeded: a trial of it that had no time to begin has `not finished`.
    """
    if trial.outcome is not None:
        return trial.outcome
    if state in (JobState.FAILED, JobState.CANCELLED):
        return str(state)
    return "not finished" if state in TERMINAL else "unfinished"


def flat(content: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return nested fields by their path, as `exchange/kind`; a list is JSON, what is not given is left out."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{place}{name}/")
        elif value is not None:
            found[f"{place}{name}"] = json.dumps(value) if isinstance(value, list) else value
    return found
