"""Verbs in the store: which are allowed, and what is kept and what is rolled back when a job continues."""

from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from search.config import Budget
from service.control import jobs
from service.control.access.rules import Principal
from service.control.storage import Storage
from service.errors import CheckpointGone, IllegalTransition, InvalidJob
from service.job.states import ALLOWED_IN, JobState, Verb
from service.wire.access import Role
from service.wire.events import EventKind
from service.wire.records import (
    AttemptFinished,
    Bill,
    Checkpointed,
    Control,
    MetricPoints,
    ScheduleEntry,
    Searched,
    TrialFinished,
)
from service.wire.steering import SteerRequest
from tests.store.conftest import only
from tests.support.reported import finished

LARGER = Budget(steps=200)


def ask(store, job_id, verb):
    given = {Verb.EXTEND: [LARGER], Verb.STEER: [SteerRequest(search_now=True)]}
    return getattr(store, verb)(job_id, *given.get(verb, ()))


@only("sqlite")
@pytest.mark.parametrize("state", list(JobState))
def test_a_verb_is_refused_by_name_wherever_the_table_does_not_allow_it(store, job_in, state):
    before = store.job(job_in(state))
    for verb in Verb:
        if state in ALLOWED_IN[verb]:
            assert (ask(store, job_in(state), verb).state is state) == (verb is Verb.STEER)
            continue
        with pytest.raises(IllegalTransition, match=f"is {state}: `{verb}` is for one that is ") as refusal:
            ask(store, before.id, verb)
        allowed = {each for each in Verb if f"`{each}`" in str(refusal.value).partition("what it allows now: ")[2]}
        assert allowed == {each for each in Verb if state in ALLOWED_IN[each]}
    assert store.job(before.id) == before


@pytest.mark.parametrize(
    ("verb", "state", "expected"),
    [
        ("pause", JobState.QUEUED, "paused by olga"),
        ("resume", JobState.PAUSED, "resumed by olga"),
        ("stop", JobState.RUNNING, "stopped early by olga"),
        ("cancel", JobState.QUEUED, "cancelled by olga"),
        ("retry", JobState.CANCELLED, "tried again by olga"),
    ],
)
def test_whoever_sees_a_job_learns_who_acted_on_it(store, job_in, verb, state, expected):
    olga = Principal(name="olga", role=Role.OPERATOR, project="another")
    job_id = job_in(state)

    assert getattr(store, verb)(job_id, by=olga).reason == expected
    told = store.events(0, job_id=job_id, kinds=[EventKind.JOB]).events
    assert told[-1].data["reason"] == expected


@only("sqlite")
def test_a_job_knows_who_stopped_it_over_lost_attempts(store, driver, begin):
    close_a_stage(driver)
    store.stop(driver.job_id, by=Principal(name="olga", role=Role.OPERATOR, project="another"))
    store.attempts.lose(driver.job_id, 1, reason="its node is gone")

    second = begin(driver.job_id)
    second.start()
    second.send(finished(second.trial_id), AttemptFinished(outcome="succeeded"))

    job = store.job(driver.job_id)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, "stopped early by olga")


def waiting(store):
    return {job.job_id for job in store.work.backlog().waiting}


def test_a_pause_gives_the_cluster_back_and_a_resume_has_the_place_that_was_kept(store, driver, spec):
    younger = store.add_job(spec)[0].id
    assert store.pause(driver.job_id).state is JobState.PAUSING
    assert store.attempts.renew(driver.job_id, 1).control is Control.PAUSE

    driver.send(AttemptFinished(outcome="paused"))
    paused = store.job(driver.job_id)
    assert (paused.state, paused.reason) == (JobState.PAUSED, "paused by first")
    assert waiting(store) == {younger} and store.work.owned() == ()

    store.resume(driver.job_id)
    assert waiting(store) == {driver.job_id, younger}


@only("sqlite")
def test_a_driver_that_dies_while_it_pauses_leaves_a_paused_job(store, driver):
    store.pause(driver.job_id)

    assert store.attempts.lose(driver.job_id, 1, reason="its driver failed").state is JobState.PAUSED


@only("sqlite")
def test_a_paused_job_that_nobody_resumes_is_the_reconcilers_after_its_deadline(store, job_in, clock):
    job_id = job_in(JobState.PAUSED)
    clock.now += 30 * 24 * 3600 + 1

    (work,) = store.work.owned()
    assert work.job_id == job_id
    assert fail(store, work).state is JobState.FAILED


@only("sqlite")
@pytest.mark.parametrize("is_paused_again", [False, True])
def test_a_job_that_its_user_has_just_resumed_is_not_failed_for_its_pause(store, job_in, clock, is_paused_again):
    job_id = job_in(JobState.PAUSED)
    clock.now += 30 * 24 * 3600 + 1
    (work,) = store.work.owned()

    store.resume(job_id)
    if is_paused_again:
        store.pause(job_id)

    assert fail(store, work).state is (JobState.PAUSED if is_paused_again else JobState.QUEUED)


@only("sqlite")
def test_a_job_that_its_user_has_just_paused_is_not_failed_for_its_wait(store, job_in):
    job_id = job_in(JobState.QUEUED)
    (seen,) = store.work.backlog().waiting

    store.pause(job_id)

    failed = store.work.fail_waiting(
        job_id, state=JobState.QUEUED, deadline=seen.deadline, reason="it waited for a week"
    )
    assert failed.state is JobState.PAUSED


def fail(store, work):
    return store.work.fail_waiting(work.job_id, state=work.state, deadline=work.deadline, reason="nobody resumed it")


@only("sqlite")
def test_a_stop_outlives_its_driver(store, driver, begin):
    store.stop(driver.job_id)
    assert store.attempts.renew(driver.job_id, 1).control is Control.STOP
    assert store.attempts.lose(driver.job_id, 1, reason="its driver failed").state is JobState.QUEUED

    second = begin(driver.job_id)
    assert store.attempts.brief(driver.job_id, 2).control is Control.STOP
    second.start()
    assert store.job(driver.job_id).state is JobState.STOPPING

    second.send(finished(second.trial_id), AttemptFinished(outcome="succeeded"))
    job = store.job(driver.job_id)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, "stopped early by first")


@only("sqlite")
@pytest.mark.parametrize("outcome", [None, "diverged"])
def test_a_stop_before_any_trial_has_a_result_fails_the_job_and_a_retry_trains_the_rest(
    store, make_spec, begin, outcome
):
    driver = begin(store.add_job(make_spec(seeds=[0, 1]))[0].id)
    driver.start()
    if outcome is not None:
        driver.send(finished(driver.trial_id, outcome=outcome), stream=driver.trial_id)
    store.stop(driver.job_id)
    driver.send(AttemptFinished(outcome="succeeded"))

    job = store.job(driver.job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "stopped before any trial had a result")
    assert store.retry(driver.job_id).state is JobState.QUEUED
    begin(driver.job_id)
    assert store.attempts.brief(driver.job_id, 2).control is Control.RUN


@only("sqlite")
@pytest.mark.parametrize("state", [JobState.STARTING, JobState.QUEUED, JobState.PAUSED])
def test_a_job_that_has_run_is_stopped_while_it_waits_and_its_next_driver_ends_it(store, driver, begin, state):
    close_a_stage(driver)
    if state is JobState.PAUSED:
        store.pause(driver.job_id)
        driver.send(AttemptFinished(outcome="paused"))
    else:
        store.attempts.lose(driver.job_id, 1, reason="its driver failed")
    second = begin(driver.job_id) if state is JobState.STARTING else None
    before = store.job(driver.job_id)
    assert before.state is state and Verb.STOP in before.verbs

    stopped = store.stop(driver.job_id)

    assert stopped.state is (JobState.QUEUED if state is JobState.PAUSED else state)
    assert stopped.version > before.version and Verb.STOP not in stopped.verbs
    assert Verb.STOP not in store.jobs().jobs[0].verbs
    with pytest.raises(IllegalTransition, match="was stopped already; its next attempt ends it; what it allows now: "):
        store.stop(driver.job_id)
    second = second or begin(driver.job_id)
    assert store.attempts.brief(driver.job_id, 2).control is Control.STOP
    second.start()
    assert store.job(driver.job_id).state is JobState.STOPPING
    second.send(finished(second.trial_id), AttemptFinished(outcome="succeeded"))
    assert store.job(driver.job_id).reason == "stopped early by first"


@only("sqlite")
def test_a_job_that_waits_is_not_stopped_before_any_trial_has_a_checkpoint(store, driver, begin):
    driver.decide(0, first_step=0)
    for act in (
        lambda: store.attempts.lose(driver.job_id, 1, reason="its driver failed"),
        lambda: begin(driver.job_id),
    ):
        act()
        before = store.job(driver.job_id)
        with pytest.raises(IllegalTransition, match="no trial has a checkpoint yet: `cancel` it; ") as refusal:
            store.stop(driver.job_id)
        assert "`stop`" not in str(refusal.value)
        assert store.job(driver.job_id) == before


@only("sqlite")
def test_a_trial_that_diverged_is_no_result_to_stop_with_and_one_that_ended_well_is(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(seeds=[0, 1, 2]))[0].id)
    driver.start()
    first, second, _ = (trial.trial_id for trial in store.trials(driver.job_id))
    driver.send(finished(first, outcome="diverged"), stream=first)
    store.attempts.lose(driver.job_id, 1, reason="its driver failed")
    with pytest.raises(IllegalTransition, match="no trial has a checkpoint yet"):
        store.stop(driver.job_id)

    again = begin(driver.job_id)
    again.send(finished(second), stream=second)
    store.attempts.lose(driver.job_id, 2, reason="its driver failed")

    assert store.stop(driver.job_id).reason == "stopped early by first"


@only("sqlite")
@pytest.mark.parametrize(("verb", "is_held"), [("resume", True), ("retry", False)])
def test_a_resume_keeps_a_stop_and_a_retry_takes_it_back(store, driver, begin, verb, is_held):
    close_a_stage(driver)
    store.attempts.lose(driver.job_id, 1, reason="its driver failed")
    store.stop(driver.job_id)

    {"resume": store.pause, "retry": store.cancel}[verb](driver.job_id)
    getattr(store, verb)(driver.job_id)

    begin(driver.job_id)
    assert (store.attempts.brief(driver.job_id, 2).control is Control.STOP) == is_held


def lose_all(store, driver, begin):
    """Lose the attempts of a driver's job, without progress, until none is left."""
    number = driver.number
    while store.attempts.lose(driver.job_id, number, reason="its driver failed").state is not JobState.FAILED:
        number = begin(driver.job_id).number


@only("sqlite")
@pytest.mark.parametrize("steady", [None, 30])
def test_a_retry_takes_a_stop_back_from_the_trials_that_it_ended_and_none_loses_a_step(store, make_spec, begin, steady):
    driver = begin(store.add_job(make_spec(seeds=[0, 1, 2, 3], objective={"target": 0.5}))[0].id)
    driver.start()
    stopped, whole, _, at_target = (trial.trial_id for trial in store.trials(driver.job_id))
    driver.send(finished(whole), stream=whole)
    driver.decide(0, first_step=0)
    if steady is not None:
        kept = {"stage": 0, "step": steady, "bill": Bill(steps=steady), "resume": {"at": steady}, "steady": True}
        driver.send(Checkpointed(trial_id=stopped, **kept), stream=stopped)
    store.stop(driver.job_id)
    driver.close(0, step=40, num_steps=40, bill=Bill(steps=40), resume={"at": 40})
    driver.send(finished(stopped, bill=Bill(steps=40), stopped=True), stream=stopped)
    driver.send(finished(at_target, stopped=True, at_target=True), stream=at_target)  # as its last evaluation showed
    lose_all(store, driver, begin)

    store.retry(driver.job_id)

    number = begin(driver.job_id).number
    brief = store.attempts.brief(driver.job_id, number)
    assert [(point.finished, point.resume) for point in brief.trials] == [
        (False, {"at": 40}), (True, None), (False, None), (True, None),
    ]  # fmt: skip
    assert store.trials(driver.job_id)[0].step == 40
    assert (brief.control, brief.spec.budget) == (Control.RUN, Budget(steps=100))


@only("sqlite")
def test_a_retry_of_a_stopped_job_needs_the_checkpoints_of_the_trials_that_the_stop_ended(store, driver, begin):
    url = f"{store.storage.attempt_url(driver.job_id, 1)}/000001-step-40"
    store.stop(driver.job_id)
    driver.decide(0, first_step=0)
    driver.close(0, step=40, num_steps=40, bill=Bill(steps=40), resume={"checkpoint": url})
    driver.send(finished(driver.trial_id, stopped=True), stream=driver.trial_id)
    lose_all(store, driver, begin)

    with pytest.raises(CheckpointGone, match="clone the job"):
        store.retry(driver.job_id)

    store.storage.write(f"{url}/manifest.json", b"{}")
    assert store.retry(driver.job_id).state is JobState.QUEUED


@only("sqlite")
@pytest.mark.parametrize("verb", ["retry", "resume"])
def test_a_job_that_goes_on_has_all_its_attempts_again(store, driver, begin, verb):
    def lose(number):
        return store.attempts.lose(driver.job_id, number, reason="its driver failed").state

    assert lose(1) is JobState.QUEUED
    begin(driver.job_id)
    if verb == "retry":
        assert lose(2) is JobState.FAILED
    else:
        store.pause(driver.job_id)
        assert lose(2) is JobState.PAUSED

    getattr(store, verb)(driver.job_id)

    begin(driver.job_id)
    assert lose(3) is JobState.QUEUED  # the limit is two
    begin(driver.job_id)
    assert lose(4) is JobState.FAILED


def close_a_stage(driver):
    driver.decide(0, first_step=0)
    driver.close(0, step=10, num_steps=10, bill=Bill(steps=10), resume={"at": "a checkpoint"})


def commit(driver, *, steps, steady=None, resume=None, checkpoint=None, stopped=False):
    """Train a stage of `steps`, with a checkpoint at step `steady`, and finish the trial and the job."""
    driver.decide(0, first_step=0)
    series = {"loss": range(steps), "validation_loss": (0, 60, steps)}
    for name, at in series.items():
        seconds, values = tuple(map(float, at)), tuple(float(step) for step in at)
        driver.send(
            MetricPoints(trial_id=driver.trial_id, name=name, steps=tuple(at), seconds=seconds, values=values),
            stream=driver.trial_id,
        )
    bill = Bill(steps=steps, seconds_training=float(steps))
    if steady is not None:
        kept = bill.model_copy(update={"steps": steady, "seconds_training": float(steady)})
        driver.send(
            Checkpointed(trial_id=driver.trial_id, stage=0, step=steady, bill=kept, resume=resume, steady=True),
            stream=driver.trial_id,
        )
    driver.close(0, step=steps, num_steps=steps, bill=bill, resume={"at": "end"} | (checkpoint or {}))
    entries = (ScheduleEntry(step=0, num_steps=steps, learning_rate=0.1),)
    finished = TrialFinished(
        trial_id=driver.trial_id,
        outcome="completed",
        validation_loss=0.5,
        schedule=entries,
        bill=bill,
        weights_url="file:///weights",
        stopped=stopped,
    )
    driver.send(finished, stream=driver.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))


def test_an_extended_job_goes_on_from_its_end(store, driver, begin):
    commit(driver, steps=100)

    job = store.extend(driver.job_id, LARGER)
    begin(driver.job_id)

    [point] = store.attempts.brief(driver.job_id, 2).trials
    [trial] = store.trials(driver.job_id)
    assert job.reason == "extended by first: `tuned.0` goes on from its end, step 100"
    assert (point.finished, point.resume) == (False, {"at": "end"})
    assert store.attempts.brief(driver.job_id, 2).spec.budget == LARGER
    assert (trial.outcome, trial.step, trial.weights_url) == (None, 100, "file:///weights")
    assert store.series(driver.job_id, "loss")[0].num_points == 100


def test_an_extended_job_takes_back_what_followed_the_end_of_its_budget(store, driver, begin):
    commit(driver, steps=100, steady=60, resume={"at": "60"})

    job = store.extend(driver.job_id, LARGER)
    begin(driver.job_id)

    [point] = store.attempts.brief(driver.job_id, 2).trials
    [trial] = store.trials(driver.job_id)
    [stage] = store.stages(driver.job_id)
    assert "`tuned.0` goes on from step 60, before its rate followed the budget's end" in job.reason
    assert point.resume == {"at": "60"}
    assert (trial.step, trial.bill.steps, trial.seconds) == (60, 60, 60.0)
    assert (stage.closed, stage.num_steps, stage.bill.steps) == (False, None, 60)
    assert store.series(driver.job_id, "loss")[0].steps == tuple(range(60))
    assert store.series(driver.job_id, "validation_loss")[0].steps == (0, 60)


def test_a_commit_that_was_taken_back_is_not_what_an_extended_job_goes_on_from(store, driver):
    driver.decide(0, first_step=0)
    driver.send(
        Checkpointed(trial_id=driver.trial_id, stage=0, step=60, bill=Bill(), resume={"at": "60"}, steady=True),
        stream=driver.trial_id,
    )
    driver.close(0, step=0, num_steps=0, bill=Bill(), resume={"at": "start"})
    finished = TrialFinished(
        trial_id=driver.trial_id, outcome="completed", validation_loss=None, schedule=(), bill=Bill(), weights_url=None
    )
    driver.send(finished, stream=driver.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))

    assert "from its end, step 0" in store.extend(driver.job_id, LARGER).reason


def test_a_run_at_its_target_is_not_extended(store, make_spec, begin):
    spec = make_spec(seeds=[0, 1], objective={"target": 0.5})
    job, both = store.add_job(spec)[0], store.add_job(spec)[0]
    for job_id, at_target in ((job.id, [False, True]), (both.id, [True, True])):
        driver = begin(job_id)
        for trial, is_at in zip(store.trials(job_id), at_target, strict=True):
            driver.send(finished(trial.trial_id, at_target=is_at), stream=trial.trial_id)
        driver.send(AttemptFinished(outcome="succeeded"))

    reason = store.extend(job.id, Budget(steps=1000)).reason
    assert reason == "extended by first: `tuned.0` goes on from its end, step 30"
    begin(job.id)
    assert [trial.outcome for trial in store.trials(job.id)] == [None, "completed"]
    with pytest.raises(InvalidJob, match=r"no trial is short of `objective\.target`"):
        store.extend(both.id, Budget(steps=1000))


def test_the_key_of_an_extended_job_still_makes_it(store, spec, begin):
    job = store.add_job(spec, idempotency_key="k")[0]
    driver = begin(job.id)
    driver.start()
    commit(driver, steps=100)
    for steps in (200, 300):
        store.extend(job.id, Budget(steps=steps))
        store._db.write(lambda session: end(session, job.id))

    assert store.add_job(spec, idempotency_key="k")[0].id == job.id


def end(session, job_id):
    for state in (JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED):
        jobs.transition(jobs.locked(session, job_id), state, now=0.0)


@only("sqlite")
@pytest.mark.parametrize(
    ("caps", "pointer", "message"),
    [
        ({"steps": 99}, "/steps", "at least 100"),
        ({"steps": 100}, "", "nothing is larger"),
        ({"bytes": 10**9}, "/bytes", "no `bytes`; extend what it has: 100 steps"),
    ],
)
def test_a_budget_that_is_not_larger_is_refused_with_its_pointer(store, driver, caps, pointer, message):
    commit(driver, steps=100)

    with pytest.raises(InvalidJob, match=message) as refusal:
        store.extend(driver.job_id, Budget(**caps))

    assert [problem.pointer for problem in refusal.value.problems] == [pointer]
    assert store.job(driver.job_id).state is JobState.SUCCEEDED


@only("sqlite")
def test_a_job_that_was_stopped_goes_on_to_the_budget_it_had(store, driver):
    store.stop(driver.job_id)
    commit(driver, steps=40, stopped=True)

    assert store.extend(driver.job_id, Budget(steps=100)).state is JobState.QUEUED


@only("sqlite")
def test_a_stopped_job_loses_no_step_under_its_old_budget_and_takes_its_schedule_back_under_a_larger_one(
    store, driver, begin
):
    store.stop(driver.job_id)
    commit(driver, steps=80, steady=60, resume={"at": 60}, stopped=True)
    reasons = [store.extend(driver.job_id, Budget(steps=100)).reason]
    again = begin(driver.job_id)
    resumes = [store.attempts.brief(driver.job_id, 2).trials[0].resume]
    again.send(finished(again.trial_id, stopped=True), stream=again.trial_id)
    again.send(AttemptFinished(outcome="succeeded"))

    reasons.append(store.extend(driver.job_id, LARGER).reason)
    begin(driver.job_id)
    resumes.append(store.attempts.brief(driver.job_id, 3).trials[0].resume)

    assert ["its end, step 80" in reasons[0], "step 60, before its rate" in reasons[1]] == [True, True]
    assert resumes == [{"at": "end"}, {"at": 60}]


@only("sqlite")
@pytest.mark.parametrize(
    ("steady", "caps", "expected"),
    [
        *((steady, Budget(steps=100), {"at": "a search"}) for steady in (False, True)),
        (False, LARGER, {"at": "closed"}),
        (True, LARGER, {"at": 60}),
    ],
)
def test_a_search_that_a_stop_left_open_goes_on_under_its_old_budget_and_begins_anew_under_a_larger_one(
    store, driver, begin, steady, caps, expected
):
    kept = {"trial_id": driver.trial_id, "step": 60, "bill": Bill(steps=60)}
    driver.decide(0, first_step=0)
    driver.send(Checkpointed(**kept, stage=0, resume={"at": 60}, steady=steady), stream=driver.trial_id)
    driver.close(0, step=60, num_steps=60, bill=Bill(steps=60), resume={"at": "closed"})
    driver.send(Searched(**kept, stage=1, probes=(), resume={"at": "a search"}), stream=driver.trial_id)
    store.stop(driver.job_id)
    driver.send(finished(driver.trial_id, bill=Bill(steps=60), stopped=True), stream=driver.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))

    store.extend(driver.job_id, caps)
    begin(driver.job_id)

    assert store.attempts.brief(driver.job_id, 2).trials[0].resume == expected


@only("sqlite")
def test_a_job_whose_checkpoint_was_removed_is_not_extended(store, driver):
    storage = store.storage
    url = f"{storage.attempt_url(driver.job_id, 1)}/000001-step-100"
    storage.write(f"{url}/shared.safetensors", b"state")
    commit(driver, steps=100, checkpoint={"checkpoint": url})
    [path] = storage.sizes(driver.job_id)
    storage.remove(driver.job_id, [path])

    with pytest.raises(CheckpointGone, match="clone the job"):
        store.extend(driver.job_id, LARGER)

    storage.write(f"{url}/shared.safetensors", b"state")
    assert store.extend(driver.job_id, LARGER).state is JobState.QUEUED


def end_at(driver, trial_id, checkpoint, *, outcome="completed"):
    """Train a stage of a trial whose state is in a checkpoint, and finish the trial."""
    driver.trial_id = trial_id
    driver.decide(0, first_step=0)
    driver.close(0, step=100, num_steps=100, bill=Bill(steps=100), resume={"checkpoint": checkpoint})
    driver.send(finished(trial_id, outcome=outcome), stream=trial_id)


@only("sqlite")
def test_the_checkpoints_of_the_trials_that_go_on_are_looked_for_in_one_listing(store, make_spec, begin, monkeypatch):
    driver = begin(store.add_job(make_spec(seeds=[0, 1, 2, 3]))[0].id)
    driver.start()
    trials = [trial.trial_id for trial in store.trials(driver.job_id)]
    for number, trial_id in enumerate(trials):
        url = f"{store.storage.attempt_url(driver.job_id, 1)}/{number}"
        end_at(driver, trial_id, url, outcome="completed" if number else "diverged")
        if number:  # that of the diverged one is gone
            store.storage.write(f"{url}/manifest.json", b"{}")
    driver.send(AttemptFinished(outcome="succeeded"))
    listed = []
    find = LocalFileSystem.find
    monkeypatch.setattr(LocalFileSystem, "find", lambda *args, **how: listed.append(args) or find(*args, **how))
    monkeypatch.setattr(LocalFileSystem, "exists", lambda *_, **__: pytest.fail("asked for one by one"))

    assert store.extend(driver.job_id, LARGER).state is JobState.QUEUED

    assert len(listed) == 1


@only("sqlite")
def test_a_retry_needs_no_checkpoint_of_a_trial_that_has_ended(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(seeds=[0, 1]))[0].id)
    driver.start()
    end_at(driver, driver.trial_id, f"{store.storage.attempt_url(driver.job_id, 1)}/gone")
    store.attempts.lose(driver.job_id, 1, reason="lost")
    begin(driver.job_id)
    store.attempts.lose(driver.job_id, 2, reason="lost")

    assert store.retry(driver.job_id).state is JobState.QUEUED


@only("sqlite")
def test_a_link_is_no_checkpoint(store, driver, tmp_path):
    url = f"{store.storage.attempt_url(driver.job_id, 1)}/000001-step-100"
    store.storage.write(f"{url}-real/shared.safetensors", b"state")
    [real] = store.storage.sizes(driver.job_id)
    (tmp_path / "elsewhere").mkdir()
    (Path(real).parents[1] / "000001-step-100").symlink_to(tmp_path / "elsewhere")
    commit(driver, steps=100, checkpoint={"checkpoint": url})

    with pytest.raises(CheckpointGone, match="clone the job"):
        store.extend(driver.job_id, LARGER)


ELSEWHERE = ("http://169.254.169.254/latest", "file:///etc", "{folder}/../job-2", "{folder}/x::http://h")


@only("sqlite")
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_a_checkpoint_outside_of_the_jobs_folder_is_refused_with_its_place(store, driver, elsewhere):
    url = elsewhere.format(folder=store.storage.attempt_url(driver.job_id, 1))
    driver.decide(0, first_step=0)
    progress = {"steady": [url], "best": {"checkpoint": url}}
    resume = {"checkpoint": url, "checkpoints": [url], "stage": {"progress": progress}}

    with pytest.raises(InvalidJob, match="in the job's folder") as refusal:
        driver.close(0, step=1, num_steps=1, bill=Bill(), resume=resume)

    places = ("checkpoint", "checkpoints/0", "stage/progress/steady/0", "stage/progress/best/checkpoint")
    assert [problem.pointer for problem in refusal.value.problems] == [f"/records/0/resume/{each}" for each in places]
    assert not store.stages(driver.job_id)[0].closed


@only("sqlite")
def test_a_place_elsewhere_that_an_earlier_release_stored_is_not_asked_for(store, driver, monkeypatch):
    monkeypatch.setattr(Storage, "is_in_folder", lambda *_: True)
    commit(driver, steps=100, checkpoint={"checkpoint": "http://169.254.169.254/latest"})
    monkeypatch.undo()
    monkeypatch.setattr(fsspec, "url_to_fs", lambda url: pytest.fail(f"{url} is asked for"))

    with pytest.raises(CheckpointGone, match="not in the job's folder"):
        store.extend(driver.job_id, LARGER)
