"""The same job gives the same rows on every database."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

from service.cluster import trial
from service.control.models import Base
from service.control.store import Store
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.records import AnyRecord, AttemptFinished, Batch, Checkpointed, ProbeDone, StageClosed, TrialFinished
from tests.store.conftest import Clock
from tests.support.small_trials import Memory
from trainers.training.process_group import ProcessGroup

SPEC = JobSpec.model_validate(
    {
        "name": "größer ✓",
        "workload": {"kind": "digits-mlp"},
        "exchange": {"kind": "threshold", "density": [0.003, 0.1]},
        "controller": {"kind": "bo", "max_search_fraction": 0.5, "min_probe_steps": 4},
        "budget": {"steps": 120, "bytes": 10**12},
        "objective": {"every": 20},
        "checkpoint": {"every_seconds": 1e-9},
        "labels": {"team": "demo"},
        "webhook": {"url": "https://example.com/hook"},
    }
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('results')}"


@pytest.fixture(scope="module")
def records(results: str) -> list[AnyRecord]:
    """What a real trial on two worker processes reported, of a job called JOB."""
    spec, sink = next(SPEC.trials()), Memory()
    with ProcessGroup(spec.replica, num_workers=2) as group:
        trial.train(spec, group, sink, trial_id="JOB.tuned.0", storage_url=f"{results}/JOB/attempt-1")
    return sink.records


def batches(records: list[AnyRecord], trial_id: str) -> Iterator[Batch]:
    """A batch per record, as of the job that has `trial_id`."""
    job_id = trial_id.partition(".")[0]
    for sequence, record in enumerate(records, start=1):
        named = json.loads(record.model_dump_json().replace("JOB", job_id))
        yield Batch.model_validate({"stream": trial_id, "sequence": sequence, "records": [named]})


def run(settings: Settings, records: list[AnyRecord]) -> tuple[Store, str]:
    """Store a job whose first attempt is lost behind a checkpoint, and whose second goes on from there."""
    store = Store.open(settings, clock=Clock())
    job_id = store.add_job(SPEC, idempotency_key="k")[0].id
    trial_id = store.trials(job_id)[0].trial_id
    kept = [index for index, record in enumerate(records) if isinstance(record, Checkpointed | StageClosed)]
    resume = kept[len(kept) // 2] + 1
    lives = (records[: resume + 3], records[resume:])
    for number, reported in enumerate(lives, start=1):
        store.attempts.begin(job_id)
        for batch in batches(reported, trial_id):
            store.attempts.ingest(job_id, number, batch)
        if number == 1:
            store.attempts.lose(job_id, 1, reason="its driver failed")
    store.attempts.ingest(
        job_id, 2, Batch(stream="driver", sequence=1, records=(AttemptFinished(outcome="succeeded"),))
    )
    return store, job_id


def rows(store: Store, job_id: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, in the order of its key; the job's random name is JOB, an attempt's tail is TAIL."""
    with store._db.engine.connect() as connection:
        found = {table.name: connection.execute(select(table)).all() for table in Base.metadata.sorted_tables}
    return {name: sorted((_renamed(row, job_id) for row in table), key=repr) for name, table in found.items()}


def _renamed(row: Any, job_id: str) -> tuple[Any, ...]:
    named = (repr(value).replace(job_id, "JOB") for value in row)
    return tuple(re.sub(r"(wiretune-JOB-a\d+)-\w+", r"\1-TAIL", value) for value in named)


def test_the_same_job_gives_the_same_rows_on_sqlite_and_postgresql(tmp_path, empty_postgres_url, results, records):
    stored = []
    for name, url in (("sqlite", ""), ("postgresql", empty_postgres_url)):
        store, job_id = run(Settings(state_dir=tmp_path / name, database_url=url, storage_url=results), records)
        stored.append(rows(store, job_id))
        store.close()

    on_sqlite, on_postgresql = stored
    filled = {name for name, table in on_sqlite.items() if table}
    assert on_postgresql == on_sqlite
    assert filled == set(Base.metadata.tables) - {
        "api_keys",
        "retired_secrets",
        "code",
        "code_removals",
        "marks",
        "sessions",
        "sign_in_codes",
        "quotas",
        "removals",
        "steers",
        "metric_chunks",
        "rungs",
    }  # a short job's points stay rows, and it has no sweep
    assert {ProbeDone, StageClosed, Checkpointed, TrialFinished} <= {type(record) for record in records}
