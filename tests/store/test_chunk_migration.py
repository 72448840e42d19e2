"""Points that an earlier release stored as rows, under a job that continues."""

import pytest
from sqlalchemy import column, func, insert, select, table

from service.control.database.engine import connect
from service.control.database.schema import migrate
from service.control.metrics import points
from service.control.metrics.columns import Point
from service.control.models import AttemptRow, ChunkRow, JobRow, PointRow, TrialRow
from service.control.store import Store
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.records import Batch, MetricPoints

NUM_POINTS = 2 * points.CHUNK + 100
SPEC = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}})


@pytest.fixture(params=["sqlite", "empty_postgres_url"])
def settings(request: pytest.FixtureRequest, tmp_path) -> Settings:
    url = "" if request.param == "sqlite" else request.getfixturevalue(request.param)
    return Settings(state_dir=tmp_path, database_url=url)


JOB, TRIAL = "job-1", "job-1.tuned.0"


def _old(settings: Settings) -> None:
    """Make the database of the release before, with a running job and its points."""
    engine = connect(settings.resolved_database_url)
    migrate(engine, revision="0008")
    with engine.begin() as connection:
        job = {"id": JOB, "name": "old", "state": "running", "reason": "", "spec": SPEC.model_dump(mode="json")}
        job |= {"attempt": 1, "attempts_before": 0, "stops": False, "version": 3, "created_at": 0.0, "not_before": 0.0}
        attempt = {"job_id": JOB, "number": 1, "submission_id": "", "began_at": 0.0, "lease_expires": 0.0}
        attempt |= {"reason": "", "log_kept": False}
        for model, row in ((JobRow, job), (AttemptRow, attempt)):  # without the columns of later releases
            columns = [column(name, each.type) for name, each in model.__table__.columns.items() if name in row]
            connection.execute(insert(table(model.__tablename__, *columns)), row)
        connection.execute(
            insert(TrialRow), {"id": TRIAL, "job_id": JOB, "position": 0, "arm": "tuned", "seed": 0, "bill": {}}
        )
        rows = [{"trial_id": TRIAL, "name": "loss"} | sample._asdict() for sample in map(_sample, range(NUM_POINTS))]
        connection.execute(insert(PointRow), rows)
    engine.dispose()


def _sample(step: int) -> Point:
    return Point(step, 0.1 * step, None if step == 7 else 1.0 / (step + 1))


def test_a_running_jobs_points_go_into_chunks_and_it_reports_on(settings: Settings) -> None:
    _old(settings)

    store = Store.open(settings)

    assert [sample[1:] for sample in store.points(TRIAL)] == [_sample(step) for step in range(NUM_POINTS)]
    with store._db.reading() as session:
        assert session.scalar(select(func.count()).select_from(PointRow)) == 100
        assert session.scalar(select(func.count()).select_from(ChunkRow)) == 2
    steps, seconds, values = zip(*map(_sample, range(NUM_POINTS, NUM_POINTS + 50)), strict=True)
    record = MetricPoints(trial_id=TRIAL, name="loss", steps=steps, seconds=seconds, values=values)
    store.attempts.ingest(JOB, 1, Batch(stream=TRIAL, sequence=1, records=(record,)))
    assert [sample[1:] for sample in store.points(TRIAL)] == [_sample(step) for step in range(NUM_POINTS + 50)]
    store.close()
