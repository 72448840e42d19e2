"""A run that the service ends early: one trial that a person stopped, and a job at its limit."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.cluster.attempt import is_wanted
from service.control.access.rules import Principal
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.settings import Settings
from service.wire.access import Role
from service.wire.records import AnyRecord, AttemptFinished, Batch, Control, MetricPoints, TrialFinished
from tests.support.small_trials import Memory

STEPS, LIMIT_S = 400, 600.0
JOB = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "sgd"},
    "controller": {"kind": "fixed"},
    "arms": [{"name": "hopeless"}, {"name": "good"}],
    "budget": {"steps": STEPS},
    "objective": {"every": 30},
}


class ToTheService(Memory):
    """A sink that hands the records to the service at once, and hears its answers, as a reporter does.

    `at_step` is called once, when the run has trained that far.
    """

    def __init__(self, store: Store, trial_id: str, *, step: int, at_step: Callable[[], object]) -> None:
        super().__init__()
        self._store, self._trial_id, self._sequence = store, trial_id, 0
        self._step: int | None = step
        self._at_step = at_step
        self._asked = Control.RUN

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        if not records:
            return
        self._sequence += 1
        batch = Batch(stream=self._trial_id, sequence=self._sequence, records=records)
        self._asked = self._store.attempts.ingest(self._trial_id.partition(".")[0], 1, batch).control
        if self._step is not None and any(_last_step(record) >= self._step for record in records):
            self._step = None
            self._at_step()

    def asked(self) -> Control:
        return self._asked


def _last_step(record: AnyRecord) -> int:
    return record.steps[-1] if isinstance(record, MetricPoints) else -1


@pytest.fixture
def store(tmp_path: Path, put_sqlite: Callable[[Settings], None]) -> Iterator[Store]:
    settings = Settings(state_dir=tmp_path)
    put_sqlite(settings)
    store = Store.open(settings)
    yield store
    store.close()


@pytest.fixture
def run(store: Store, arithmetic_group: Callable[..., Any]) -> Callable[..., dict[str, TrialFinished]]:
    """Trains the wanted trials of a job one after the other, as its driver does, and returns their ends by arm."""

    def run(job_id: str, at_step: Callable[[], object]) -> dict[str, TrialFinished]:
        store.attempts.begin(job_id)
        ends = {}
        for number, spec in enumerate(store.job(job_id).readable.trials()):
            brief = store.attempts.brief(job_id, 1)
            point = brief.trials[number]
            if not is_wanted(brief, point):
                continue
            sink = ToTheService(store, point.trial_id, step=100, at_step=at_step if number == 0 else lambda: None)
            url = brief.storage_url
            trial.train(spec, arithmetic_group(), sink, trial_id=point.trial_id, storage_url=url)
            ends[spec.arm] = sink.finished
        ended = Batch(stream="driver", sequence=1, records=(AttemptFinished(outcome="succeeded"),))
        store.attempts.ingest(job_id, 1, ended)
        return ends

    return run


def test_a_trial_that_a_person_stops_keeps_what_it_has_and_the_other_trains_to_its_end(
    store: Store, run: Callable[..., dict[str, TrialFinished]]
) -> None:
    job_id = store.add_job(JobSpec.model_validate(JOB))[0].id
    olga = Principal(name="olga", role=Role.OPERATOR, project="default")

    ends = run(job_id, lambda: store.stop_trial(job_id, f"{job_id}.hopeless.0", by=olga))

    steps = ends["hopeless"].bill.steps
    assert 100 <= steps < STEPS and ends["good"].bill.steps == STEPS
    assert (ends["hopeless"].stopped, ends["good"].stopped) == (True, False)
    assert ends["hopeless"].weights_url is not None
    job, report = store.job(job_id), store.report(job_id)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, "")
    assert f"stopped early by olga, after {steps} steps" in report.trials[0].notes


def test_a_job_at_its_limit_keeps_what_its_trial_has_and_leaves_out_the_next(
    store: Store, run: Callable[..., dict[str, TrialFinished]]
) -> None:
    spec = JobSpec.model_validate(JOB | {"limits": {"wall_seconds": LIMIT_S}})
    job_id = store.add_job(spec)[0].id

    ends = run(job_id, lambda: store.attempts.renew(job_id, 1, held_s=LIMIT_S))

    [(arm, end)] = ends.items()
    assert arm == "hopeless" and end.stopped and 100 <= end.bill.steps < STEPS
    job = store.job(job_id)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, "stopped: it held its workers for 600 s, its limit")
    assert store.trials(job_id)[1].outcome is None
