"""Stored trials and stages, and where a new attempt resumes."""

from pathlib import Path

import pytest
from sqlalchemy import select

from service.control.models import StageRow
from service.errors import Fenced, InvalidJob
from service.job.states import JobState
from service.wire.records import (
    Bill,
    Billed,
    Checkpointed,
    Control,
    MetricPoints,
    ProbeDone,
    ScheduleEntry,
)
from tests.support.reported import BILL, finished, points


def test_a_new_attempt_goes_on_from_the_last_closed_stage(store, driver, begin):
    driver.decide(0, first_step=0)
    driver.send(points(driver.trial_id, range(10)), stream=driver.trial_id)
    driver.close(0, num_steps=10, step=10, bill=BILL, resume={"at": 10})
    driver.decide(1, first_step=10, learning_rate=0.7)
    driver.send(points(driver.trial_id, range(10, 15)), stream=driver.trial_id)
    store.attempts.lose(driver.job_id, 1, reason="lost")

    begin(driver.job_id)

    (trial,) = store.trials(driver.job_id)
    (point,) = store.attempts.brief(driver.job_id, 2).trials
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

    store.attempts.lose(driver.job_id, 1, reason="lost")
    begin(driver.job_id)

    assert (shown_so_far, store.trials(driver.job_id)[0].bill) == (later, BILL)


def test_a_stage_rolled_back_to_where_the_one_before_ended_is_no_progress(store, driver, begin):
    driver.decide(0, first_step=0)
    driver.close(0, step=10, num_steps=10, bill=BILL, resume={})
    store.attempts.lose(driver.job_id, 1, reason="lost")
    again = begin(driver.job_id)
    again.decide(1, first_step=10)
    again.close(1, step=10, num_steps=0, bill=BILL, resume={})

    store.attempts.lose(driver.job_id, 2, reason="lost")  # the last one, unless it had got further

    assert store.settings.max_attempts == 2 and store.job(driver.job_id).state is JobState.FAILED


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

    store.attempts.lose(driver.job_id, 1, reason="lost")
    begin(driver.job_id)
    assert curve() == (0, 5, 90)


def test_a_new_attempt_goes_on_from_where_a_diverged_stage_was_rewound_to(store, diverged, begin):
    store.attempts.lose(diverged.job_id, 1, reason="lost")

    begin(diverged.job_id)

    assert store.attempts.brief(diverged.job_id, 2).trials[0].resume == {"again": 10}
    assert shown(store, diverged.job_id) == (10, 0.1, 0.01, 0.25, {"accuracy": 0.75})
    assert store.trials(diverged.job_id)[0].bill.bytes_sent == 800


def test_a_new_attempt_goes_on_from_a_checkpoint_inside_an_open_stage(store, driver, begin):
    driver.decide(0, first_step=0)
    driver.send(points(driver.trial_id, range(20)), stream=driver.trial_id)
    bill = Bill(bytes_sent=700, bytes_by_purpose={"gradient": 700}, seconds_training=4.0, steps=12)
    kept = Checkpointed(trial_id=driver.trial_id, stage=0, step=12, bill=bill, resume={"at": 12})
    driver.send(kept, stream=driver.trial_id)
    store.attempts.lose(driver.job_id, 1, reason="lost")

    begin(driver.job_id)

    (trial,), (stage,) = store.trials(driver.job_id), store.stages(driver.job_id)
    assert store.attempts.brief(driver.job_id, 2).trials[0].resume == {"at": 12}
    assert (trial.step, trial.seconds, trial.bill, stage.closed) == (12, 4.0, bill, False)
    assert store.series(driver.job_id, "loss")[0].steps == tuple(range(12))


def test_a_new_attempt_without_a_closed_stage_starts_anew(store, driver, begin):
    driver.decide(0, first_step=0)
    driver.send(points(driver.trial_id, range(3)), stream=driver.trial_id)
    store.attempts.lose(driver.job_id, 1, reason="lost")

    begin(driver.job_id)

    assert store.attempts.brief(driver.job_id, 2).trials[0].resume is None
    assert store.stages(driver.job_id) == ()
    assert store.trials(driver.job_id)[0].bill == Bill()
    assert store.series(driver.job_id, "loss")[0].num_points == 0


def test_a_finished_trial_is_left_alone_by_later_attempts(store, driver, begin):
    driver.send(points(driver.trial_id, range(3)), finished(driver.trial_id), stream=driver.trial_id)
    store.attempts.lose(driver.job_id, 1, reason="lost")

    begin(driver.job_id)

    assert store.attempts.brief(driver.job_id, 2).trials[0].finished
    assert store.series(driver.job_id, "loss")[0].num_points == 3


def test_a_brief_names_a_folder_of_the_attempts_own(store, driver):
    assert store.attempts.brief(driver.job_id, 1).storage_url.endswith(f"/{driver.job_id}/attempt-1")


def test_a_brief_names_a_file_that_tells_the_services_storage_from_a_folder_of_another_machine(store, driver):
    store.attempts.mark.require()

    mark = Path(store.attempts.brief(driver.job_id, 1).storage_mark.removeprefix("file://"))

    assert mark.exists() and mark.parent == store.settings.state_dir / "results"


def test_a_silent_storage_keeps_no_driver_from_its_brief_and_no_lease_from_being_renewed(store, driver, monkeypatch):
    store.attempts.mark.require()
    monkeypatch.setattr("service.control.storage.files.reaching", lambda *_: pytest.fail("a request asks the storage"))

    assert store.attempts.brief(driver.job_id, 1).storage_mark == store.attempts.mark.url is not None
    assert store.attempts.renew(driver.job_id, 1).control is Control.RUN


def test_an_attempt_that_does_not_own_its_job_gets_no_brief(store, driver):
    with pytest.raises(Fenced):
        store.attempts.brief(driver.job_id, 2)


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
    assert not stage.closed


def test_the_schedule_of_several_optimizers_is_of_the_one_that_was_chosen(store, driver):
    driver.decide(0, first_step=0, values={"optimizer": "adamw"})
    driver.close(0, step=12, num_steps=12, bill=Bill(), resume={})

    assert store.schedules(driver.job_id)[0].optimizer == "adamw"


def test_a_schedule_follows_the_stages_until_the_trial_gives_its_own(store, driver):
    driver.decide(0, first_step=0, learning_rate=0.3)
    driver.close(0, step=12, num_steps=12, bill=Bill(), resume={})
    (so_far,) = store.schedules(driver.job_id)
    driver.send(finished(driver.trial_id), stream=driver.trial_id)
    (complete,) = store.schedules(driver.job_id, arm="tuned", seed=0)

    assert (so_far.complete, so_far.num_steps, so_far.entries[0].learning_rate) == (False, 12, 0.3)
    assert (complete.complete, complete.num_steps, complete.optimizer) == (True, 30, "adamw")
    assert store.schedules(driver.job_id, arm="other") == ()


def test_a_schedule_has_the_rates_that_were_trained_up_to_the_last_checkpoint_and_what_was_decided_behind_it(
    store, driver
):
    trained = ScheduleEntry(step=0, num_steps=12, learning_rate=0.3, final_learning_rate=0.6, piece_steps=20)
    resume = {"progress": {"schedule": [trained.model_dump(mode="json")]}}
    driver.decide(0, first_step=0, learning_rate=0.3)
    checkpoint = Checkpointed(trial_id=driver.trial_id, stage=0, step=12, bill=BILL, resume=resume, steady=False)
    driver.send(checkpoint, stream=driver.trial_id)
    (at_the_checkpoint,) = store.schedules(driver.job_id)
    driver.send(points(driver.trial_id, range(12, 16)), stream=driver.trial_id)
    (behind_it,) = store.schedules(driver.job_id)

    assert at_the_checkpoint.entries == (trained,)
    assert behind_it.entries[0] == trained
    assert [(each.step, each.num_steps, each.learning_rate) for each in behind_it.entries[1:]] == [(12, 3, 0.3)]
    assert not behind_it.complete and behind_it.num_steps == 15


def test_a_finished_trial_shows_its_result(store, driver):
    driver.send(finished(driver.trial_id), stream=driver.trial_id)

    (trial,) = store.trials(driver.job_id)
    assert (trial.outcome, trial.validation_loss, trial.bill.bytes_sent) == ("completed", 0.5, 900)
    assert store.jobs().jobs[0].best_validation_loss == 0.5


def test_a_closed_stage_keeps_the_bill_of_its_own_end(store, driver):
    for stage, sent in enumerate((500, 900)):
        driver.decide(stage, first_step=10 * stage)
        driver.close(stage, num_steps=10, step=10 * (stage + 1), bill=Bill(bytes_sent=sent), resume={})

    assert [stage.bill.bytes_sent for stage in store.stages(driver.job_id)] == [500, 900]


def test_stages_that_are_asked_for_by_number_come_alone_with_all_that_is_theirs(store, driver):
    for stage in range(3):
        driver.decide(stage, first_step=10 * stage)
        driver.close(stage, step=10 * stage + 10, num_steps=10, bill=BILL, resume={})

    every = store.stages(driver.job_id, with_posterior=True)

    assert store.stages(driver.job_id, numbers=[2, 0, 7], with_posterior=True) == (every[0], every[2])


def test_only_the_last_stage_keeps_what_a_trial_resumes_from(store, driver, begin):
    def kept():
        with store._db.reading() as session:
            return list(session.scalars(select(StageRow.resume).order_by(StageRow.stage)))

    for stage in range(3):
        driver.decide(stage, first_step=10 * stage)
        driver.close(stage, num_steps=10, step=10 * stage + 10, bill=BILL, resume={"at": stage})
    driver.decide(3, first_step=30)
    before = kept()
    checkpoint = Checkpointed(trial_id=driver.trial_id, stage=3, step=35, bill=BILL, resume={"at": 3})
    driver.send(checkpoint, stream=driver.trial_id)

    assert (before, kept()) == ([None, None, {"at": 2}, None], [None, None, None, {"at": 3}])
    store.attempts.lose(driver.job_id, 1, reason="lost")
    begin(driver.job_id)
    assert store.attempts.brief(driver.job_id, 2).trials[0].resume == {"at": 3}
    assert [stage.num_steps for stage in store.stages(driver.job_id)] == [10, 10, 10, None]


def test_stages_of_a_run_that_starts_over_keep_no_steps(store, driver):
    driver.decide(0, first_step=0)
    driver.close(0, num_steps=10, step=10, bill=BILL, resume={})
    driver.decide(1, first_step=10)
    driver.close(1, num_steps=0, step=0, bill=BILL, resume={})

    assert [stage.num_steps for stage in store.stages(driver.job_id)] == [0, 0]


def test_a_stage_before_the_one_that_is_rolled_back_keeps_its_steps(store, driver):
    driver.decide(0, first_step=0)
    driver.close(0, num_steps=10, step=10, bill=BILL, resume={})
    driver.decide(1, first_step=10)
    driver.close(1, num_steps=0, step=10, bill=BILL, resume={})

    assert [stage.num_steps for stage in store.stages(driver.job_id)] == [10, 0]
