"""A PostgreSQL that crashes and recovers: refusals meanwhile, normal service afterwards, and nothing counts twice."""

import pytest
from sqlalchemy import event, select

from service.control import jobs
from service.control.access.rules import LOCAL
from service.errors import DatabaseUnavailable, Unavailable
from service.wire.records import Batch, MetricPoints
from tests.store.conftest import Group, only

pytestmark = only("postgresql")


def test_a_crashed_database_refuses_and_answers_again_once_it_is_back(store, spec, own_postgres):
    job, _ = store.add_job(spec)

    with own_postgres.crashed():
        with pytest.raises(Unavailable, match="try again"):
            store.job(job.id)
        with pytest.raises(Unavailable, match="try again"):
            store.add_job(spec, idempotency_key="k")

    assert store.job(job.id) == job
    assert store.add_job(spec, idempotency_key="k")[1]


def test_a_group_that_loses_its_connection_is_refused_as_one_and_stores_nothing(store, spec, own_postgres, pool):
    def crash(session):
        with own_postgres.crashed():
            pass
        session.execute(select(1))

    def add(session):
        jobs.add(session, spec, by=LOCAL, key="k", now=0.0, key_s=0.0, quotas={})

    group = Group(store, pool)
    written = [group.add(function) for function in (add, crash, add)]
    group.release()

    assert [type(future.exception(30)) for future in written] == [DatabaseUnavailable] * 3
    assert {str(future.exception()) for future in written} == {str(written[1].exception())}
    assert store.work.owned() == ()
    assert store.add_job(spec)[1]


@pytest.fixture
def batch(driver):
    point = MetricPoints(trial_id=driver.trial_id, name="loss", steps=(0,), seconds=(0.1,), values=(0.5,))
    return Batch(stream=driver.trial_id, sequence=1, records=(point,))


def test_a_batch_whose_commit_was_lost_counts_once_when_it_is_sent_again(store, driver, batch, own_postgres):
    @event.listens_for(store._db.engine, "commit", once=True)
    def crash(_connection):
        with own_postgres.crashed():
            pass

    with pytest.raises(Unavailable):
        store.attempts.ingest(driver.job_id, 1, batch)
    assert store.series(driver.job_id, "loss")[0].num_points == 0

    assert store.attempts.ingest(driver.job_id, 1, batch).sequence == 1
    assert store.series(driver.job_id, "loss")[0].values == (0.5,)


def test_a_batch_whose_answer_was_lost_is_acknowledged_when_it_is_sent_again(store, driver, batch, own_postgres):
    store.attempts.ingest(driver.job_id, 1, batch)
    with own_postgres.crashed():
        pass

    other = batch.model_copy(update={"records": ()})
    assert store.attempts.ingest(driver.job_id, 1, other).sequence == 1
    assert store.series(driver.job_id, "loss")[0].values == (0.5,)
