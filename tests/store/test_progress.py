"""The progress of listed jobs: shares of budgets, current values, and a short curve each."""

import pytest
from sqlalchemy import func, select

from service.control.listing import JobFilter
from service.control.metrics import points as stored
from service.control.models import ChunkRow
from service.control.results.progress import MAX_POINTS
from service.wire.records import AttemptFinished, Bill, Billed, MetricPoints, TrialStarted
from tests.support.reported import finished


def listed(store, job_id):
    return store.jobs(JobFilter(ids=[job_id]), with_progress=True).jobs[0].progress


def started(driver):
    return TrialStarted(trial_id=driver.trial_id, arm="tuned", seed=0, backend="gloo", device="cpu")


def losses(driver, steps, value):
    steps = tuple(steps)
    return MetricPoints(
        trial_id=driver.trial_id, name="validation_loss", steps=steps,
        seconds=tuple(0.01 * step for step in steps), values=tuple(map(value, steps)),
    )  # fmt: skip


def test_only_who_asks_gets_progress(store, driver):
    assert store.jobs().jobs[0].progress is None


def test_a_job_that_has_not_begun_has_spent_nothing(store, make_spec):
    job_id = store.add_job(make_spec(budget={"seconds": 40}))[0].id

    told = listed(store, job_id)

    assert (told.share, told.num_finished, told.losses) == (0.0, 0, ())
    assert told.seconds_left is None


def test_the_cap_that_is_reached_first_tells_how_far_a_trial_is(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(budget={"seconds": 100, "steps": 1000, "bytes": 10_000}))[0].id)
    driver.send(started(driver))
    driver.send(losses(driver, [99], lambda step: 1.0), stream=driver.trial_id)
    bill = Bill(bytes_sent=3000, bytes_dense=9000, steps_search=100)
    driver.send(Billed(trial_id=driver.trial_id, bill=bill))

    told = listed(store, driver.job_id)

    assert told.share * told.num_trials == pytest.approx(0.3)  # bytes; steps: 0.199, seconds: 0.0099
    assert (told.bytes_sent, told.bytes_dense) == (3000, 9000)
    assert told.seconds_left == pytest.approx(0.99 / 0.3 * (told.num_trials - 0.3))


def test_the_seconds_of_a_search_count_before_its_first_committed_step(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(budget={"seconds": 40}))[0].id)
    driver.send(started(driver))
    driver.send(Billed(trial_id=driver.trial_id, bill=Bill(seconds_training=10.0, seconds_search=10.0)))

    told = listed(store, driver.job_id)

    assert told.share == pytest.approx(0.25)
    assert told.seconds_left == pytest.approx(30)


def test_a_trial_that_completed_needs_no_more_of_its_budget(store, driver):
    driver.send(started(driver), finished(driver.trial_id))

    told = listed(store, driver.job_id)

    assert told.num_finished == 1
    assert told.share == pytest.approx(1 / told.num_trials)


def test_bytes_and_values_are_those_of_the_best_arm_once_each_has_a_result(store, make_spec, begin):
    arms = [{"name": "tuned"}, {"name": "dense", "exchange": {"kind": "none"}}]
    driver = begin(store.add_job(make_spec(arms=arms))[0].id)
    tuned, dense = (trial.trial_id for trial in store.trials(driver.job_id))
    for trial_id in (tuned, dense):
        driver.trial_id = trial_id
        driver.send(started(driver))
    driver.send(Billed(trial_id=dense, bill=Bill(bytes_sent=9000, bytes_dense=9000)))

    driver.send(finished(tuned, bill=Bill(bytes_sent=300, bytes_dense=9000), validation_loss=0.4))
    before = listed(store, driver.job_id)
    driver.send(finished(dense, bill=Bill(bytes_sent=9000, bytes_dense=9000), validation_loss=0.5))

    after = listed(store, driver.job_id)
    assert (before.arm, before.bytes_sent) == ("dense", 9000)
    assert (after.arm, after.bytes_sent, after.bytes_dense) == ("tuned", 300, 9000)


def test_a_trial_that_diverged_has_spent_what_it_spent_and_needs_no_more(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(budget={"steps": 1000}))[0].id)
    driver.send(started(driver), finished(driver.trial_id, outcome="diverged"))  # after 30 steps

    told = listed(store, driver.job_id)

    assert (told.num_finished, told.num_trials) == (1, 1)
    assert told.share == pytest.approx(0.03)
    assert told.seconds_left is None


def test_no_time_is_left_to_tell_while_the_rest_of_the_trials_has_yet_to_begin(store, make_spec, begin):
    arms = [{"name": "one"}, {"name": "two"}]
    driver = begin(store.add_job(make_spec(budget={"seconds": 3600}, arms=arms))[0].id)
    driver.send(started(driver))
    during = listed(store, driver.job_id).seconds_left
    driver.send(finished(driver.trial_id))

    assert (during, listed(store, driver.job_id).seconds_left) == (7200, None)


def test_a_sample_that_ended_early_is_not_the_one_that_is_shown(store, make_spec, begin):
    spec = make_spec(params={"accumulate": {"integer": [1, 2]}}, sweep={"samples": 2})
    driver = begin(store.add_job(spec)[0].id)
    arm, first, second = (trial.trial_id for trial in store.trials(driver.job_id))
    for driver.trial_id in (arm, first, second):
        driver.send(started(driver))

    driver.send(finished(first, validation_loss=0.1, stopped=True))
    during = listed(store, driver.job_id).arm
    driver.send(finished(arm, validation_loss=0.4), finished(second, validation_loss=0.3))

    assert (during, listed(store, driver.job_id).arm) == ("sample-1", "sample-1")


def test_an_arm_that_a_stop_left_out_hides_no_result(store, make_spec, begin):
    arms = [{"name": "tuned"}, {"name": "dense", "exchange": {"kind": "none"}}]
    driver = begin(store.add_job(make_spec(arms=arms))[0].id)
    tuned, dense = (trial.trial_id for trial in store.trials(driver.job_id))
    for driver.trial_id in (tuned, dense):
        driver.send(started(driver))
    driver.send(finished(tuned))
    store.stop(driver.job_id)
    driver.send(AttemptFinished(outcome="succeeded"))

    assert listed(store, driver.job_id).arm == "tuned"


def test_no_more_trials_are_told_to_train_side_by_side_than_the_attempt_has_at_a_time(store, make_spec, begin):
    arms = [{"name": "one"}, {"name": "two"}]
    driver = begin(store.add_job(make_spec(budget={"seconds": 3600}, arms=arms))[0].id)  # one trial at a time
    for trial in store.trials(driver.job_id):  # both began in an earlier attempt
        driver.trial_id = trial.trial_id
        driver.send(started(driver))

    assert listed(store, driver.job_id).seconds_left == 7200


@pytest.mark.parametrize("budget", [{"seconds": 3600}, {"steps": 600}])
def test_a_trial_that_was_stopped_early_does_not_shorten_the_time_left_of_the_others(store, make_spec, begin, budget):
    arms = [{"name": "tuned"}, {"name": "dense", "exchange": {"kind": "none"}}]
    driver = begin(store.add_job(make_spec(budget=budget, arms=arms))[0].id)
    tuned, dense = (trial.trial_id for trial in store.trials(driver.job_id))
    for trial_id in (tuned, dense):  # each has used 0.05 of its budget
        driver.trial_id = trial_id
        driver.send(started(driver), Billed(trial_id=trial_id, bill=Bill(seconds_training=180.0, steps_search=30)))
    driver.send(finished(dense, bill=Bill(seconds_training=180.0, steps=30)))

    assert listed(store, driver.job_id).seconds_left == pytest.approx(3420)


@pytest.mark.parametrize(("num", "chunk"), [(30, 1024), (700, 1024), (20 * 128 + 5, 128)])
def test_a_curve_has_the_means_of_equal_spans_however_its_points_are_stored(store, driver, monkeypatch, num, chunk):
    monkeypatch.setattr(stored, "CHUNK", chunk)
    driver.send(started(driver))
    driver.send(losses(driver, range(num), float), stream=driver.trial_id)

    curve = listed(store, driver.job_id).losses

    width = num / min(num, MAX_POINTS)
    assert len(curve) == min(num, MAX_POINTS)
    assert list(curve) == pytest.approx([width * (part + 0.5) - 0.5 for part in range(len(curve))], abs=width)


def test_long_series_are_read_from_few_chunks(store, driver, monkeypatch):
    monkeypatch.setattr(stored, "CHUNK", 32)
    driver.send(started(driver))
    driver.send(losses(driver, range(32 * 64), float), stream=driver.trial_id)
    read = []
    monkeypatch.setattr(stored, "means", lambda data, **given: read.append(data) or {})

    listed(store, driver.job_id)

    with store._db.reading() as session:
        assert session.scalar(select(func.count()).select_from(ChunkRow)) > 64
    assert 1 <= len(read) <= 4


def test_a_diverged_value_does_not_hide_the_rest_of_a_curve(store, driver):
    driver.send(started(driver))
    driver.send(losses(driver, range(4), lambda step: None if step == 2 else 1.0), stream=driver.trial_id)

    assert listed(store, driver.job_id).losses == (1.0, 1.0, None, 1.0)


def test_a_list_by_ids_has_those_that_the_filter_lets_in(store, make_spec):
    first, second, third = (store.add_job(make_spec(name=name))[0].id for name in ("alpha", "beta", "alpha"))

    found = store.jobs(JobFilter(ids=[first, second, "job-none"], text="alpha")).jobs

    assert [job.id for job in found] == [first]
    assert third not in [job.id for job in store.jobs(JobFilter(ids=[first, second])).jobs]


def test_a_samples_level_is_called_as_its_own_exchange_calls_it(store, make_spec, begin):
    names = {"powersgd": "rank", "threshold": "threshold"}
    choice = [{"kind": "powersgd", "rank": 2}, {"kind": "threshold", "search": "absolute", "threshold": 0.01}]
    spec = make_spec(
        exchange={"kind": "topk", "density": 0.01}, params={"exchange": {"choice": choice}}, sweep={"samples": 1}
    )
    driver = begin(store.add_job(spec)[0].id)
    sample = store.trials(driver.job_id)[1]
    driver.trial_id = sample.trial_id
    driver.send(started(driver))
    driver.decide(0, first_step=0, level=2.0)

    assert listed(store, driver.job_id).level_name == names[sample.sample.values["exchange"]["kind"]]
