"""The cost of reads does not grow with the data: pages use an index, and only requested parts are read."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event, insert, text

from service.control.listing import JobFilter
from service.control.models import AttemptRow, JobRow, JobTextRow, LabelRow
from service.job import spec as job_spec
from service.wire.jobs import JobOrder


@contextmanager
def statements(store) -> Iterator[list[tuple[str, object]]]:
    """Give every statement that is executed, with its parameters."""
    seen: list[tuple[str, object]] = []

    def note(connection, cursor, statement, parameters, context, many):
        seen.append((statement, parameters))

    event.listen(store._db.engine, "before_cursor_execute", note)
    yield seen
    event.remove(store._db.engine, "before_cursor_execute", note)


@pytest.fixture
def many(store, spec):
    """A store with 3,000 jobs, a third of them of one team, half of them odd."""
    body, ids = spec.model_dump(mode="json"), [f"job-{number:06x}" for number in range(3_000)]
    jobs = [
        {"id": each, "name": f"name of {each}", "state": "succeeded", "spec": body, "created_at": 0.0} for each in ids
    ]
    labels = [
        {"job_id": each, "name": name, "value": value}
        for number, each in enumerate(ids)
        for name, value in (
            ("team", "red" if number % 3 else "blue"),
            ("parity", "odd" if number % 2 else "even"),
        )
    ]
    with store._db.engine.begin() as connection:
        connection.execute(insert(JobRow), jobs)
        connection.execute(insert(LabelRow), labels)
        connection.execute(insert(JobTextRow), [{"job_id": each["id"], "text": each["name"]} for each in jobs])
        if connection.dialect.name == "postgresql":  # as its daemon does; on SQLite nobody does
            connection.execute(text("ANALYZE"))
    return store


BLUE, ODD, NOBODY = ("team", "blue"), ("parity", "odd"), ("team", "nobody")


def test_a_page_of_jobs_is_read_from_an_index_and_nothing_is_sorted(many):
    for labels, num_found in [([], 20), ([BLUE], 20), ([NOBODY], 0), ([BLUE, ODD], 20), ([BLUE, NOBODY], 0)]:
        where = JobFilter(labels=labels)
        first = many.jobs(where, limit=20)
        with statements(many) as seen:
            page = many.jobs(where, limit=20, cursor=first.next_cursor)

        assert len(page.jobs) == num_found
        assert [job.id for job in page.jobs] == sorted((job.id for job in page.jobs), reverse=True)
        plan = plan_of(many, seen)
        if len(labels) > 1 and many._db.engine.dialect.name == "postgresql":
            continue  # it joins two labels as its statistics suggest
        assert "Sort" not in plan and "TEMP B-TREE" not in plan, plan
        if labels:
            assert "ix_job_labels_name_value" in plan and "SCAN jobs" not in plan, plan


def test_a_page_in_the_order_of_an_index_is_not_sorted(many):
    orders = [
        *(JobOrder.NAME, JobOrder.NAME_DOWN, JobOrder.STATE),
        *(JobOrder.FINISHED, JobOrder.FINISHED_DOWN, JobOrder.RESULT, JobOrder.RESULT_DOWN),
    ]
    for archived, order in itertools.product([False, None], orders):
        where = JobFilter(archived=archived)
        first = many.jobs(where, order=order, limit=20)
        with statements(many) as seen:
            many.jobs(where, order=order, limit=20, cursor=first.next_cursor)

        plan = plan_of(many, seen)
        assert f"ix_jobs_{order.field}_id" in plan and "Sort" not in plan and "TEMP B-TREE" not in plan, plan


def test_words_are_looked_for_in_rows_of_text_and_not_in_jobs(many):
    where = JobFilter(text="nobody has this")
    with statements(many) as seen:
        page = many.jobs(where)

    plan = plan_of(many, seen)
    assert page.jobs == () and "job_texts" in plan, plan
    assert "Seq Scan on jobs" not in plan and "SCAN jobs" not in plan and "job_labels" not in plan, plan


def test_a_word_that_every_job_has_is_looked_for_in_the_first_of_them_alone(many):
    with statements(many) as seen:
        found = [many.jobs(JobFilter(text="name of", labels=labels), limit=20) for labels in ([], [ODD])]

    assert [len(page.jobs) for page in found] == [20, 20]
    assert [statement for statement, _ in seen if "IN (SELECT job_texts" in statement] == []


@pytest.mark.parametrize("order", [JobOrder.CREATED_DOWN, JobOrder.NAME])
def test_words_are_found_in_the_same_order_wherever_the_jobs_are(many, order):
    every = [job.id for job in pages(many, JobFilter(), order)]

    found = [job.id for job in pages(many, JobFilter(text="NAME 07"), order)]

    assert found == [each for each in every if "07" in each]
    assert len(found) > 100 and not set(found) <= set(every[:1_000])


def pages(store, where, order):
    """Yield the jobs of all pages."""
    cursor = None
    while True:
        page = store.jobs(where, order=order, limit=400, cursor=cursor)
        yield from page.jobs
        if (cursor := page.next_cursor) is None:
            return


def test_a_job_is_found_by_its_name_without_reading_the_others(many):
    with statements(many) as seen:
        many.jobs(JobFilter(ref="nobody", archived=None))

    assert "ix_jobs_name_id" in plan_of(many, seen)


def test_the_attempts_whose_log_is_to_be_kept_are_found_without_reading_the_others(many):
    of_all = {"number": 1, "submission_id": "", "began_at": 0.0, "lease_expires": 0.0}
    attempts = [{"job_id": f"job-{number:06x}", "log_kept": number != 5, **of_all} for number in range(3_000)]
    with many._db.engine.begin() as connection:
        connection.execute(insert(AttemptRow), attempts)
        if connection.dialect.name == "postgresql":
            connection.execute(text("ANALYZE"))

    with statements(many) as seen:
        (found,) = many.attempts.without_log()

    (asked,) = [each for each in seen if "log_kept" in each[0]]
    assert found.job_id == "job-000005" and "ix_attempts_without_log" in explained(many, *asked)


def plan_of(store, seen):
    """Return how the database finds the ids of a page."""
    return explained(store, *next(each for each in seen if "LIMIT" in each[0] and " jobs" in each[0]))


def explained(store, statement, parameters):
    """Return how the database executes a statement."""
    explain = "EXPLAIN QUERY PLAN" if store._db.engine.dialect.name == "sqlite" else "EXPLAIN"
    with store._db.engine.connect() as connection:
        return "\n".join(str(row) for row in connection.exec_driver_sql(f"{explain} {statement}", parameters))


def test_the_version_of_a_job_is_read_without_the_job(store, driver):
    with statements(store) as seen:
        version = store.version(driver.job_id)

    assert version == store.job(driver.job_id).version
    assert [statement for statement, _ in seen if "spec" in statement] == []


def test_a_job_that_is_added_is_not_checked_again(store, spec, monkeypatch):
    monkeypatch.setattr(job_spec, "conflicts", lambda job: pytest.fail("the job was checked before"))

    view, _ = store.add_job(spec)

    assert view.spec == spec
