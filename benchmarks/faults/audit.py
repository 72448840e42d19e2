"""What a service must answer for after everything of it was killed: counts of what is lost, doubled, stuck or left."""

import hashlib
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from faults.clients import KEY_LABEL, Book
from faults.live import LiveService, command_line

from api.client import Client
from service.control import processes
from service.job.states import TERMINAL, JobState
from service.wire.jobs import JobSummary

#: Longest that something may take to be gone after the last job is over.
_GONE_S = 60.0
_MAX_POINTS = 5000
_OF_JOBS = (b"service.cluster.entrypoint", b"ray::ImplicitFunc", b"ray::RankActor")
Json = dict[str, Any]


def of_jobs(client: Client, book: Book) -> Json:
    """Return what is wrong with submissions, states, points and weights, in counts; `book.runs` begins undisturbed."""
    jobs = {job.id: job for job in _all_jobs(client)}
    keys = Counter(job.labels[KEY_LABEL] for job in jobs.values())
    states = Counter(job.state for job in jobs.values())
    return {
        "submitted": book.sent,
        "acknowledged": len(book.acknowledged),
        "lost": len(set(book.acknowledged.values()) - set(jobs)),
        "duplicates": len(book.contradicted) + keys.total() - len(keys),
        "wedged": sum(number for state, number in states.items() if state not in TERMINAL),
        "failed": states[JobState.FAILED],
    } | _of_runs(
        client,
        {job: family for job, family in book.runs.items() if job in jobs and jobs[job].state is JobState.SUCCEEDED},
    )


def _all_jobs(client: Client) -> Iterator[JobSummary]:
    cursor = None
    while True:
        page = client.jobs(limit=200, cursor=cursor)
        yield from page.jobs
        if (cursor := page.next_cursor) is None:
            return


def _of_runs(client: Client, runs: dict[str, str]) -> Json:
    """Compare each run's points and weights with those of the first of its family, which nobody disturbed."""
    first: dict[str, Json] = {}
    found = {"runs": len(runs), "points_lost": 0, "points_doubled": 0, "points_differ": 0, "weights_differ": 0}
    for job, family in runs.items():
        result = _result(client, job)
        reference = first.setdefault(family, result)
        found["points_lost"] += len(set(range(result["steps"])) - set(result["points"]))
        found["points_doubled"] += result["num_points"] - len(result["points"])
        found["points_differ"] += result["points"] != reference["points"]
        found["weights_differ"] += result["weights"] != reference["weights"]
    return found


def _result(client: Client, job: str) -> Json:
    (trial,) = client.trials(job)
    (losses,) = client.metrics(job, "loss", max_points=_MAX_POINTS)
    assert trial.weights_url is not None
    weights = Path(trial.weights_url.removeprefix("file://")).read_bytes()
    return {
        "steps": trial.bill.steps,
        "num_points": losses.num_points,
        "points": dict(zip(losses.steps, losses.values, strict=True)),
        "weights": hashlib.sha256(weights).hexdigest(),
    }


def of_leftovers(service: LiveService, book: Book) -> Json:
    """Stop the service, and return what is left of it: processes, folders, and what its database says of itself."""
    orphans = _after_a_while(lambda: [pid for pid in processes.descendants(os.getpid()) if _is_of_a_job(pid)])
    folders = _after_a_while(lambda: _folders_of_tune(set(book.acknowledged.values())))
    service.stop()
    remaining = _after_a_while(lambda: processes.descendants(os.getpid()))
    stale = [] if service.temp_dir() is None else [service.temp_dir()]
    with closing(sqlite3.connect(service.settings.state_dir / "wiretune.db")) as database:
        (said,) = database.execute("PRAGMA integrity_check").fetchone()
    return {
        "orphans": len(orphans) + len(remaining),
        "folders": len(folders) + len(stale),
        "damaged": int(said != "ok"),
    }


def _is_of_a_job(pid: int) -> bool:
    return any(word in command_line(pid) for word in _OF_JOBS)


def _folders_of_tune(jobs: set[str]) -> list[Path]:
    """Return the folders that drivers of these jobs have left."""
    entries = Path(tempfile.gettempdir()).glob("wiretune-tune-*/*")
    return [entry for entry in entries if entry.name.rpartition("-a")[0] in jobs]


def _after_a_while(look: Any) -> list[Any]:
    """Return what `look` still sees after `_GONE_S`, or nothing as soon as it sees nothing."""
    found: list[Any] = []

    def is_gone() -> bool:
        found[:] = look()
        return not found

    processes.wait_until(is_gone, timeout_s=_GONE_S, every_s=0.5)
    return found
