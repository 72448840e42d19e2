"""Two replicas of the API on one PostgreSQL: reports to both count once. SQLite serves one process."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import make_url, select

from service.control import jobs, queries
from service.control.access.rules import LOCAL
from service.control.database import rows
from service.control.models import JobRow
from service.control.store import Store
from service.errors import IllegalTransition, OutOfSequence, Unavailable, WiretuneError
from service.job.states import JobState
from service.wire.records import AttemptFinished, Batch, Control, MetricPoints
from tests.store.conftest import Group, of_a_replica, only
from tests.support.patience import PATIENCE_S

pytestmark = only("postgresql")


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Make the calls from as many threads, and return each one's value or the error it raised."""
    together = threading.Barrier(len(calls), timeout=PATIENCE_S)

    def run(call):
        together.wait()
        try:
            return call()
        except WiretuneError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.mark.parametrize("repetition", range(3))
def test_one_key_sent_to_two_replicas_makes_one_job(replicas, spec, repetition):
    (one, new), (two, new_too) = at_once(*[lambda r=r: r.add_job(spec, idempotency_key="k") for r in replicas])

    assert one == two
    assert (new, new_too) in {(True, False), (False, True)}
    assert [job.id for job in replicas[0].jobs().jobs] == [one.id]


def test_a_key_that_another_replica_is_storing_answers_its_job(replicas, spec, clock, pool):
    first, second = replicas
    stored, release = threading.Event(), threading.Event()

    def add_slowly(session):
        job, _ = jobs.add(session, spec, by=LOCAL, key="k", now=clock(), key_s=3600.0, quotas={})
        rows.store(session)
        stored.set()
        assert release.wait(PATIENCE_S)
        return job.id

    slow = pool.submit(first._db.write, add_slowly)
    assert stored.wait(PATIENCE_S)
    waiting = pool.submit(second.add_job, spec, idempotency_key="k")
    wait_for_a_lock(first)
    release.set()

    job, created = waiting.result(30)
    assert (job.id, created) == (slow.result(30), False)


def wait_for_a_lock(store: Store) -> None:
    """Return once a transaction of the database waits for another."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with store._db.engine.connect() as connection:
            if connection.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar():
                return
    raise AssertionError("nothing waits for a lock after 30 s")


def test_groups_that_want_each_others_rows_are_both_stored(replicas, spec, pool):
    ids = [replicas[0].add_job(spec)[0].id for _ in range(2)]
    both_hold_one = threading.Barrier(2, timeout=PATIENCE_S)
    met = set()

    def meet(group):
        def wait(session):
            if group not in met:  # a group that lost is run again
                met.add(group)
                both_hold_one.wait()

        return wait

    def explain(job_id):
        return lambda session: jobs.explain(jobs.locked(session, job_id), "said")

    groups = [Group(replica, pool) for replica in replicas]
    written = [
        group.add(function)
        for group, (first, second) in zip(groups, (ids, ids[::-1]), strict=True)
        for function in (explain(first), meet(group), explain(second))
    ]
    for group in groups:
        group.release()

    assert [future.exception(30) for future in written] == [None] * 6
    assert [replicas[0].job(job_id).reason for job_id in ids] == ["said"] * 2


def test_a_refused_write_leaves_nothing_stale_to_the_rest_of_its_group(replicas, driver, pool):
    mine, other = replicas
    seen = []

    def refused(session):
        seen.append(jobs.locked(session, driver.job_id))  # as the error's traceback holds it
        seen[-1].reason = "changed"  # or it would keep its lock until the commit, as a write does that succeeds
        raise OutOfSequence("a gap")

    group = Group(mine, pool)
    refusal = group.add(refused)
    group.add(lambda _: other.cancel(driver.job_id))  # the refused write has given its lock back
    state = group.add(lambda session: jobs.locked(session, driver.job_id).job_state)
    group.release()

    assert isinstance(refusal.exception(30), OutOfSequence)
    assert state.result(30) is JobState.CANCELLING


def test_a_reader_sees_one_moment(replicas, driver):
    mine, other = replicas

    with mine._db.reading() as session:
        before = queries.job_view(queries.job_row(session, driver.job_id))
        other.cancel(driver.job_id)
        session.expire_all()
        after = queries.job_view(queries.job_row(session, driver.job_id))

    assert before == after
    assert mine.job(driver.job_id).state is JobState.CANCELLING


def test_of_two_reconcilers_one_begins_the_attempt(replicas, spec):
    job_id = replicas[0].add_job(spec)[0].id

    answers = at_once(*[lambda r=r: r.attempts.begin(job_id) for r in replicas])

    assert sorted(type(answer) is IllegalTransition for answer in answers) == [False, True]
    assert replicas[0].job(job_id).attempt == 1


def test_two_reconcilers_lose_an_attempt_once(replicas, driver):
    one, two = at_once(*[lambda r=r: r.attempts.lose(driver.job_id, 1, reason="lost") for r in replicas])

    assert one == two
    assert one.state is JobState.QUEUED


def test_a_reconciler_fails_no_job_that_another_has_begun(replicas, spec):
    job_id = replicas[0].add_job(spec)[0].id
    (seen,) = replicas[1].work.backlog().waiting
    replicas[0].attempts.begin(job_id)

    left = replicas[1].work.fail_waiting(
        job_id, state=JobState.QUEUED, deadline=seen.deadline, reason="waited for a week"
    )
    assert left.state is JobState.STARTING


def test_a_batch_sent_to_two_replicas_counts_once(replicas, driver):
    for step in range(20):
        point = {"trial_id": driver.trial_id, "name": "loss", "steps": (step,), "seconds": (0.1,)}
        batches = [
            Batch(stream="driver", sequence=step + 2, records=(MetricPoints(values=(value,), **point),))
            for value in (1.0, 2.0)
        ]
        answers = at_once(
            *[lambda r=r, b=b: r.attempts.ingest(driver.job_id, 1, b) for r, b in zip(replicas, batches, strict=True)]
        )
        assert [answer.sequence for answer in answers] == [step + 2] * 2

    (series,) = replicas[0].series(driver.job_id, "loss")
    assert series.steps == tuple(range(20))
    assert {*series.values} <= {1.0, 2.0}


@pytest.mark.parametrize("repetition", range(3))
def test_cancelled_or_finished_but_never_both(replicas, driver, repetition):
    first, second = replicas
    finish = Batch(stream="driver", sequence=2, records=(AttemptFinished(outcome="succeeded"),))

    cancelled, finished = at_once(
        lambda: first.cancel(driver.job_id), lambda: second.attempts.ingest(driver.job_id, 1, finish)
    )

    state = first.job(driver.job_id).state
    assert finished.sequence == 2
    assert state is (JobState.SUCCEEDED if type(cancelled) is IllegalTransition else JobState.CANCELLED)


def test_a_job_is_cancelled_through_any_replica(replicas, driver):
    replicas[1].cancel(driver.job_id)

    assert replicas[0].attempts.renew(driver.job_id, 1).control is Control.CANCEL


def test_no_replica_waits_or_is_waited_for_without_end(store):
    names = ("lock_timeout", "idle_in_transaction_session_timeout", "transaction_isolation")
    with store._db.engine.connect() as connection:
        shown = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]

    assert shown == ["10s", "1min", "read committed"]


def test_a_row_that_another_replica_holds_too_long_is_refused_and_the_operator_sets_how_long(store, settings, driver):
    url = make_url(settings.database_url).update_query_dict({"options": "-c lock_timeout=50"})
    own = of_a_replica(settings, database_url=url.render_as_string(hide_password=False))
    impatient = Store.open(own)

    with store._db.engine.begin() as connection:
        connection.execute(select(JobRow.id).where(JobRow.id == driver.job_id).with_for_update())
        with pytest.raises(Unavailable, match="lock timeout"):
            impatient.attempts.renew(driver.job_id, 1)

    assert impatient.attempts.renew(driver.job_id, 1).control is Control.RUN
    impatient.close()
