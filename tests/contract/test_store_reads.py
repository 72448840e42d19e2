"""What a read costs, whatever is stored: pages come from an index, and no more of a job is read than is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event, insert, text

from service.control.models import JobRow, LabelRow
from service.job import spec as job_spec


@contextmanager
def statements(store) -> Iterator[list[tuple[str, object]]]:
    """Give every statement that is executed, with its parameters."""
    seen: list[tuple[str, object]] = []

    def note(connection, cursor, statement, parameters, context, many):
        seen.append((statement, parameters))

    event.listen(store._engine, "before_cursor_execute", note)
    yield seen
    event.remove(store._engine, "before_cursor_execute", note)


@pytest.fixture
def many(store, spec):
    """A store with 3,000 jobs, a third of them of one team."""
    body, ids = spec.model_dump(mode="json"), [f"job-{number:06x}" for number in range(3_000)]
    jobs = [{"id": each, "name": "x", "state": "succeeded", "spec": body, "created_at": 0.0} for each in ids]
    labels = [
        {"job_id": each, "name": "team", "value": "red" if number % 3 else "blue"} for number, each in enumerate(ids)
    ]
    with store._engine.begin() as connection:
        connection.execute(insert(JobRow), jobs)
        connection.execute(insert(LabelRow), labels)
        if connection.dialect.name == "postgresql":  # as its daemon does; on SQLite nobody does
            connection.execute(text("ANALYZE"))
    return store


@pytest.mark.parametrize("label", [None, ("team", "blue"), ("team", "nobody")])
def test_a_page_of_jobs_is_read_from_an_index_and_nothing_is_sorted(many, label):
    first = many.jobs(label=label, limit=20)
    with statements(many) as seen:
        page = many.jobs(label=label, limit=20, cursor=first.next_cursor)

    wanted = {None: 20, ("team", "blue"): 20, ("team", "nobody"): 0}[label]
    assert len(page.jobs) == wanted
    assert [job.id for job in page.jobs] == sorted((job.id for job in page.jobs), reverse=True)
    explain = "EXPLAIN QUERY PLAN" if many._engine.dialect.name == "sqlite" else "EXPLAIN"
    ((statement, parameters),) = [each for each in seen if "FROM jobs" in each[0] or "JOIN jobs" in each[0]]
    with many._engine.connect() as connection:
        plan = "\n".join(str(row) for row in connection.exec_driver_sql(f"{explain} {statement}", parameters))
    assert "Sort" not in plan and "TEMP B-TREE" not in plan, plan
    if label is not None:
        assert "ix_job_labels_name_value" in plan and "SCAN jobs" not in plan, plan


def test_the_version_of_a_job_is_read_without_the_job(store, driver):
    with statements(store) as seen:
        version = store.version(driver.job_id)

    assert version == store.job(driver.job_id).version
    assert [statement for statement, _ in seen if "spec" in statement] == []


def test_a_job_that_is_added_is_not_checked_again(store, spec, monkeypatch):
    monkeypatch.setattr(job_spec, "conflicts", lambda job: pytest.fail("the job was checked before"))

    view, _ = store.add_job(spec)

    assert view.spec == spec
