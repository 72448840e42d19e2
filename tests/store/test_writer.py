"""Group commits: one transaction for many writers, with each error only for its cause."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import sessionmaker

from service.control.database.engine import connect
from service.control.database.schema import migrate
from service.control.database.writer import Writer
from service.control.models import ApiKeyRow
from service.control.processes import wait_until
from service.errors import Unavailable
from tests.support.patience import PATIENCE_S


@pytest.fixture
def engine(tmp_path):
    engine = connect(f"sqlite:///{tmp_path}/jobs.db")
    migrate(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def writer(engine):
    writer = Writer(sessionmaker(engine), timeout_s=PATIENCE_S)
    yield writer
    writer.close()


def add(name):
    words = dict.fromkeys(("id", "digest", "name", "owner", "role", "project", "created_by"), name)
    return lambda session: session.add(ApiKeyRow(**words, created_at=0.0))


def stored(engine):
    with engine.connect() as connection:
        return set(connection.scalars(select(ApiKeyRow.digest)))


def occupy(writer, pool):
    """Hold the writer in a call until the returned event is set."""
    entered, release = threading.Event(), threading.Event()

    def hold(_session):
        entered.set()
        release.wait(PATIENCE_S)

    pool.submit(writer.write, hold)
    assert entered.wait(PATIENCE_S)
    return release


def wait_for(num_writes, writer):
    assert wait_until(lambda: writer.num_waiting >= num_writes, timeout_s=PATIENCE_S, every_s=0.001)


def test_what_waits_is_stored_in_one_commit(engine, writer):
    commits = []
    with ThreadPoolExecutor(20) as pool:
        release = occupy(writer, pool)
        waiting = [pool.submit(writer.write, add(f"k{number}")) for number in range(16)]
        wait_for(16, writer)
        event.listen(engine, "commit", commits.append)
        release.set()
        for future in waiting:
            future.result(PATIENCE_S)

    assert stored(engine) == {f"k{number}" for number in range(16)}
    assert len(commits) == 1


def test_an_error_is_its_callers_and_undoes_its_own_changes_alone(engine, writer):
    def add_then_fail(session):
        add("bad")(session)
        session.flush()
        raise ZeroDivisionError

    with ThreadPoolExecutor(4) as pool:
        release = occupy(writer, pool)
        good, bad = pool.submit(writer.write, add("good")), pool.submit(writer.write, add_then_fail)
        release.set()
        good.result(PATIENCE_S)
        with pytest.raises(ZeroDivisionError):
            bad.result(PATIENCE_S)

    assert stored(engine) == {"good"}


def test_a_call_that_is_refused_before_it_changes_anything_makes_no_other_run_again(engine, writer):
    runs = []

    def refuse(session):
        session.scalars(select(ApiKeyRow.id)).all()
        raise ValueError("it has ended")

    def count(session):
        runs.append(1)
        add("good")(session)

    with ThreadPoolExecutor(3) as pool:
        release = occupy(writer, pool)
        refused = pool.submit(writer.write, refuse)
        wait_for(1, writer)
        good = pool.submit(writer.write, count)
        wait_for(2, writer)
        release.set()
        good.result(PATIENCE_S)
        with pytest.raises(ValueError, match="it has ended"):
            refused.result(PATIENCE_S)

    assert len(runs) == 1 and stored(engine) == {"good"}


def test_what_may_be_stored_is_not_run_again(engine, writer):
    runs = []

    def lose(connection):
        raise OperationalError("COMMIT", {}, Exception("the connection was lost"))

    event.listen(engine, "commit", lose)
    with pytest.raises(Unavailable, match="connection was lost"):
        writer.write(lambda session: [runs.append(1), add("a")(session)])
    event.remove(engine, "commit", lose)

    assert runs == [1]
    writer.write(add("b"))


def test_a_locked_file_refuses_in_the_databases_own_words_and_the_next_write_passes(engine, writer):
    other = connect(str(engine.url))
    with other.connect() as holder:
        holder.exec_driver_sql("CREATE TABLE held (id INTEGER)")  # takes the write lock
        with pytest.raises(Unavailable, match="did not store this: database is locked; try again") as refusal:
            writer.write(
                lambda session: [session.connection().exec_driver_sql("PRAGMA busy_timeout = 1"), add("a")(session)]
            )
    other.dispose()
    writer.write(add("b"))

    assert "INSERT" not in str(refusal.value)
    assert stored(engine) == {"b"}


def test_a_write_that_breaks_a_rule_of_the_schema_is_refused_alone(engine, writer):
    writer.write(add("taken"))
    with ThreadPoolExecutor(3) as pool:
        release = occupy(writer, pool)
        bad, good = pool.submit(writer.write, add("taken")), pool.submit(writer.write, add("good"))
        release.set()
        good.result(PATIENCE_S)
        with pytest.raises(Unavailable, match="UNIQUE"):
            bad.result(PATIENCE_S)

    assert stored(engine) == {"taken", "good"}


def test_a_writer_that_is_too_slow_says_so_and_drops_what_has_not_begun(engine):
    writer = Writer(sessionmaker(engine), timeout_s=0.2)
    with ThreadPoolExecutor(1) as pool:
        release = occupy(writer, pool)
        with pytest.raises(Unavailable, match="try again"):
            writer.write(add("late"))
        release.set()
    writer.close()

    assert stored(engine) == set()


def test_a_full_queue_is_refused_and_is_a_failure(engine):
    failures, entered, release = [], threading.Event(), threading.Event()
    writer = Writer(sessionmaker(engine), timeout_s=0.3, max_waiting=1, note_failure=lambda: failures.append(1))
    writer.post(lambda _session: entered.set() or release.wait(PATIENCE_S))  # whose caller does not wait
    assert entered.wait(PATIENCE_S)
    writer._waiting.put_nowait(None)

    with pytest.raises(Unavailable, match="wait for the database"):
        writer.write(add("one too many"))
    release.set()

    assert failures == [1]


@pytest.mark.parametrize(("slow_s", "num_failures"), [(0.01, 1), (PATIENCE_S, 0)])
def test_a_write_that_is_stored_too_late_is_a_failure_before_its_caller_goes_on(engine, slow_s, num_failures):
    failures = []
    writer = Writer(sessionmaker(engine), slow_s=slow_s, note_failure=lambda: failures.append(1))

    writer.write(lambda _session: wait_until(lambda: writer.is_slow, timeout_s=0.1, every_s=0.001))

    assert len(failures) == num_failures
    assert wait_until(lambda: not writer.is_slow, timeout_s=PATIENCE_S, every_s=0.001)
    writer.close()


def test_a_writer_whose_queue_stays_full_cannot_be_closed_in_time(engine):
    writer = Writer(sessionmaker(engine), timeout_s=0.1, max_waiting=1)
    with ThreadPoolExecutor(2) as pool:
        release = occupy(writer, pool)
        writer.post(add("last"))

        with pytest.raises(Unavailable, match="did not stop within"):
            writer.close()
        release.set()
    writer._timeout_s = PATIENCE_S
    writer.close()

    assert stored(engine) == {"last"}


def test_what_waits_is_stored_before_the_writer_closes(engine):
    writer = Writer(sessionmaker(engine), timeout_s=PATIENCE_S)
    with ThreadPoolExecutor(2) as pool:
        release = occupy(writer, pool)
        waiting = pool.submit(writer.write, add("last"))
        wait_for(1, writer)
        release.set()
        writer.close()
        waiting.result(PATIENCE_S)

    assert stored(engine) == {"last"}
