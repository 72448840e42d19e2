"""A job whose trials all diverged fails at once and for good; a single divergence is a note in the report."""

import pytest

from service.errors import InvalidJob
from service.job.states import JobState
from service.wire.records import AttemptFinished, Divergence, MetricPoints
from tests.support.reported import finished, points

AT_ONCE, LATER = Divergence(step=0, learning_rate=0.1), Divergence(step=120, learning_rate=30.0)
ALWAYS = Divergence(step=150, learning_rate=0.025, learning_rates=(0.4, 0.1, 0.025))
LOWEST = Divergence(step=120, learning_rate=1e-8)


def _end(driver, *divergences):
    for trial, divergence in zip(driver.store.trials(driver.job_id), divergences, strict=True):
        outcome = "completed" if divergence is None else "diverged"
        driver.send(finished(trial.trial_id, outcome=outcome, divergence=divergence))
    driver.send(AttemptFinished(outcome="succeeded"))
    return driver.store.job(driver.job_id)


@pytest.mark.parametrize(
    ("divergence", "words"),
    [
        (AT_ONCE, ("at step 0, before any update", "Look at the loss and at the data")),
        (LATER, ("at step 120", "the learning rate, 30, is too high")),
        (ALWAYS, ("at step 150, at the learning rates 0.4, 0.1 and 0.025", "the data of that step")),
        (LOWEST, ("at step 120, even at 1e-08", "Scale the inputs and the targets to about 1, or give `clip`")),
    ],
)
def test_a_job_that_diverged_fails_without_another_attempt_and_says_where(store, driver, divergence, words):
    job = _end(driver, divergence)

    assert (job.state, job.attempt, store.work.owned()) == (JobState.FAILED, 1, ())
    assert all(word in job.reason for word in words)
    assert store.trials(driver.job_id)[0].divergence == divergence


def test_it_is_not_tried_again_since_it_would_end_the_same(store, driver):
    _end(driver, LATER)

    with pytest.raises(InvalidJob, match="clone the job"):
        store.retry(driver.job_id)


def test_a_job_that_was_about_to_pause_or_to_be_cancelled_when_it_diverged(store, spec, begin):
    def ended_after(ask):
        driver = begin(store.add_job(spec)[0].id)
        driver.start()
        ask(driver.job_id)
        return _end(driver, LATER).state

    assert ended_after(store.pause) is JobState.FAILED
    assert ended_after(store.stop) is JobState.FAILED
    assert ended_after(store.cancel) is JobState.CANCELLED


def test_one_trial_that_diverged_among_others_is_a_note_of_a_job_that_succeeds(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(seeds=[0, 1]))[0].id)
    driver.start()

    assert _end(driver, LATER, None).state is JobState.SUCCEEDED
    first, second = store.report(driver.job_id).trials
    assert [note[:20] for note in first.notes] == ["diverged at step 120"] and second.notes == ()


@pytest.mark.parametrize(
    ("at_target", "note"),
    [
        (True, "at `objective.target`, a validation accuracy of 0.9, after 30 steps"),
        (False, "not at `objective.target`, a validation accuracy of 0.9"),
    ],
)
def test_a_report_says_whether_a_run_got_to_its_target(store, make_spec, begin, at_target, note):
    driver = begin(store.add_job(make_spec(objective={"metric": "accuracy", "target": 0.9}))[0].id)
    driver.start()
    driver.send(finished(driver.trial_id, at_target=at_target))

    [trial] = store.report(driver.job_id).trials
    assert (trial.notes, trial.target) == ((note,), 0.9)


def test_a_report_says_that_a_run_overfitted_and_that_its_patience_ended_it(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(objective={"metric": "accuracy", "patience": 3, "every": 10}))[0].id)
    driver.start()
    trial_id, steps = driver.trial_id, (0, 10, 20, 30, 40)
    validation = {"loss": (2.0, 1.0, 0.8, 0.7, 0.6), "accuracy": (0.1, 0.9, 0.85, 0.8, 0.72)}
    driver.send(
        points(trial_id, range(40)),
        *(
            MetricPoints(trial_id=trial_id, name=f"validation_{name}", steps=steps, seconds=steps, values=values)
            for name, values in validation.items()
        ),
    )
    kept = {"exported_step": 10, "end_validation_loss": 0.6, "end_validation_metrics": {"accuracy": 0.72}}
    driver.send(finished(trial_id, **kept, ended_early=True, last_weights_url="file:///end"))

    report = store.report(driver.job_id)

    assert (report.metric, report.best_trial) == ("accuracy", trial_id)
    assert report.trials[0].notes == (
        "ended early, after 30 steps: the validation accuracy had not improved in 3 evaluations in a row",
        "overfitted: after step 10 the validation accuracy fell by 20%, from 0.9 to 0.72, while the training loss fell",
        "the weights are those of step 10; at the end the validation accuracy was 0.72",
    )
    assert store.trials(driver.job_id)[0].last_weights_url == "file:///end"
