"""The store's promises to attempts: each batch once, in order, from the owner alone."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies

from service.errors import Fenced, InvalidJob, OutOfSequence
from service.job.states import JobState
from service.wire.records import (
    AttemptFinished,
    Batch,
    MetricPoints,
)
from tests.support.reported import points


@given(seed=strategies.integers(0, 2**32))
@hypothesis_settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
def test_batches_count_once_whatever_is_repeated_early_or_late(store, make_spec, begin, seed):
    chance = random.Random(seed)
    driver = begin(store.add_job(make_spec())[0].id)
    driver.start()
    trial = driver.trial_id
    batches = [Batch(stream=trial, sequence=n + 1, records=(points(trial, [n]),)) for n in range(6)]
    arrivals = [chance.randrange(6) for _ in range(20)] + list(range(6))

    stored = 0
    for index in arrivals:
        if index > stored:
            with pytest.raises(OutOfSequence, match=f"expects batch {stored + 1}"):
                store.attempts.ingest(driver.job_id, 1, batches[index])
            continue
        stored = max(stored, index + 1)
        assert store.attempts.ingest(driver.job_id, 1, batches[index]).sequence == stored

    (series,) = store.series(driver.job_id, "loss")
    assert series.steps == tuple(range(6))


def test_a_repeated_batch_changes_nothing(store, driver):
    batch = Batch(stream=driver.trial_id, sequence=1, records=(points(driver.trial_id, [0, 1]),))
    store.attempts.ingest(driver.job_id, 1, batch)
    other = batch.model_copy(update={"records": (points(driver.trial_id, [0, 1], [7.0, 7.0]),)})

    acknowledged = store.attempts.ingest(driver.job_id, 1, other)

    assert acknowledged.sequence == 1
    assert store.series(driver.job_id, "loss")[0].values == (1.0, 0.5)


def test_streams_are_counted_apart(store, driver):
    store.attempts.ingest(driver.job_id, 1, Batch(stream=driver.trial_id, sequence=1))

    assert driver.send().sequence == 2


def test_threads_that_report_at_once_lose_nothing(store, make_spec, begin):
    drivers = [begin(store.add_job(make_spec())[0].id) for _ in range(8)]

    def report(driver):
        driver.start()
        for step in range(20):
            driver.send(points(driver.trial_id, [step]), stream=driver.trial_id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(report, drivers))

    for driver in drivers:
        assert store.series(driver.job_id, "loss")[0].steps == tuple(range(20))


def test_the_first_trial_that_starts_makes_the_job_run(store, spec, begin):
    driver = begin(store.add_job(spec)[0].id)
    assert store.job(driver.job_id).state is JobState.STARTING

    driver.start()

    job = store.job(driver.job_id)
    assert (job.state, job.attempt) == (JobState.RUNNING, 1)
    assert job.started_at is not None


@pytest.mark.parametrize("stale", ["brief", "renew", "ingest"])
def test_a_superseded_attempt_is_fenced(store, driver, begin, stale):
    store.attempts.lose(driver.job_id, 1, reason="lost")
    begin(driver.job_id)
    arguments = (Batch(stream="driver", sequence=2),) if stale == "ingest" else ()

    with pytest.raises(Fenced, match="last attempt is 2"):
        getattr(store.attempts, stale)(driver.job_id, 1, *arguments)


def test_a_fenced_batch_leaves_no_trace(store, driver, begin):
    store.attempts.lose(driver.job_id, 1, reason="lost")
    begin(driver.job_id)

    with pytest.raises(Fenced):
        driver.send(points(driver.trial_id, [5]), stream=driver.trial_id)

    assert store.series(driver.job_id, "loss")[0].steps == ()


def test_an_ended_attempt_is_fenced_but_its_last_batch_may_repeat(store, driver):
    driver.send(AttemptFinished(outcome="succeeded"))

    assert store.attempts.ingest(driver.job_id, 1, Batch(stream="driver", sequence=2)).sequence == 2
    with pytest.raises(Fenced):
        driver.send()


def test_a_trial_of_another_job_is_refused_with_its_place(store, driver, spec):
    foreign = store.trials(store.add_job(spec)[0].id)[0].trial_id

    with pytest.raises(InvalidJob) as refusal:
        driver.send(points(driver.trial_id, [0]), points(foreign, [0]))

    assert [problem.pointer for problem in refusal.value.problems] == ["/records/1/trial_id"]
    assert store.series(driver.job_id, "loss")[0].steps == ()


def test_an_unknown_stream_is_refused(store, driver):
    with pytest.raises(InvalidJob) as refusal:
        driver.send(stream="elsewhere")

    assert [problem.pointer for problem in refusal.value.problems] == ["/stream"]


def test_series_of_uneven_length_are_refused(driver):
    uneven = MetricPoints(trial_id=driver.trial_id, name="loss", steps=(0, 1), seconds=(0.0,), values=(1.0,))

    with pytest.raises(InvalidJob, match="differ in length"):
        driver.send(uneven)
