"""Labels, notes and archiving change nothing else of a job; a deleted job leaves only an event."""

from functools import partial

import pytest
from sqlalchemy import event, func, inspect, select

from service.control import jobs
from service.control.access.rules import Principal
from service.control.listing import JobFilter
from service.control.models import AuditRow, Base, EventRow, JobRow, PointRow, RemovalRow
from service.control.storage import Storage
from service.errors import IllegalTransition, InvalidJob, KeyReused, NotFound, PreconditionFailed, Unavailable
from service.job.parts import Webhook
from service.job.states import TERMINAL, JobState
from service.wire.access import Role
from service.wire.events import EventKind
from service.wire.jobs import JobEdit
from service.wire.records import AttemptFinished
from tests.store.conftest import Driver
from tests.support.reported import BILL, finished, points

OTHERS = [state for state in JobState if state not in TERMINAL]


def edit(store, job_id, **patch):
    return store.edit(job_id, JobEdit(**patch))


@pytest.fixture
def labelled(store, make_spec):
    return store.add_job(make_spec(labels={"team": "red", "draft": "yes"}), idempotency_key="k")[0]


def test_labels_are_merged_and_what_is_left_out_stays(store, labelled):
    edit(store, labelled.id, notes="line one\nline two")

    view = edit(store, labelled.id, labels={"draft": None, "paper": "2"})

    assert view.labels == view.spec.labels == {"team": "red", "paper": "2"}
    assert view.notes == "line one\nline two"
    found = [
        [job.id for job in store.jobs(JobFilter(labels=[pair])).jobs] for pair in (("paper", "2"), ("draft", "yes"))
    ]
    assert found == [[labelled.id], []]


def test_null_takes_everything_away(store, labelled):
    edit(store, labelled.id, notes="x")

    view = edit(store, labelled.id, labels=None, notes=None)

    assert (view.labels, view.notes) == ({}, "")


def test_an_edit_is_a_new_version_with_an_event_and_one_without_a_difference_is_none(store, labelled):
    view = edit(store, labelled.id, labels={"team": "blue"})
    again = edit(store, labelled.id, labels={"team": "blue"}, notes="", archived=False)

    events = store.events(0, job_id=labelled.id).events
    assert (view.version, again.version) == (labelled.version + 1, labelled.version + 1)
    assert [event.data["version"] for event in events] == [labelled.version, view.version]
    assert [entry.action for entry in store.keyring.audit(limit=5, cursor=None).entries] == ["updateJob", "createJob"]


def test_an_edit_of_a_version_that_is_gone_does_nothing(store, labelled):
    edit(store, labelled.id, notes="first")

    with pytest.raises(PreconditionFailed):
        store.edit(labelled.id, JobEdit(notes="second"), versions=[labelled.version])

    assert store.job(labelled.id).notes == "first"


def test_a_job_has_no_more_labels_by_edits_than_by_its_spec(store, labelled):
    with pytest.raises(InvalidJob, match="at most 64 labels; this would make 65"):
        edit(store, labelled.id, labels={f"l{number}": "x" for number in range(63)})


def test_the_key_of_a_job_whose_labels_were_edited_still_gives_it(store, labelled, make_spec):
    edit(store, labelled.id, labels={"team": "blue"})

    again, is_new = store.add_job(make_spec(labels={"team": "red", "draft": "yes"}), idempotency_key="k")

    assert (again.id, is_new) == (labelled.id, False)
    with pytest.raises(KeyReused):
        store.add_job(make_spec(labels={"team": "blue", "draft": "yes"}), idempotency_key="k")


def test_an_edit_of_a_webhook_keeps_what_it_leaves_out_and_the_jobs_key(store, make_spec):
    spec = make_spec(webhook={"url": "https://a.example/x", "on": ["failed"]})
    job = store.add_job(spec, idempotency_key="k")[0]

    view = edit(store, job.id, webhook={"url": "https://a.example/y"})

    assert (view.version, view.spec.webhook.url, view.spec.webhook.on) == (2, "https://a.example/y", ("failed",))
    view = edit(store, job.id, webhook={"on": ["succeeded"]})
    assert (view.spec.webhook.url, view.spec.webhook.on) == ("https://a.example/y", ("succeeded",))
    assert edit(store, job.id, webhook={"on": None}).spec.webhook == Webhook(url="https://a.example/y")
    assert edit(store, job.id, webhook=None).spec.webhook is None
    assert store.add_job(spec, idempotency_key="k")[0].id == job.id
    with pytest.raises(KeyReused):
        store.add_job(make_spec(webhook={"url": "https://a.example/y", "on": ["failed"]}), idempotency_key="k")


@pytest.mark.parametrize(("before", "patch"), [(None, {"on": ["failed"]}), ("https://a.example/x", {"url": None})])
def test_a_webhook_without_a_url_is_no_edit(store, make_spec, before, patch):
    job = store.add_job(make_spec(webhook=before and {"url": before}))[0]

    with pytest.raises(InvalidJob) as refused:
        edit(store, job.id, webhook=patch)

    assert refused.value.problems[0].pointer == "/webhook/url"
    assert store.job(job.id).version == job.version


def test_an_archived_job_is_in_no_list_but_those_that_ask_for_it(store, job_in):
    gone, there = job_in(JobState.CANCELLED), job_in(JobState.CANCELLED)

    assert edit(store, gone, archived=True).archived

    asked = [[job.id for job in store.jobs(JobFilter(archived=archived)).jobs] for archived in (False, True, None)]
    assert asked == [[there], [gone], [there, gone]]
    assert store.job(gone).archived
    assert not edit(store, gone, archived=False).archived
    assert [job.id for job in store.jobs().jobs] == [there, gone]


def test_an_archived_job_that_is_tried_again_is_back_in_the_list(store, job_in):
    job_id = job_in(JobState.CANCELLED)
    edit(store, job_id, archived=True)

    store.retry(job_id)

    assert [job.id for job in store.jobs().jobs] == [job_id]


@pytest.mark.parametrize("state", OTHERS)
def test_a_job_that_is_not_over_is_neither_archived_nor_deleted_and_the_answer_says_what_to_do(store, job_in, state):
    job_id = job_in(state)
    first = "wait until it is cancelled" if state is JobState.CANCELLING else "`cancel` it first"

    with pytest.raises(IllegalTransition, match=f"is {state}: only one that is over can be archived; {first}"):
        edit(store, job_id, archived=True)
    with pytest.raises(IllegalTransition, match=f"is {state}: only one that is over can be deleted; {first}"):
        store.delete(job_id)

    assert store.job(job_id).state is state


@pytest.fixture
def over(store, make_spec, begin):
    """A job that has left rows in every table, and is over."""
    job_id = store.add_job(make_spec(name="over soon", labels={"team": "red"}, webhook={"url": "https://a.example/x"}))[
        0
    ].id
    driver: Driver = begin(job_id)
    driver.start()
    driver.decide(0, first_step=0)
    driver.send(points(driver.trial_id, range(10)), stream=driver.trial_id)
    driver.close(0, step=10, num_steps=10, bill=BILL, resume={})
    driver.send(finished(driver.trial_id), stream=driver.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))
    return job_id


def test_no_moment_shows_a_job_without_its_measurements_while_it_is_deleted(store, over):
    seen = []

    def look(connection):
        seen.append(
            tuple(connection.scalar(select(func.count()).select_from(table)) for table in (JobRow, PointRow, AuditRow))
        )

    num_audited = len(store.keyring.audit(limit=5, cursor=None).entries)
    event.listen(store._db.engine, "commit", look)

    store.delete(over)

    assert seen and set(seen) == {(0, 0, num_audited + 1)}


def rows_of(store, job_id):
    """Return in which tables something of the job is."""
    found = set()
    with store._db.reading() as session:
        for table in inspect(store._db.engine).get_table_names():
            columns = Base.metadata.tables[table].columns if table in Base.metadata.tables else {}
            for name in {"job_id", "trial_id"} & set(columns.keys()):
                like = columns[name].like(f"{job_id}%")
                if session.scalar(select(func.count()).where(like)):
                    found.add(table)
    return found


def test_nothing_is_left_of_a_deleted_job_but_its_event_and_an_order_to_remove_its_files(store, over):
    url = store.storage.attempt_url(over, 1)
    store.storage.write(f"{url}/weights.safetensors", b"weights")
    before = rows_of(store, over)

    store.delete(over)

    assert before >= {"job_labels", "attempts", "streams", "trials", "stages", "metric_points", "messages", "events"}
    assert rows_of(store, over) == {"events", "removals"}
    store.expiry.remove_expired(store._db.now())
    assert store.storage.sizes(over) == {}
    store.storage.write(f"{url}/late.safetensors", b"of a driver that was about to end")
    store.expiry.remove_expired(store._db.now() + 3600)
    assert store.storage.sizes(over) == {}
    assert rows_of(store, over) == {"events"}
    with pytest.raises(NotFound):
        store.delete(over)


def test_a_folder_that_cannot_be_removed_is_told_of_once_and_keeps_no_other(store, job_in, monkeypatch, caplog):
    stuck, other = job_in(JobState.CANCELLED), job_in(JobState.CANCELLED)
    asked, remove = [], Storage.remove_job

    def refuse(storage, job_id):
        asked.append(job_id)
        if job_id == stuck:
            raise Unavailable("not yours")
        remove(storage, job_id)

    monkeypatch.setattr(Storage, "remove_job", refuse)
    for job_id in (stuck, other):
        store.delete(job_id)

    for _ in range(2):
        store.expiry.remove_expired(store._db.now())

    assert sorted(asked) == [stuck, stuck, other]
    assert [record.getMessage() for record in caplog.records if "not yours" in record.getMessage()] == [
        f"the folder of the deleted job {stuck} stays for now: not yours"
    ]
    monkeypatch.undo()
    store.expiry.remove_expired(store._db.now() + 3600)
    assert rows_of(store, stuck) == {"events"}


def test_an_order_that_another_replica_has_forgotten_is_remembered_by_none(store, job_in, monkeypatch):
    removed, stuck = job_in(JobState.CANCELLED), job_in(JobState.CANCELLED)
    store.delete(removed)
    store.expiry.remove_expired(store._db.now())

    def refuse(storage, job_id):
        raise Unavailable("not yours")

    monkeypatch.setattr(Storage, "remove_job", refuse)
    store.delete(stuck)
    store.expiry.remove_expired(store._db.now())
    for job_id in (removed, stuck):
        store._db.write(partial(jobs.forget_removal, job_id=job_id))

    store.expiry.remove_expired(store._db.now())

    assert store.expiry._removed == store.expiry._left_over == set()


@pytest.mark.parametrize("num_read", [0, 1])
def test_points_of_a_job_that_is_deleted_while_they_are_read_do_not_pass_for_all(store, over, num_read):
    found = store.points(store.trials(over)[0].trial_id)
    assert len([next(found) for _ in range(num_read)]) == num_read

    store.delete(over)

    with pytest.raises(NotFound, match="was deleted while its points were read"):
        list(found)


def test_readers_are_told_that_a_job_was_deleted_and_others_projects_are_not(store, over):
    newest = store.newest_event()

    store.delete(over, by=Principal(name="anna", role=Role.ADMIN, project="default"))

    (told,) = store.events(newest, project="default").events
    assert (told.kind, told.job_id, told.data) == (EventKind.JOB_DELETED, over, {"name": "over soon"})
    assert store.events(0, project="blue").events == ()
    with pytest.raises(NotFound):
        store.events(0, job_id=over)
    (entry, *_) = store.keyring.audit(limit=5, cursor=None).entries
    assert (entry.name, entry.action, entry.target) == ("anna", "deleteJob", over)


def test_a_webhook_of_a_deleted_job_is_not_sent_any_more(store, over):
    assert store.outbox.due()

    store.delete(over)

    assert store.outbox.due() == []


def test_a_deleted_job_leaves_the_others_alone(store, over, job_in):
    other = job_in(JobState.FAILED)
    before = rows_of(store, other)

    store.delete(over)

    assert rows_of(store, other) == before
    with store._db.reading() as session:
        assert session.scalars(select(EventRow.job_id).where(EventRow.job_id == other)).all()
        assert session.scalars(select(RemovalRow.job_id)).all() == [over]


def test_an_idempotency_key_gives_its_job_until_it_expires_and_then_makes_another(store, spec, clock):
    first, _ = store.add_job(spec, idempotency_key="k")
    clock.now += store.settings.idempotency_s - 10
    again, _ = store.add_job(spec, idempotency_key="k")

    clock.now += 20
    later, is_new = store.add_job(spec, idempotency_key="k")
    once_more, _ = store.add_job(spec, idempotency_key="k")

    assert (again.id, is_new) == (first.id, True)
    assert later.id != first.id
    assert once_more.id == later.id


def test_an_expired_key_may_come_with_another_job(store, spec, make_spec, clock):
    store.add_job(spec, idempotency_key="k")
    clock.now += store.settings.idempotency_s + 1

    _, is_new = store.add_job(make_spec(name="another"), idempotency_key="k")

    assert is_new


def test_keys_that_have_expired_are_removed_and_no_others(store, spec, clock):
    store.add_job(spec, idempotency_key="old")
    clock.now += store.settings.idempotency_s / 2
    store.add_job(spec, idempotency_key="new")
    clock.now += store.settings.idempotency_s / 2 + 1

    def kept():
        with store._db.engine.connect() as connection:
            return connection.exec_driver_sql("select key from idempotency_keys order by key").scalars().all()

    store.expiry.remove_expired(clock.now, is_clock_steady=False)  # it may be ahead
    assert kept() == ["new", "old"]
    store.expiry.remove_expired(clock.now)

    assert kept() == ["new"]
