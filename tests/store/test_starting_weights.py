"""A job starts from the weights that another job has exported: which ones, and that every attempt gets the same."""

import json
import threading

import pytest

from service.control import jobs
from service.control.access.rules import LOCAL, Principal
from service.control.database import rows
from service.control.models import JobRow
from service.control.results import outcomes
from service.errors import CheckpointGone, IllegalTransition, InvalidJob
from service.job.states import JobState
from service.wire.access import Role
from service.wire.records import AttemptFinished
from tests.store.conftest import only
from tests.store.test_replicas import wait_for_a_lock
from tests.support.patience import PATIENCE_S
from tests.support.reported import finished

SHA256, OTHER_SHA256 = "a" * 64, "b" * 64


@pytest.fixture
def export(store, begin, make_spec):
    """Add a job whose trials end with weights, and return its id."""

    def export(*, by=None, **changes):
        job_id = store.add_job(make_spec(**changes), **({"by": by} if by else {}))[0].id
        _finish(store, begin(job_id))
        return job_id

    return export


def _finish(store, driver, sha256=SHA256):
    driver.start()
    for trial in store.trials(driver.job_id):
        url = f"{store.storage.attempt_url(driver.job_id, driver.number)}/{trial.trial_id}/weights.safetensors"
        ended = finished(trial.trial_id, weights_url=url, weights_sha256=sha256)
        driver.send(ended, stream=trial.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))


def _starting(**named):
    return {"workload": {"kind": "digits-mlp", "weights_of": named}}


def test_the_best_trial_can_be_named_as_such(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(arms=[{"name": "one"}, {"name": "two"}]))[0].id)
    for trial, loss in zip(store.trials(driver.job_id), (0.3, 0.2), strict=True):
        url = f"{store.storage.attempt_url(driver.job_id, driver.number)}/{trial.trial_id}/weights.safetensors"
        driver.send(
            finished(trial.trial_id, weights_url=url, validation_loss=loss, weights_sha256=SHA256),
            stream=trial.trial_id,
        )

    job, _ = store.add_job(make_spec(**_starting(job=driver.job_id, arm="best")))
    begin(job.id)

    ((_, place, _),) = _found(store, job.id)
    assert place == f"/attempt-1/{driver.job_id}.two.0/weights.safetensors"


def test_the_best_trial_is_found_before_the_one_writer_writes(store, make_spec, export, monkeypatch):
    source, threads, whole = export(), [], outcomes.report
    monkeypatch.setattr(outcomes, "report", lambda *given: threads.append(threading.current_thread()) or whole(*given))

    store.add_job(make_spec(**_starting(job=source, arm="best")))

    assert threads == [threading.current_thread()]


def test_the_best_trial_so_far_of_a_sweep_is_refused(store, make_spec, begin):
    spec = make_spec(params={"accumulate": {"integer": [1, 2]}}, sweep={"samples": 1})
    driver = begin(store.add_job(spec)[0].id)
    arm, sample = (trial.trial_id for trial in store.trials(driver.job_id))
    url = f"{store.storage.attempt_url(driver.job_id, driver.number)}/{arm}/weights.safetensors"
    driver.start()
    driver.send(finished(arm, weights_url=url, weights_sha256=SHA256, validation_loss=0.3), stream=arm)
    later = make_spec(**_starting(job=driver.job_id, arm="best"))

    with pytest.raises(InvalidJob, match="`best` is known once the job is over"):
        store.add_job(later)

    driver.send(finished(sample, validation_loss=0.4), stream=sample)
    driver.send(AttemptFinished(outcome="succeeded"))
    begin(store.add_job(later)[0].id)


def _found(store, job_id):
    found = store.attempts.brief(job_id, store.attempts.one(job_id).number).starting_weights
    return [
        (each.named.job, each.url.removeprefix(store.storage.job_url(each.named.job)), each.sha256) for each in found
    ]


def test_every_attempt_starts_from_what_was_exported_when_the_job_was_added(store, make_spec, begin, export):
    source = export()
    job, _ = store.add_job(make_spec(**_starting(job=source)))
    at_first = [(source, f"/attempt-1/{source}.tuned.0/weights.safetensors", SHA256)]
    begin(job.id)
    assert _found(store, job.id) == at_first

    store.extend(source, job.spec.budget.model_copy(update={"steps": 200}))
    _finish(store, begin(source), OTHER_SHA256)
    store.attempts.lose(job.id, 1, reason="lost")
    begin(job.id)

    assert _found(store, job.id) == at_first
    later, _ = store.add_job(make_spec(**_starting(job=source)))
    begin(later.id)
    assert _found(store, later.id) == [(source, f"/attempt-2/{source}.tuned.0/weights.safetensors", OTHER_SHA256)]


def test_the_job_stays_as_its_user_wrote_it_and_is_the_same_when_sent_again(store, make_spec, export):
    source = export()
    spec = make_spec(**_starting(job=source, arm="tuned"))
    job, _ = store.add_job(spec, idempotency_key="once")
    assert job.spec.given()["workload"]["weights_of"] == {"job": source, "arm": "tuned"}

    assert store.add_job(spec, idempotency_key="once")[0].id == job.id


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({}, "has 4 such trials: name one by `arm` and `seed`; it has `arm: a, seed: 0`, .*`arm: b, seed: 1`"),
        ({"arm": "a"}, "has 2 such trials"),
        ({"arm": "c", "seed": 0}, "has no such trial; it has `arm: a, seed: 0`"),
        ({"arm": "b", "seed": 2}, "has no such trial"),
    ],
)
def test_one_trial_is_meant(store, make_spec, begin, export, named, why):
    source = export(arms=[{"name": "a"}, {"name": "b"}], seeds=[0, 1])

    with pytest.raises(InvalidJob, match=why) as refusal:
        store.add_job(make_spec(**_starting(job=source, **named)))

    [problem] = refusal.value.problems
    assert (problem.pointer, json.loads(problem.value)) == ("/workload/weights_of", {"job": source, **named})
    job, _ = store.add_job(make_spec(**_starting(job=source, arm="b", seed=1)))
    begin(job.id)
    assert [url for _, url, _ in _found(store, job.id)] == [f"/attempt-1/{source}.b.1/weights.safetensors"]


@pytest.mark.parametrize(
    ("state", "why"), [(JobState.RUNNING, "it has not finished"), (JobState.CANCELLED, "the job ended before it had")]
)
def test_weights_that_are_not_there_are_refused(store, make_spec, job_in, state, why):
    source = job_in(state)

    with pytest.raises(InvalidJob, match=f"`weights_of`: trial `{source}.tuned.0` has no weights: {why}"):
        store.add_job(make_spec(**_starting(job=source)))


def test_the_last_weights_may_be_meant(store, make_spec, begin, export):
    source = export(checkpoint={"export": "last"})
    job, _ = store.add_job(make_spec(**_starting(job=source, which="last")))
    begin(job.id)
    assert [sha256 for _, _, sha256 in _found(store, job.id)] == [SHA256]

    with pytest.raises(InvalidJob, match=r"has no best weights: with `checkpoint.export: last`"):
        store.add_job(make_spec(**_starting(job=source, which="best")))


def test_a_job_of_another_project_is_one_that_is_not_there(store, make_spec, export):
    theirs = export(by=Principal(name="anna", role=Role.SUBMITTER, project="blue"))
    us = Principal(name="bert", role=Role.SUBMITTER, project="red")
    said = []
    for job_id in (theirs, "job-0"):
        with pytest.raises(InvalidJob) as refusal:
            store.add_job(make_spec(**_starting(job=job_id)), by=us)
        said.append(refusal.value.problems[0].message.replace(job_id, "ID"))

    assert said == ["`weights_of`: there is no job `ID`"] * 2
    assert store.add_job(make_spec(**_starting(job=theirs)))[1]  # for an admin, who sees all


def test_samples_may_start_from_several_jobs(store, make_spec, begin, export):
    first, second = export(), export()
    choice = [None, {"job": first}, {"job": second}]
    job, _ = store.add_job(make_spec(params={"workload.weights_of": {"choice": choice}}, sweep={"samples": 3}))
    begin(job.id)
    assert [source for source, _, _ in _found(store, job.id)] == [first, second]

    with pytest.raises(InvalidJob, match="there is no job `job-0`") as refusal:
        store.add_job(make_spec(params={"workload.weights_of": {"choice": [None, {"job": "job-0"}]}}))
    assert refusal.value.problems[0].pointer == "/params/workload.weights_of/choice/1"


def test_a_job_stays_while_another_that_is_not_over_starts_from_its_weights(store, make_spec, export):
    source, other = export(), export()
    job, _ = store.add_job(make_spec(**_starting(job=source)))
    store.delete(other)

    with pytest.raises(IllegalTransition, match=f"job `{job.id}` starts from the weights of job `{source}`"):
        store.delete(source)

    store.cancel(job.id)
    store.delete(source)


def test_a_refused_delete_costs_no_other_write_anything_and_is_refused_within_a_write_too(
    store, make_spec, export, monkeypatch
):
    source = export()
    job, _ = store.add_job(make_spec(**_starting(job=source)))

    with pytest.raises(IllegalTransition, match=f"job `{job.id}` starts"):  # added after the delete has looked
        store._db.write(lambda session: jobs.delete(session, jobs.locked(session, source), now=0.0))
    monkeypatch.setattr(store._db, "write", lambda _: pytest.fail("a write begins"))
    with pytest.raises(IllegalTransition, match=f"job `{job.id}` starts"):
        store.delete(source)


@only("postgresql")
def test_a_delete_waits_for_a_job_that_is_being_added_on_its_weights(replicas, make_spec, export, clock, pool):
    first, second = replicas
    source = export()
    stored, release = threading.Event(), threading.Event()

    def add_slowly(session):
        spec = make_spec(**_starting(job=source))
        jobs.add(session, spec, by=LOCAL, key=None, now=clock(), key_s=3600.0, quotas={})
        rows.store(session)
        stored.set()
        assert release.wait(PATIENCE_S)

    slow = pool.submit(first._db.write, add_slowly)
    assert stored.wait(PATIENCE_S)
    waiting = pool.submit(second.delete, source)
    try:
        wait_for_a_lock(first)
    finally:
        release.set()

    slow.result(PATIENCE_S)
    with pytest.raises(IllegalTransition, match=f"starts from the weights of job `{source}`"):
        waiting.result(PATIENCE_S)


def test_a_job_begins_again_only_if_the_weights_that_it_starts_from_are_still_there(store, make_spec, export):
    source = export()
    job, _ = store.add_job(make_spec(**_starting(job=source)))
    store.cancel(job.id)
    url = f"{store.storage.attempt_url(source, 1)}/{source}.tuned.0/weights.safetensors"

    with pytest.raises(CheckpointGone, match="clone the job with other weights") as gone:
        store.retry(job.id)

    assert url in str(gone.value)
    store.storage.write(url, b"weights")
    assert store.retry(job.id).state is JobState.QUEUED


def test_a_file_outside_the_folder_of_its_job_is_left_out(store, make_spec, begin, export):
    source = export()
    job, _ = store.add_job(make_spec(**_starting(job=source)))
    begin(job.id)
    with store._db.engine.begin() as connection:
        files = [{"named": {"job": source}, "url": "file:///etc/weights.safetensors", "sha256": None}]
        changed = JobRow.__table__.update().where(JobRow.id == job.id).values(starting_weights={"files": files})
        connection.execute(changed)

    assert _found(store, job.id) == []
