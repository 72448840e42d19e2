"""The store's results, on every database."""

import pytest

from search.bayesian.probe_costs import MIN_COARSE
from service.control.queries import NamedPoint
from service.control.results import outcomes
from service.control.results.facts import LEAST_COARSE
from service.errors import NotFound
from service.wire.records import AttemptFinished, Bill, MetricPoints
from tests.support.decisions import decision
from tests.support.reported import finished


def test_points_are_all_there_in_order_whatever_order_they_came_in(store, driver):
    steps = (5, 0, 3)
    for name in ("validation_loss", "loss"):
        values = (0.1, None, 1 / 3)
        driver.send(MetricPoints(trial_id=driver.trial_id, name=name, steps=steps, seconds=steps, values=values))

    found = list(store.points(driver.trial_id))

    expected = [(0, 0.0, None), (3, 3.0, 1 / 3), (5, 5.0, 0.1)]
    assert found == [NamedPoint(name, *row) for name in ("loss", "validation_loss") for row in expected]


def test_more_points_than_fit_in_memory_at_once_come_through(store, driver):
    many = tuple(range(25_000))
    driver.send(MetricPoints(trial_id=driver.trial_id, name="loss", steps=many, seconds=many, values=many))

    assert [point.step for point in store.points(driver.trial_id)] == list(many)


def test_an_attempt_is_without_a_log_until_it_is_noted(store, driver, begin):
    driver.send(AttemptFinished(outcome="failed", reason="lost"))
    second = begin(driver.job_id)

    before = {attempt.number: attempt.ended_at is not None for attempt in store.attempts.without_log()}
    store.attempts.note_log(driver.job_id, 1)

    assert before == {1: True, 2: False}
    assert [attempt.number for attempt in store.attempts.without_log()] == [second.number]
    assert store.attempts.one(driver.job_id, 1).log_kept and not store.attempts.one(driver.job_id).log_kept


def test_an_attempt_that_never_was_is_not_found(store, spec, driver):
    with pytest.raises(NotFound, match="its last is 1"):
        store.attempts.one(driver.job_id, 2)
    with pytest.raises(NotFound, match="not had any"):
        store.attempts.one(store.add_job(spec)[0].id)


def test_a_running_jobs_report_is_of_what_there_is(store, driver):
    points = MetricPoints(
        trial_id=driver.trial_id, name="validation_loss", steps=(0, 9), seconds=(0.0, 4.0), values=(2.0, 1.0)
    )
    driver.send(points)

    report = store.report(driver.job_id)

    (trial,) = report.trials
    assert (trial.validation_loss, trial.target_loss, trial.seconds_to_target) == (1.0, None, None)  # none has ended
    assert not report.complete and report.arms[0].num_finished == 0


def test_a_report_says_where_nothing_was_searched_and_which_steps_weights_it_gives(store, driver):
    driver.decide(0, first_step=0, reason="the guess 0.1 stays: a search needs 50 steps")
    driver.send(finished(driver.trial_id, exported_step=20, end_validation_loss=0.75))

    (trial,) = store.report(driver.job_id).trials

    assert trial.notes == (
        "not searched; the guess 0.1 stays: a search needs 50 steps",
        "the weights are those of step 20; at the end the validation loss was 0.75",
    )
    (view,) = store.trials(driver.job_id)
    assert (view.exported_step, view.end_validation_loss) == (20, 0.75)


@pytest.mark.parametrize("num_probes", [1, LEAST_COARSE - 1])
def test_a_search_that_ended_after_too_few_probes_and_kept_the_guess_is_none(store, driver, num_probes):
    reason = "the guess 0.1 stays: 2 probes came to an end, a search needs 3"
    driver.decide(0, first_step=0, reason=reason, decision=decision(rewards=[0.1] * num_probes))
    driver.send(finished(driver.trial_id))

    (trial,) = store.report(driver.job_id).trials

    assert f"not searched; {reason}" in trial.notes


def test_the_least_number_of_probes_is_the_controllers():
    assert LEAST_COARSE == MIN_COARSE


def test_a_report_says_that_a_run_was_not_trained_and_that_its_weights_are_an_average(store, driver):
    driver.decide(0, first_step=0, decision=decision(rewards=(0.1, 0.2, 0.3)))
    driver.send(finished(driver.trial_id, bill=Bill(bytes_sent=900), averaged=True, end_validation_loss=0.75))

    assert store.report(driver.job_id).trials[0].notes == (
        "not trained: its budget was spent before the first step, as discarded first steps and evaluations count",
        "the weights are an average of the last steps up to step 0; at the end the validation loss was 0.75",
    )


@pytest.mark.parametrize(("after", "further"), [("idle", "; `extend` goes on from there"), ("insurance", "")])
def test_a_report_says_that_a_run_which_was_stopped_in_its_first_search_was_not_trained(
    store, make_spec, begin, after, further
):
    driver = begin(store.add_job(make_spec(lanes={"count": 2, "after": after}))[0].id)
    driver.start()
    driver.send(finished(driver.trial_id, bill=Bill(bytes_sent=900), stopped=True))

    told = "not trained: it was stopped within its first search, and has the weights that it began with"
    assert store.report(driver.job_id).trials[0].notes[-1] == told + further


def test_a_report_of_a_search_that_kept_its_end_has_nothing_to_add(store, driver):
    driver.decide(0, first_step=0, decision=decision(rewards=(0.1, 0.2, 0.3)))
    driver.send(finished(driver.trial_id))

    assert store.report(driver.job_id).trials[0].notes == ()


def test_a_comparison_makes_the_reports_of_jobs_that_are_over_once(store, make_spec, begin, monkeypatch):
    over, going_on = (begin(store.add_job(make_spec())[0].id) for _ in range(2))
    over.send(finished(over.trial_id))
    over.send(AttemptFinished(outcome="succeeded"))
    asked = [over.job_id, going_on.job_id]
    first, made, make = store.comparison(asked), [], outcomes.job_report
    monkeypatch.setattr(
        outcomes, "job_report", lambda job, *args, **more: (made.append(job.id), make(job, *args, **more))[1]
    )

    again = store.comparison(asked)

    assert made == [going_on.job_id] and again == first
