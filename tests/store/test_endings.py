"""The ends of attempts, and their effect on jobs."""

import pytest

from service.control import attempts
from service.errors import IllegalTransition
from service.job.states import JobState
from service.wire.jobs import JobEdit
from service.wire.records import MAX_REASON_CHARS, AttemptFinished, Checkpointed, Control, Searched
from tests.support.reported import BILL, finished, points


def test_the_driver_is_told_to_cancel(store, driver):
    assert driver.send().control is Control.RUN

    store.cancel(driver.job_id)

    assert driver.send().control is Control.CANCEL
    assert store.attempts.renew(driver.job_id, 1).control is Control.CANCEL
    assert store.attempts.brief(driver.job_id, 1).control is Control.CANCEL


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_a_job_that_was_being_cancelled_is_cancelled_however_its_driver_ends(store, driver, outcome):
    store.cancel(driver.job_id)

    driver.send(AttemptFinished(outcome=outcome))

    assert store.job(driver.job_id).state is JobState.CANCELLED


def test_a_failed_attempt_queues_the_job_until_none_is_left(store, driver, begin, clock):
    driver.send(AttemptFinished(outcome="failed", reason="out of memory"))

    (job,) = store.work.backlog().waiting
    assert job.not_before <= clock.now
    assert "out of memory" in job.reason

    begin(driver.job_id).send(AttemptFinished(outcome="failed", reason="again"))

    job = store.job(driver.job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "again")


def test_one_loss_may_be_chance_and_from_the_second_on_each_waits_twice_as_long():
    assert [attempts.back_off_s(num_tried) for num_tried in (1, 2, 3, 6, 7, 100)] == [0, 2, 4, 32, 60, 60]


def _close_a_stage(driver, step):
    driver.decide(step, first_step=0)
    driver.close(step, step=step, num_steps=1, bill=BILL, resume={"at": step})


def _checkpoint(driver, step):
    driver.decide(0, first_step=0)
    driver.send(Checkpointed(trial_id=driver.trial_id, stage=0, step=step, bill=BILL, resume={"at": step}))


def _end_probes(driver, number):
    ended = tuple(f"0-{each}" for each in range(number))
    driver.send(Searched(trial_id=driver.trial_id, stage=0, step=0, probes=ended, bill=BILL, resume={"told": number}))


def _finish_trials(driver, number):
    trials = driver.store.trials(driver.job_id)
    driver.send(*(finished(trial.trial_id) for trial in trials[:number]))


WAYS = pytest.mark.parametrize("get_to", [_close_a_stage, _checkpoint, _end_probes, _finish_trials])


@WAYS
def test_attempts_that_each_get_further_are_tried_again_at_once_and_without_end(store, make_spec, begin, clock, get_to):
    job_id = store.add_job(make_spec(seeds=list(range(6))))[0].id

    for reached in range(1, 6):
        driver = begin(job_id)
        driver.start()
        get_to(driver, reached)
        store.attempts.lose(job_id, driver.number, reason="killed")
        (job,) = store.work.backlog().waiting
        assert job.not_before <= clock.now


@WAYS
def test_of_attempts_that_get_no_further_than_the_last_one_there_is_an_end(store, make_spec, begin, clock, get_to):
    job_id = store.add_job(make_spec(seeds=[0, 1, 2]))[0].id

    for _ in range(store.settings.max_attempts):
        assert store.job(job_id).state is JobState.QUEUED
        driver = begin(job_id)
        driver.start()
        get_to(driver, 2)
        store.attempts.lose(job_id, driver.number, reason="killed")

    assert store.job(job_id).state is JobState.FAILED


def test_a_failure_that_would_come_again_ends_the_job_with_its_first_attempt(store, driver):
    driver.send(AttemptFinished(outcome="failed", reason="`loss` must return a scalar", retry=False))

    job = store.job(driver.job_id)
    assert (job.state, job.attempt, job.reason) == (JobState.FAILED, 1, "`loss` must return a scalar")


def test_a_driver_with_nothing_left_to_train_may_succeed_at_once(store, spec, begin):
    driver = begin(store.add_job(spec)[0].id)

    driver.send(AttemptFinished(outcome="succeeded"))

    assert store.job(driver.job_id).state is JobState.SUCCEEDED


def test_only_the_driver_renews_the_lease(store, driver, clock):
    (before,) = store.work.owned()
    clock.now += 5

    driver.send(points(driver.trial_id, [0]), stream=driver.trial_id)
    (after_trial,) = store.work.owned()
    driver.send()
    (after_driver,) = store.work.owned()

    assert after_trial.lease_expires == before.lease_expires
    assert after_driver.lease_expires == pytest.approx(before.lease_expires + 5, abs=0.1)


def test_losing_an_attempt_twice_ends_it_once(store, driver):
    first = store.attempts.lose(driver.job_id, 1, reason="lost")

    assert store.attempts.lose(driver.job_id, 1, reason="lost again") == first


def test_a_job_that_is_not_queued_begins_no_attempt(store, driver):
    with pytest.raises(IllegalTransition):
        store.attempts.begin(driver.job_id)

    assert store.job(driver.job_id).attempt == 1


def test_a_reason_is_bounded_wherever_it_is_from_and_said_again_it_is_no_news(store, driver):
    long = "x" * 1_000_000
    store.work.explain(driver.job_id, state=JobState.RUNNING, reason=long)
    explained = store.job(driver.job_id)
    store.work.explain(driver.job_id, state=JobState.RUNNING, reason=long)
    assert store.job(driver.job_id) == explained

    lost = store.attempts.lose(driver.job_id, 1, reason=long)

    (attempt,) = store.attempts.of_job(driver.job_id)
    assert {len(each.reason) for each in (explained, lost, attempt)} == {MAX_REASON_CHARS}


def test_the_last_words_of_a_driver_are_kept_whatever_bytes_they_hold(store, driver):
    driver.send(AttemptFinished(outcome="failed", reason="Segmentation fault\0 ✗"))

    assert store.job(driver.job_id).reason.endswith("Segmentation fault\ufffd ✗")


def test_a_lost_attempt_is_shown_until_the_job_has_got_further_or_is_over(store, driver, begin):
    def shown():
        (listed,) = store.jobs().jobs
        seen = [store.job(driver.job_id), listed, store.snapshot(driver.job_id).job]
        (lost,) = {each.lost for each in seen}
        return lost and (lost.number, lost.reason, lost.num_lost, lost.max_lost)

    assert shown() is None
    driver.send(AttemptFinished(outcome="failed", reason="out of memory"))
    assert shown() == (1, "out of memory", 1, store.settings.max_attempts)

    second = begin(driver.job_id)
    second.start()
    assert shown() == (1, "out of memory", 1, store.settings.max_attempts)
    version = store.job(driver.job_id).version
    _close_a_stage(second, 1)
    assert shown() is None and store.job(driver.job_id).version > version  # an open page hears of it

    lost = store.attempts.lose(driver.job_id, second.number, reason="killed")
    assert shown() == (2, "killed", 1, store.settings.max_attempts)
    assert lost == store.job(driver.job_id)
    store.cancel(driver.job_id)
    assert shown() is None


def test_a_job_that_is_paused_after_its_first_attempt_was_lost_shows_it_in_every_answer(store, driver):
    store.attempts.lose(driver.job_id, 1, reason="killed")

    answers = [store.pause(driver.job_id), store.edit(driver.job_id, JobEdit(notes="why?")), store.job(driver.job_id)]

    assert [each.lost.reason for each in (*answers, *store.jobs().jobs)] == ["killed"] * 4


def test_a_job_that_is_over_says_for_how_long_its_attempts_held_workers(store, driver, begin, clock):
    clock.now += 20
    store.attempts.lose(driver.job_id, 1, reason="killed")
    clock.now += 1000
    begin(driver.job_id)
    clock.now += 10
    before = store.job(driver.job_id).seconds_held

    store.cancel(driver.job_id)
    over = store.attempts.lose(driver.job_id, 2, reason="killed")

    (listed,) = store.jobs().jobs
    assert before is None
    assert over.seconds_held == listed.seconds_held == pytest.approx(30, abs=0.1)
