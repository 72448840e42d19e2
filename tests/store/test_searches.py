"""The stored state of a running search, and where the next attempt resumes."""

import pytest

from service.errors import CheckpointGone
from service.job.states import JobState
from service.wire.records import MetricPoints, ProbeDone, Searched
from tests.store.conftest import only
from tests.support.reported import BILL, points

MORE = BILL.model_copy(update={"bytes_sent": 700, "seconds_training": 11.0})


def _probe(driver, stage, number):
    return ProbeDone(
        trial_id=driver.trial_id, stage=stage, probe_id=f"{stage}-{number}", learning_rate=0.1, level=None,
        origin="sobol", num_steps=5, seconds=0.5, bytes_sent=100, density=None, loss=1.0,
    )  # fmt: skip


def _searched(driver, stage, num_probes, *, step):
    ended = tuple(f"{stage}-{number}" for number in range(num_probes))
    folder = driver.store.storage.attempt_url(driver.job_id, driver.number)
    resume = {"told": num_probes, "checkpoint": f"{folder}/nowhere"}
    return Searched(trial_id=driver.trial_id, stage=stage, step=step, probes=ended, bill=MORE, resume=resume)


@pytest.fixture
def searching(driver):
    """A driver whose trial has closed a stage, and of whose next search two probes have ended, and a third is lost."""
    driver.decide(0, first_step=0)
    driver.send(points(driver.trial_id, range(10)), stream=driver.trial_id)
    driver.close(0, num_steps=10, step=10, bill=BILL, resume={"at": 10})
    for number in range(2):
        driver.send(_probe(driver, 1, number), _searched(driver, 1, number + 1, step=10), stream=driver.trial_id)
    driver.send(_probe(driver, 1, 2), stream=driver.trial_id)
    return driver


def test_a_new_attempt_goes_on_behind_the_last_acknowledged_probe(store, searching, begin):
    store.attempts.lose(searching.job_id, 1, reason="lost")
    again = begin(searching.job_id)

    (point,), (trial,) = store.attempts.brief(searching.job_id, 2).trials, store.trials(searching.job_id)
    assert point.resume["told"] == 2
    assert (trial.step, trial.bill, trial.seconds) == (10, MORE, 11.0)
    assert store.series(searching.job_id, "loss")[0].steps == tuple(range(10))
    again.decide(1, first_step=10)
    assert [probe.probe_id for probe in store.stages(searching.job_id)[-1].probes] == ["1-0", "1-1"]


def test_a_stage_that_was_decided_and_has_no_step_is_searched_to_its_end_again(store, searching, begin):
    searching.decide(1, first_step=10)
    searching.send(points(searching.trial_id, range(10, 14)), stream=searching.trial_id)

    store.attempts.lose(searching.job_id, 1, reason="lost")
    begin(searching.job_id)

    assert store.attempts.brief(searching.job_id, 2).trials[0].resume["told"] == 2
    assert [stage.stage for stage in store.stages(searching.job_id)] == [0]
    assert store.series(searching.job_id, "loss")[0].steps == tuple(range(10))


def test_what_is_kept_of_a_commit_takes_the_place_of_its_search(store, searching, begin):
    searching.decide(1, first_step=10)
    searching.close(1, num_steps=10, step=20, bill=BILL, resume={"at": 20})

    store.attempts.lose(searching.job_id, 1, reason="lost")
    begin(searching.job_id)

    assert store.attempts.brief(searching.job_id, 2).trials[0].resume == {"at": 20}


def test_the_first_search_goes_on_with_the_evaluation_before_it(store, driver, begin):
    evaluated = MetricPoints(
        trial_id=driver.trial_id, name="validation_loss", steps=(0,), seconds=(0.1,), values=(2.0,)
    )
    driver.send(evaluated, _probe(driver, 0, 0), _searched(driver, 0, 1, step=0), stream=driver.trial_id)

    store.attempts.lose(driver.job_id, 1, reason="lost")
    begin(driver.job_id)

    assert store.attempts.brief(driver.job_id, 2).trials[0].resume["told"] == 1
    assert store.series(driver.job_id, "validation_loss")[0].values == (2.0,)


@only("sqlite")
def test_a_job_cancelled_in_a_search_needs_the_states_checkpoint_to_be_tried_again(store, searching):
    store.cancel(searching.job_id)
    store.attempts.lose(searching.job_id, 1, reason="lost")
    assert store.job(searching.job_id).state is JobState.CANCELLED

    with pytest.raises(CheckpointGone, match=r"/nowhere is not in the job's folder on storage \(any more\)"):
        store.retry(searching.job_id)
