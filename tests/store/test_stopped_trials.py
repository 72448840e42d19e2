"""One trial of a job is stopped early: it ends where it is, once, whichever driver or service dies."""

from typing import Any

import pytest

from search.config import Budget
from service.control.access.rules import Principal
from service.control.store import Store
from service.errors import IllegalTransition, InvalidJob, NotFound, PreconditionFailed
from service.job.states import TRIALS_STOP_IN, JobState
from service.settings import Settings
from service.wire.access import Role
from service.wire.events import EventKind
from service.wire.records import AttemptFinished, Batch, Bill, Control, MetricPoints, RungReached
from service.wire.sweeps import SampleStatus
from tests.store.conftest import Clock, Driver, only
from tests.support.reported import finished

OLGA = Principal(name="olga", role=Role.OPERATOR, project="another")


@pytest.fixture
def two(store: Store, make_spec: Any, begin: Any) -> Driver:
    """The driver of a running job with two trials, the second of which is at a checkpoint."""
    driver: Driver = begin(store.add_job(make_spec(seeds=[0, 1], controller={"kind": "fixed"}))[0].id)
    driver.start()
    driver.trial_id = second(driver)
    driver.decide(0, first_step=0)
    driver.close(0, step=10, num_steps=10, bill=Bill(steps=10), resume={"at": "a checkpoint"})
    return driver


def first(driver: Driver) -> str:
    return driver.store.trials(driver.job_id)[0].trial_id


def second(driver: Driver) -> str:
    return driver.store.trials(driver.job_id)[1].trial_id


def test_a_stopped_trial_ends_alone_and_its_report_says_who_did_it(store: Store, two: Driver) -> None:
    before = store.job(two.job_id)

    job = store.stop_trial(two.job_id, second(two), by=OLGA)

    assert (job.state, job.version) == (JobState.RUNNING, before.version + 1)
    assert two.send(stream=first(two)).control is Control.RUN
    assert two.send().control is Control.RUN
    assert two.send(stream=second(two)).control is Control.STOP
    two.send(finished(second(two), stopped=True), stream=second(two))
    two.send(finished(first(two)), stream=first(two))
    two.send(AttemptFinished(outcome="succeeded"))
    job, report = store.job(two.job_id), store.report(two.job_id)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, "")
    assert [trial.notes for trial in report.trials] == [(), ("stopped early by olga, after 30 steps",)]
    assert [trial.phase(job.state) for trial in store.trials(two.job_id)] == ["completed", "stopped"]


def test_whoever_follows_the_events_learns_who_stopped_which_trial(store: Store, two: Driver) -> None:
    store.stop_trial(two.job_id, second(two), by=OLGA)

    [told] = store.events(0, job_id=two.job_id, kinds=[EventKind.TRIAL_STOPPED]).events

    assert told.data == {"trial_id": second(two), "by": "olga"}
    assert [entry.action for entry in store.keyring.audit(limit=1).entries] == ["stopTrial"]


@only("sqlite")
def test_a_stop_is_told_by_a_service_that_has_started_again(
    store: Store, two: Driver, settings: Settings, clock: Clock
) -> None:
    store.stop_trial(two.job_id, second(two))
    store.close()

    again = Store.open(settings, clock=clock)
    try:
        batch = Batch(stream=two.trial_id, sequence=3)
        assert again.attempts.ingest(two.job_id, 1, batch).control is Control.STOP
    finally:
        again.close()


@only("sqlite")
def test_the_next_driver_brings_a_stopped_trial_to_its_end(store: Store, two: Driver, begin: Any) -> None:
    store.stop_trial(two.job_id, second(two))
    store.attempts.lose(two.job_id, 1, reason="its node is gone")

    begin(two.job_id)

    brief = store.attempts.brief(two.job_id, 2)
    assert brief.control is Control.RUN
    assert [(point.stopped, point.resume is None) for point in brief.trials] == [(False, True), (True, False)]


@only("sqlite")
def test_a_trial_is_stopped_once(store: Store, two: Driver) -> None:
    job = store.stop_trial(two.job_id, second(two), by=OLGA)

    with pytest.raises(IllegalTransition, match="was stopped already, by olga, and ends when its driver hears of it"):
        store.stop_trial(two.job_id, second(two))
    with pytest.raises(PreconditionFailed):
        store.stop_trial(two.job_id, first(two), versions=[job.version - 1])

    assert store.job(two.job_id) == job
    assert store.trials(two.job_id)[1].stopped_by == "olga"


@only("sqlite")
def test_a_trial_that_has_ended_is_not_stopped(store: Store, two: Driver) -> None:
    two.send(finished(second(two)), stream=second(two))

    with pytest.raises(IllegalTransition, match="has ended, completed: only one that has not can be stopped"):
        store.stop_trial(two.job_id, second(two))


@only("sqlite")
def test_a_trial_that_ended_before_it_heard_of_its_stop_was_stopped_by_nobody(store: Store, two: Driver) -> None:
    store.stop_trial(two.job_id, second(two))

    two.send(finished(second(two), stopped=False), stream=second(two))

    assert store.trials(two.job_id)[1].stopped_by is None
    assert store.report(two.job_id).trials[1].notes == ()


@only("sqlite")
def test_a_trial_of_another_job_is_not_found(store: Store, two: Driver, spec: Any) -> None:
    other = store.add_job(spec)[0].id

    with pytest.raises(NotFound, match=f"job `{other}` has no trial `{second(two)}`"):
        store.stop_trial(other, second(two))


@only("sqlite")
@pytest.mark.parametrize("state", list(JobState))
def test_a_trial_is_stopped_only_while_its_job_goes_on(store: Store, job_in: Any, state: JobState) -> None:
    before = store.job(job_in(state))
    [trial] = store.trials(before.id)
    if state in TRIALS_STOP_IN:
        assert store.stop_trial(before.id, trial.trial_id).state is state
        return

    with pytest.raises(IllegalTransition, match=f"is {state}: a trial is stopped in one that is queued, starting, "):
        store.stop_trial(before.id, trial.trial_id)

    assert store.job(before.id) == before


@only("sqlite")
def test_no_trial_of_a_job_that_was_stopped_is_stopped_again(store: Store, two: Driver) -> None:
    store.attempts.lose(two.job_id, 1, reason="its node is gone")
    store.stop(two.job_id)

    with pytest.raises(IllegalTransition, match="was stopped already, with all its trials; what the job allows now: "):
        store.stop_trial(two.job_id, first(two))


@only("sqlite")
def test_a_stopped_trial_that_never_began_is_left_out(store: Store, two: Driver) -> None:
    store.stop_trial(two.job_id, first(two), by=OLGA)
    two.send(finished(second(two)), stream=second(two))
    two.send(AttemptFinished(outcome="succeeded"))

    left_out = store.trials(two.job_id)[0]
    assert store.job(two.job_id).state is JobState.SUCCEEDED
    assert (left_out.outcome, left_out.phase(JobState.SUCCEEDED)) == (None, "not finished")
    assert store.report(two.job_id).trials[0].notes == ("stopped early by olga",)


@only("sqlite")
def test_a_job_all_of_whose_trials_were_left_out_has_failed_and_a_retry_trains_them(
    store: Store, driver: Driver, begin: Any
) -> None:
    store.stop_trial(driver.job_id, driver.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))
    job = store.job(driver.job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "stopped before any trial had a result")

    store.retry(driver.job_id)
    begin(driver.job_id)

    [point] = store.attempts.brief(driver.job_id, 2).trials
    assert not point.stopped


@only("sqlite")
@pytest.mark.parametrize(("verb", "is_held"), [("resume", True), ("retry", False)])
def test_a_resume_keeps_a_trials_stop_and_a_retry_takes_it_back(
    store: Store, two: Driver, begin: Any, verb: str, is_held: bool
) -> None:
    store.stop_trial(two.job_id, second(two))
    if verb == "resume":
        store.pause(two.job_id)
        two.send(AttemptFinished(outcome="paused"))
    else:
        store.cancel(two.job_id)
        two.send(AttemptFinished(outcome="cancelled"))

    getattr(store, verb)(two.job_id)
    begin(two.job_id)

    assert store.attempts.brief(two.job_id, 2).trials[1].stopped is is_held


@only("sqlite")
def test_more_budget_is_not_for_a_trial_that_was_stopped_alone(store: Store, two: Driver, begin: Any) -> None:
    store.stop_trial(two.job_id, second(two))
    two.send(finished(second(two), stopped=True), stream=second(two))
    two.send(finished(first(two)), stream=first(two))
    two.send(AttemptFinished(outcome="succeeded"))

    store.extend(two.job_id, Budget(steps=200))
    begin(two.job_id)

    assert [point.finished for point in store.attempts.brief(two.job_id, 2).trials] == [False, True]
    assert store.report(two.job_id).trials[1].notes == ("stopped early by first, after 30 steps",)


@only("sqlite")
def test_a_job_all_of_whose_trials_were_stopped_alone_gets_no_more_budget(store: Store, driver: Driver) -> None:
    store.stop_trial(driver.job_id, driver.trial_id)
    driver.send(finished(driver.trial_id, stopped=True), stream=driver.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))

    with pytest.raises(InvalidJob, match="or was stopped alone: clone the job"):
        store.extend(driver.job_id, Budget(steps=200))


@only("sqlite")
def test_an_arm_that_was_stopped_sets_the_others_no_target(store: Store, make_spec: Any, begin: Any) -> None:
    arms = [{"name": "good"}, {"name": "hopeless"}]
    driver = begin(store.add_job(make_spec(arms=arms))[0].id)
    for trial, loss in ((first(driver), 0.25), (second(driver), 8.0)):
        driver.send(_evaluated(trial, loss), stream=trial)
    store.stop_trial(driver.job_id, second(driver))
    driver.send(finished(first(driver)), stream=first(driver))
    driver.send(finished(second(driver), stopped=True), stream=second(driver))

    assert {trial.target for trial in store.report(driver.job_id).trials} == {0.25}


def _evaluated(trial_id: str, loss: float) -> MetricPoints:
    return MetricPoints(trial_id=trial_id, name="validation_loss", steps=(10,), seconds=(1.0,), values=(loss,))


@only("sqlite")
def test_a_sample_that_a_person_stops_is_ranked_by_its_last_rung_as_stopped(
    store: Store, make_spec: Any, begin: Any
) -> None:
    params = {"optimizer.momentum": {"uniform": [0.5, 0.95]}}
    spec = make_spec(optimizer={"kind": "sgd"}, params=params, sweep={"samples": 2})
    driver = begin(store.add_job(spec)[0].id)
    sample = second(driver)
    driver.send(RungReached(trial_id=sample, rung=0, step=10, seconds=1.0, bytes_sent=1, value=0.5), stream=sample)

    store.stop_trial(driver.job_id, sample)
    assert driver.send(stream=sample).control is Control.STOP
    driver.send(finished(sample, stopped=True), stream=sample)

    sweep = store.report(driver.job_id).sweep
    assert sweep is not None
    assert [(each.arm, each.status, each.value) for each in sweep.ranking[:1]] == [
        ("sample-0", SampleStatus.STOPPED, 0.5)
    ]


@only("sqlite")
def test_a_sample_that_was_stopped_alone_keeps_the_others_from_no_larger_budget(
    store: Store, make_spec: Any, begin: Any
) -> None:
    params = {"optimizer.momentum": {"uniform": [0.5, 0.95]}}
    spec = make_spec(optimizer={"kind": "sgd"}, params=params, sweep={"samples": 1})
    driver = begin(store.add_job(spec)[0].id)
    sample = second(driver)
    store.stop_trial(driver.job_id, sample)
    driver.send(finished(sample, stopped=True), stream=sample)  # before its first rung
    driver.send(finished(first(driver)), stream=first(driver))
    driver.send(AttemptFinished(outcome="succeeded"))

    assert store.extend(driver.job_id, Budget(steps=300)).state is JobState.QUEUED


@only("sqlite")
def test_no_trial_is_stopped_while_an_extension_waits_so_that_the_next_one_has_it(
    store: Store, two: Driver, begin: Any
) -> None:
    store.stop(two.job_id)
    two.send(finished(second(two), stopped=True), stream=second(two))
    two.send(AttemptFinished(outcome="succeeded"))  # the first trial never began
    store.extend(two.job_id, Budget(steps=200))

    with pytest.raises(IllegalTransition, match=r"waits for its extension to begin: stop trial .* or `cancel` the ext"):
        store.stop_trial(two.job_id, first(two))
    store.cancel(two.job_id)
    again = store.extend(two.job_id, Budget(steps=200))

    assert "`tuned.0` begins" in again.reason
    begin(two.job_id)
    assert store.stop_trial(two.job_id, first(two)).state is JobState.STARTING
