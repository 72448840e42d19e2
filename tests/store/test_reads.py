"""The cost of reads does not grow with the data: pages use an index, and only requested parts are read."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event, insert, text

from search.config import Budget
from service.code_package import of_folder
from service.control.access.rules import LOCAL
from service.control.listing import JobFilter
from service.control.models import AttemptRow, JobRow, JobTextRow, LabelRow
from service.control.results.report import final, milestones, reached
from service.job import spec as job_spec
from service.wire.jobs import JobOrder
from service.wire.records import AttemptFinished
from service.wire.trials import Series
from tests.store.conftest import only
from tests.support.reported import finished


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


def test_whether_code_is_in_use_is_asked_once_for_a_page_and_of_live_jobs_alone(many, tmp_path, make_spec):
    (tmp_path / "train.py").touch()
    digests = []
    for number in range(3):
        (tmp_path / "train.py").write_text(f"NUMBER = {number}")
        digests.append(many.code.add(of_folder(tmp_path), by=LOCAL).digest)
    many.add_job(make_spec(workload={"factory": "train:build", "code": digests[1]}), by=LOCAL)
    with statements(many) as seen:
        packages = many.code.list(by=LOCAL).packages

    assert {each.digest: each.in_use for each in packages} == {each: each == digests[1] for each in digests}
    [of_jobs] = [each for each in seen if "jobs.project" in each[0]]
    assert "ix_jobs_state_id" in explained(many, *of_jobs)


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


@only("sqlite")
def test_a_look_for_new_events_reads_no_others(store, spec):
    store.add_job(spec)
    store.work.backlog()
    store.add_job(spec)

    with statements(store) as seen:
        assert len(store.work.backlog().waiting) == 2

    plans = [explained(store, *each) for each in seen if "FROM events" in each[0]]
    assert len(plans) == 3  # the bounds, the mark of pruned events, and the changes
    assert all("SEARCH events" in plan and "SCAN events" not in plan and "B-TREE" not in plan for plan in plans)


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


def test_a_snapshot_reads_nothing_of_trials_that_have_finished(store, make_spec, begin):
    job_id = store.add_job(make_spec(seeds=list(range(21))))[0].id
    driver = begin(job_id)
    for trial in store.trials(job_id)[:20]:
        driver.trial_id = trial.trial_id
        driver.start()
        driver.decide(0, first_step=0)
        driver.send(finished(trial.trial_id), stream=trial.trial_id)
    driver.trial_id = store.trials(job_id)[20].trial_id
    driver.start()
    first = store.snapshot(job_id)
    driver.decide(0, first_step=0)

    with statements(store) as seen:
        second = store.snapshot(job_id, since=first.cursor)
    with statements(store) as seen_by_another:
        third = store.snapshot(job_id, since=first.cursor)

    assert max(len(seen), len(seen_by_another)) <= 15, [statement for statement, _ in seen]
    assert second.report == third.report == store.report(job_id)
    assert len(second.stages) == 1


def test_an_attempt_begins_without_a_statement_for_each_trial_that_has_not(store, make_spec):
    num_statements = []
    for seeds in (1, 50):
        job_id = store.add_job(make_spec(seeds=list(range(seeds))))[0].id
        with statements(store) as seen:
            store.attempts.begin(job_id)
        num_statements.append(len(seen))

    assert num_statements[0] == num_statements[1]


def test_a_report_follows_a_trial_over_an_extension(store, driver, begin):
    def completed(loss):
        driver.send(finished(driver.trial_id, validation_loss=loss), stream=driver.trial_id)
        driver.send(AttemptFinished(outcome="succeeded"))

    driver.decide(0, first_step=0)
    completed(0.5)
    seen = [store.report(driver.job_id).trials[0].validation_loss]
    store.extend(driver.job_id, Budget(steps=200))
    seen.append(store.report(driver.job_id).trials[0].validation_loss)
    driver = begin(driver.job_id)
    driver.start()
    seen.append(store.report(driver.job_id).trials[0].outcome)
    completed(0.25)

    assert [*seen, store.report(driver.job_id).trials[0].validation_loss] == [0.5, 0.5, None, 0.25]


@pytest.mark.parametrize("direction", ["min", "max"])
def test_the_milestones_of_a_curve_answer_as_the_whole_curve(direction):
    values = (None, 3.0, 4.0, 2.0, None, 2.0, 5.0, 1.0, 6.0, 4.0, None)
    steps = tuple(range(len(values)))
    curve = Series(
        trial_id="a", arm="a", seed=0, name="b", steps=steps, seconds=steps, values=values, num_points=len(values)
    )

    kept = milestones(curve, direction)

    assert len(kept.values) < len(values) / 2 + 1
    assert final(kept) == final(curve)
    for target in range(8):
        assert reached(kept, target, direction) == reached(curve, target, direction)
