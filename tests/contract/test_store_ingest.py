"""What the store promises attempts: each batch once, in order, from the owner alone."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, strategies
from hypothesis import settings as hypothesis_settings

from service.errors import Fenced, IllegalTransition, InvalidJob, NotFound, OutOfSequence
from service.records import (
    AttemptFinished,
    Batch,
    Bill,
    Billed,
    Checkpointed,
    Control,
    MetricPoints,
    ProbeDone,
    ScheduleEntry,
    TrialFinished,
)
from service.states import JobState


def points(trial_id, steps, values=None):
    steps = tuple(steps)
    return MetricPoints(
        trial_id=trial_id,
        name="loss",
        steps=steps,
        seconds=tuple(float(step) for step in steps),
        values=tuple(values or (1.0 / (step + 1) for step in steps)),
    )


BILL = Bill(
    bytes_sent=500,
    bytes_search=120,
    bytes_by_purpose={"gradient": 380, "control": 120},
    bytes_dense=4000,
    seconds_search=2.5,
    seconds_training=9.0,
    seconds_evaluation=0.5,
    seconds_checkpoint=0.25,
    steps=10,
    steps_search=10,
)


def finished(trial_id, **changes):
    fields = {
        "outcome": "completed",
        "validation_loss": 0.5,
        "validation_metrics": {"accuracy": 0.9},
        "schedule": (ScheduleEntry(step=0, num_steps=30, learning_rate=0.1),),
        "bill": Bill(bytes_sent=900, steps=30, seconds_training=3.0),
        "weights_url": "file:///w",
    }
    return TrialFinished(trial_id=trial_id, **(fields | changes))


@given(seed=strategies.integers(0, 2**32))
@hypothesis_settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
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
                store.ingest(driver.job_id, 1, batches[index])
            continue
        stored = max(stored, index + 1)
        assert store.ingest(driver.job_id, 1, batches[index]).sequence == stored

    (series,) = store.series(driver.job_id, "loss")
    assert series.steps == tuple(range(6))


def test_a_repeated_batch_changes_nothing(store, driver):
    batch = Batch(stream=driver.trial_id, sequence=1, records=(points(driver.trial_id, [0, 1]),))
    store.ingest(driver.job_id, 1, batch)
    other = batch.model_copy(update={"records": (points(driver.trial_id, [0, 1], [7.0, 7.0]),)})

    acknowledged = store.ingest(driver.job_id, 1, other)

    assert acknowledged.sequence == 1
    assert store.series(driver.job_id, "loss")[0].values == (1.0, 0.5)


def test_streams_are_counted_apart(store, driver):
    store.ingest(driver.job_id, 1, Batch(stream=driver.trial_id, sequence=1))

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
    store.lose_attempt(driver.job_id, 1, reason="lost")
    begin(driver.job_id)
    arguments = (Batch(stream="driver", sequence=2),) if stale == "ingest" else ()

    with pytest.raises(Fenced, match="last attempt is 2"):
        getattr(store, stale)(driver.job_id, 1, *arguments)


def test_a_fenced_batch_leaves_no_trace(store, driver, begin):
    store.lose_attempt(driver.job_id, 1, reason="lost")
    begin(driver.job_id)

    with pytest.raises(Fenced):
        driver.send(points(driver.trial_id, [5]), stream=driver.trial_id)

    assert store.series(driver.job_id, "loss")[0].steps == ()


def test_an_ended_attempt_is_fenced_but_its_last_batch_may_repeat(store, driver):
    driver.send(AttemptFinished(outcome="succeeded"))

    assert store.ingest(driver.job_id, 1, Batch(stream="driver", sequence=2)).sequence == 2
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


def test_the_driver_is_told_to_cancel(store, driver):
    assert driver.send().control is Control.RUN

    store.cancel(driver.job_id)

    assert driver.send().control is Control.CANCEL
    assert store.renew(driver.job_id, 1).control is Control.CANCEL
    assert store.brief(driver.job_id, 1).control is Control.CANCEL


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_a_job_that_was_being_cancelled_is_cancelled_however_its_driver_ends(store, driver, outcome):
    store.cancel(driver.job_id)

    driver.send(AttemptFinished(outcome=outcome))

    assert store.job(driver.job_id).state is JobState.CANCELLED


def test_a_failed_attempt_queues_the_job_with_a_back_off_until_none_is_left(store, driver, begin, clock):
    driver.send(AttemptFinished(outcome="failed", reason="out of memory"))

    (work,) = store.work()
    assert work.state is JobState.QUEUED
    assert work.not_before > clock.now
    assert "out of memory" in work.reason

    begin(driver.job_id).send(AttemptFinished(outcome="failed", reason="again"))

    job = store.job(driver.job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "again")


def test_a_failure_that_would_come_again_ends_the_job_with_its_first_attempt(store, driver):
    driver.send(AttemptFinished(outcome="failed", reason="`loss` must return a scalar", retry=False))

    job = store.job(driver.job_id)
    assert (job.state, job.attempt, job.reason) == (JobState.FAILED, 1, "`loss` must return a scalar")


def test_a_driver_with_nothing_left_to_train_may_succeed_at_once(store, spec, begin):
    driver = begin(store.add_job(spec)[0].id)

    driver.send(AttemptFinished(outcome="succeeded"))

    assert store.job(driver.job_id).state is JobState.SUCCEEDED


def test_only_the_driver_renews_the_lease(store, driver, clock):
    (before,) = store.work()
    clock.now += 5

    driver.send(points(driver.trial_id, [0]), stream=driver.trial_id)
    (after_trial,) = store.work()
    driver.send()
    (after_driver,) = store.work()

    assert after_trial.lease_expires == before.lease_expires
    assert after_driver.lease_expires == pytest.approx(before.lease_expires + 5, abs=0.1)


def test_a_new_attempt_goes_on_from_the_last_closed_stage(store, driver, begin):
    driver.decide(0, first_step=0)
    driver.send(points(driver.trial_id, range(10)), stream=driver.trial_id)
    driver.close(0, num_steps=10, step=10, bill=BILL, resume={"at": 10})
    driver.decide(1, first_step=10, learning_rate=0.7)
    driver.send(points(driver.trial_id, range(10, 15)), stream=driver.trial_id)
    store.lose_attempt(driver.job_id, 1, reason="lost")

    begin(driver.job_id)

    (trial,) = store.trials(driver.job_id)
    (point,) = store.brief(driver.job_id, 2).trials
    assert (point.finished, point.resume) == (False, {"at": 10})
    assert [stage.stage for stage in store.stages(driver.job_id)] == [0]
    assert store.series(driver.job_id, "loss")[0].steps == tuple(range(10))
    assert (trial.step, trial.seconds, trial.learning_rate) == (10, 9.0, 0.1)
    assert trial.bill == BILL


def test_a_closed_stage_and_a_checkpoint_put_the_whole_bill_on_the_trial(store, driver):
    driver.decide(0, first_step=0)
    driver.close(0, step=10, num_steps=10, bill=BILL, resume={})
    at_the_close = store.trials(driver.job_id)[0].bill
    driver.decide(1, first_step=10)
    later = BILL.model_copy(update={"bytes_sent": 900, "seconds_training": 12.0, "steps": 15})
    kept = Checkpointed(trial_id=driver.trial_id, stage=1, step=15, bill=later, resume={})
    driver.send(kept, stream=driver.trial_id)

    (trial,) = store.trials(driver.job_id)
    assert (at_the_close, trial.bill, trial.seconds) == (BILL, later, 12.0)


def test_a_bill_so_far_is_shown_until_the_next_one_and_forgotten_with_what_it_paid_for(store, driver, begin):
    driver.decide(0, first_step=0)
    driver.close(0, step=10, num_steps=10, bill=BILL, resume={})
    later = BILL.model_copy(update={"bytes_sent": 900, "steps": 15})
    driver.send(Billed(trial_id=driver.trial_id, bill=later), stream=driver.trial_id)
    shown_so_far = store.trials(driver.job_id)[0].bill

    store.lose_attempt(driver.job_id, 1, reason="lost")
    begin(driver.job_id)

    assert (shown_so_far, store.trials(driver.job_id)[0].bill) == (later, BILL)


@pytest.fixture
def diverged(driver):
    """The driver of a trial whose second stage diverged after steps 10 to 14 and was rewound."""

    def commit(steps, rate, loss):
        last = steps[-1]
        measured = {"learning_rate": (last, rate), "validation_loss": (last + 1, loss)}
        measured["validation_accuracy"] = (last + 1, 1 - loss)
        ends = [
            MetricPoints(trial_id=driver.trial_id, name=name, steps=(step,), seconds=(float(step),), values=(value,))
            for name, (step, value) in measured.items()
        ]
        driver.send(points(driver.trial_id, steps), *ends, stream=driver.trial_id)

    driver.decide(0, first_step=0, learning_rate=0.1, level=0.01)
    commit(range(10), 0.1, 0.25)
    driver.close(0, step=10, num_steps=10, bill=BILL, resume={"at": 10})
    driver.decide(1, first_step=10, learning_rate=8.0, level=0.5)
    commit(range(10, 15), 8.0, 0.75)
    wasted = BILL.model_copy(update={"bytes_sent": 800, "seconds_training": 11.0})
    driver.close(1, step=10, num_steps=0, bill=wasted, resume={"again": 10})
    return driver


def shown(store, job_id):
    (trial,) = store.trials(job_id)
    return trial.step, trial.learning_rate, trial.level, trial.validation_loss, trial.validation_metrics


def test_a_rewound_commit_leaves_only_its_cost_behind(store, diverged):
    series = {name: store.series(diverged.job_id, name)[0].steps for name in ("loss", "validation_loss")}
    (trial,) = store.trials(diverged.job_id)
    assert shown(store, diverged.job_id) == (10, 0.1, 0.01, 0.25, {"accuracy": 0.75})
    assert series == {"loss": tuple(range(10)), "validation_loss": (10,)}
    assert (trial.bill.bytes_sent, trial.seconds) == (800, 11.0)
    assert [entry.step for entry in store.schedules(diverged.job_id)[0].entries] == [0]


def test_the_line_beside_a_rewound_one_keeps_its_curve(store, driver, begin):
    def curve():
        return store.series(driver.job_id, name)[0].steps

    name = "insurance_validation_loss"
    beside = MetricPoints(trial_id=driver.trial_id, name=name, steps=(0, 5, 90), seconds=(1, 2, 9), values=(3, 2, 1))
    driver.decide(0, first_step=0)
    driver.send(beside, stream=driver.trial_id)
    driver.close(0, step=0, num_steps=0, bill=BILL, resume={})
    assert curve() == (0, 5, 90) and store.trials(driver.job_id)[0].step == 0

    store.lose_attempt(driver.job_id, 1, reason="lost")
    begin(driver.job_id)
    assert curve() == (0, 5, 90)


def test_a_new_attempt_goes_on_from_where_a_diverged_stage_was_rewound_to(store, diverged, begin):
    store.lose_attempt(diverged.job_id, 1, reason="lost")

    begin(diverged.job_id)

    assert store.brief(diverged.job_id, 2).trials[0].resume == {"again": 10}
    assert shown(store, diverged.job_id) == (10, 0.1, 0.01, 0.25, {"accuracy": 0.75})
    assert store.trials(diverged.job_id)[0].bill.bytes_sent == 800


def test_a_new_attempt_goes_on_from_a_checkpoint_inside_an_open_stage(store, driver, begin):
    driver.decide(0, first_step=0)
    driver.send(points(driver.trial_id, range(20)), stream=driver.trial_id)
    bill = Bill(bytes_sent=700, bytes_by_purpose={"gradient": 700}, seconds_training=4.0, steps=12)
    kept = Checkpointed(trial_id=driver.trial_id, stage=0, step=12, bill=bill, resume={"at": 12})
    driver.send(kept, stream=driver.trial_id)
    store.lose_attempt(driver.job_id, 1, reason="lost")

    begin(driver.job_id)

    (trial,), (stage,) = store.trials(driver.job_id), store.stages(driver.job_id)
    assert store.brief(driver.job_id, 2).trials[0].resume == {"at": 12}
    assert (trial.step, trial.seconds, trial.bill, stage.closed) == (12, 4.0, bill, False)
    assert store.series(driver.job_id, "loss")[0].steps == tuple(range(12))


def test_a_new_attempt_without_a_closed_stage_starts_anew(store, driver, begin):
    driver.decide(0, first_step=0)
    driver.send(points(driver.trial_id, range(3)), stream=driver.trial_id)
    store.lose_attempt(driver.job_id, 1, reason="lost")

    begin(driver.job_id)

    assert store.brief(driver.job_id, 2).trials[0].resume is None
    assert store.stages(driver.job_id) == ()
    assert store.trials(driver.job_id)[0].bill == Bill()
    assert store.series(driver.job_id, "loss")[0].num_points == 0


def test_a_finished_trial_is_left_alone_by_later_attempts(store, driver, begin):
    driver.send(points(driver.trial_id, range(3)), finished(driver.trial_id), stream=driver.trial_id)
    store.lose_attempt(driver.job_id, 1, reason="lost")

    begin(driver.job_id)

    assert store.brief(driver.job_id, 2).trials[0].finished
    assert store.series(driver.job_id, "loss")[0].num_points == 3


def test_a_brief_names_a_folder_of_the_attempts_own(store, driver):
    assert store.brief(driver.job_id, 1).storage_url.endswith(f"/{driver.job_id}/attempt-1")


def test_a_stage_closed_before_it_was_decided_is_refused(driver):
    with pytest.raises(InvalidJob, match="before it is decided"):
        driver.close(0, step=1, num_steps=1, bill=Bill(), resume={})


def test_a_stage_shows_its_probes_in_order_of_arrival(store, driver):
    further = {"batch_size": 64, "momentum": 0.95, "nesterov": True}
    for name, rate in (("b", 0.1), ("a", 0.2)):
        probe = ProbeDone(
            trial_id=driver.trial_id,
            stage=0,
            probe_id=name,
            learning_rate=rate,
            level=None,
            values=further,
            origin="wide",
            num_steps=20,
            seconds=1.0,
            bytes_sent=2**40,
            density=None,
            loss=None,
        )
        driver.send(probe, stream=driver.trial_id)
    driver.decide(0, first_step=0, values=further)

    (stage,) = store.stages(driver.job_id)

    assert [(probe.probe_id, probe.learning_rate) for probe in stage.probes] == [("b", 0.1), ("a", 0.2)]
    assert stage.probes[0].bytes_sent == 2**40
    assert stage.values == stage.probes[0].values == further
    assert store.schedules(driver.job_id)[0].entries[0].values == further
    assert not stage.closed


def test_a_schedule_follows_the_stages_until_the_trial_gives_its_own(store, driver):
    driver.decide(0, first_step=0, learning_rate=0.3)
    driver.close(0, step=12, num_steps=12, bill=Bill(), resume={})
    (so_far,) = store.schedules(driver.job_id)
    driver.send(finished(driver.trial_id), stream=driver.trial_id)
    (complete,) = store.schedules(driver.job_id, arm="tuned", seed=0)

    assert (so_far.complete, so_far.num_steps, so_far.entries[0].learning_rate) == (False, 12, 0.3)
    assert (complete.complete, complete.num_steps, complete.optimizer) == (True, 30, "schedulefree_sgd")
    assert store.schedules(driver.job_id, arm="other") == ()


def test_a_finished_trial_shows_its_result(store, driver):
    driver.send(finished(driver.trial_id), stream=driver.trial_id)

    (trial,) = store.trials(driver.job_id)
    assert (trial.outcome, trial.validation_loss, trial.bill.bytes_sent) == ("completed", 0.5, 900)
    assert store.jobs().jobs[0].best_validation_loss == 0.5


def test_a_thinned_series_keeps_both_ends_and_the_extremes(store, driver):
    values = [1.0] * 1000
    values[333], values[777] = 99.0, -99.0
    driver.send(points(driver.trial_id, range(1000), values), stream=driver.trial_id)

    (series,) = store.series(driver.job_id, "loss", max_points=50)

    assert len(series.steps) <= 50
    assert (series.steps[0], series.steps[-1], series.num_points) == (0, 999, 1000)
    assert {99.0, -99.0} <= set(series.values)


def test_a_diverged_value_survives_as_missing(store, driver):
    driver.send(points(driver.trial_id, range(2), [1.0, None]), stream=driver.trial_id)

    assert store.series(driver.job_id, "loss")[0].values == (1.0, None)


def test_an_empty_series_is_empty_and_an_unknown_one_or_trial_is_not_found(store, driver):
    assert store.series(driver.job_id, "density")[0].values == ()
    with pytest.raises(NotFound, match="no metric `nothing`"):
        store.series(driver.job_id, "nothing")
    with pytest.raises(NotFound, match="no trial"):
        store.series(driver.job_id, "loss", trial_id="elsewhere")


def test_losing_an_attempt_twice_ends_it_once(store, driver):
    first = store.lose_attempt(driver.job_id, 1, reason="lost")

    assert store.lose_attempt(driver.job_id, 1, reason="lost again") == first


def test_a_job_that_is_not_queued_begins_no_attempt(store, driver):
    with pytest.raises(IllegalTransition):
        store.begin_attempt(driver.job_id)

    assert store.job(driver.job_id).attempt == 1


def test_the_best_loss_is_the_lowest_reported_not_the_last(store, driver):
    losses = MetricPoints(
        trial_id=driver.trial_id,
        name="validation_loss",
        steps=(0, 10, 20),
        seconds=(0.0, 1.0, 2.0),
        values=(0.3, 0.1, 0.2),
    )
    driver.send(losses, stream=driver.trial_id)

    (summary,), (trial,) = store.jobs().jobs, store.trials(driver.job_id)
    assert (summary.best_validation_loss, trial.validation_loss) == (0.1, 0.2)


def test_a_closed_stage_keeps_the_bill_of_its_own_end(store, driver):
    for stage, sent in enumerate((500, 900)):
        driver.decide(stage, first_step=10 * stage)
        driver.close(stage, num_steps=10, step=10 * (stage + 1), bill=Bill(bytes_sent=sent), resume={})

    assert [stage.bill.bytes_sent for stage in store.stages(driver.job_id)] == [500, 900]


def test_of_a_step_that_comes_twice_in_a_batch_the_last_value_stays(store, driver):
    driver.send(points(driver.trial_id, [0, 1, 1], [3.0, 2.0, 1.0]), stream=driver.trial_id)

    assert store.series(driver.job_id, "loss")[0].values == (3.0, 1.0)


def test_the_last_words_of_a_driver_are_kept_whatever_bytes_they_hold(store, driver):
    driver.send(AttemptFinished(outcome="failed", reason="Segmentation fault\0 ✗"))

    assert store.job(driver.job_id).reason.endswith("Segmentation fault\ufffd ✗")
