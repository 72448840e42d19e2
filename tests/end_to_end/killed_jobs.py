"""Jobs of a live service whose processes are killed during training, and their complete results."""

import csv
import hashlib
import io
import random
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from faults.live import LiveService, insist, kill

from api.client import Client
from service.control import processes
from service.job.spec import JobSpec
from service.job.states import TERMINAL, JobState

#: What is killed, the job's attempt with it: the process of the driver, or Tune's of a trial.
KINDS = ("driver", "trial")
#: Longest wait for a job to train, or to end: it may have to begin anew on a busy machine.
PATIENCE_S = 600.0
#: Between the sight of the steps and the kill.
_MAX_AFTER_S = 0.3


class Moment(NamedTuple):
    """When to kill what: `after_s` behind the sight of `step` committed steps, of all trials together."""

    step: int
    after_s: float
    kind: str


class Outcome(NamedTuple):
    """What a job has left behind, but for what clocks read."""

    attempts: int
    points: dict[tuple[str, ...], str]  # value by arm, seed, metric and step
    weights: dict[tuple[str, int], str]  # hash of the exported file, by arm and seed
    schedules: dict[tuple[str, int], Any]


def draw(seed: str, num_kills: int, *, before: int) -> list[Moment]:
    """Return moments at a step below `before`, in order; committed steps are known a little after they are made."""
    moments = random.Random(seed)
    at = sorted(moments.randrange(before) for _ in range(num_kills))
    return [Moment(step, moments.uniform(0, _MAX_AFTER_S), moments.choice(KINDS)) for step in at]


def run_and_kill(service: LiveService, job: JobSpec, moments: Sequence[Moment]) -> tuple[str, Counter[str]]:
    """Run a job alone on `service`, kill at `moments`, and return its id and who was killed, right after the last."""
    killed: Counter[str] = Counter()
    with service.client() as client:
        job_id = submit(client, job)
        for attempt, moment in enumerate(moments, start=1):
            _await_steps(client, job_id, attempt=attempt, step=moment.step)
            time.sleep(moment.after_s)  # the moment
            kill(service.victim(moment.kind, jobs=[job_id], draw=random.Random(moment.step)))
            killed[moment.kind] += 1
    return job_id, killed


def submit(client: Client, job: JobSpec) -> str:
    """Submit a job until it is acknowledged, and return its id."""
    key = uuid.uuid4().hex
    return insist(lambda: client.submit(job, idempotency_key=key)).id


def _await_steps(client: Client, job_id: str, *, attempt: int, step: int) -> None:
    def is_there() -> bool:
        view = insist(lambda: client.job(job_id)).view
        assert view.state not in TERMINAL, f"{job_id} {view.state} before its kill at step {step}: {view.reason}"
        is_running = view.attempt == attempt and view.state is JobState.RUNNING
        return is_running and sum(trial.step for trial in insist(lambda: client.trials(job_id))) >= step

    in_time = processes.wait_until(is_there, timeout_s=PATIENCE_S, every_s=0.1)
    assert in_time, f"{job_id} had no {step} steps in attempt {attempt} within {PATIENCE_S:g} s"


def outcome(client: Client, job_id: str, *, within_s: float = PATIENCE_S) -> Outcome:
    """Wait for a job to succeed, and return what it left."""
    is_over = lambda: insist(lambda: client.job(job_id)).state in TERMINAL  # noqa: E731
    assert processes.wait_until(is_over, timeout_s=within_s, every_s=0.5), f"{job_id} was not over in {within_s:g} s"
    return insist(lambda: _outcome(client, job_id))


def _outcome(client: Client, job_id: str) -> Outcome:
    view = client.job(job_id).view
    assert view.state is JobState.SUCCEEDED, view.reason
    trials = {(trial.arm, trial.seed): trial for trial in client.trials(job_id)}
    return Outcome(
        attempts=view.attempt,
        points=_points(client, job_id),
        weights={each: _digest(str(trial.weights_url)) for each, trial in trials.items()},
        schedules={(arm, seed): client.schedule(job_id, arm=arm, seed=seed).entries for arm, seed in trials},
    )


def _points(client: Client, job_id: str) -> dict[tuple[str, ...], str]:
    table = io.BytesIO()
    client.save_metrics(job_id, table)
    rows = list(csv.DictReader(table.getvalue().decode().splitlines()))
    points = {(row["arm"], row["seed"], row["name"], row["step"]): row["value"] for row in rows}
    assert len(points) == len(rows), f"{job_id} has points twice"
    return points


def _digest(url: str) -> str:
    return hashlib.sha256(Path(url.removeprefix("file://")).read_bytes()).hexdigest()
