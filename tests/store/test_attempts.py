"""The users' view of a job's attempts, of disturbances, and of a clone's original."""

from service.wire.events import EventKind
from service.wire.records import Bill, Billed
from tests.support.reported import points


def test_every_attempt_is_listed_with_its_end_and_a_living_one_without(store, driver, begin):
    store.attempts.lose(driver.job_id, 1, reason="its node was lost")
    begin(driver.job_id)

    first, second = store.attempts.of_job(driver.job_id)

    assert (first.number, first.outcome, first.reason) == (1, "failed", "its node was lost")
    assert first.ended_at is not None and first.ended_at >= first.began_at
    assert (second.number, second.outcome, second.ended_at) == (2, None, None)


def test_a_repair_and_a_missed_average_are_told_once_each(store, driver):
    for bill in (
        Bill(absences={0: 0, 1: 0}),
        Bill(repairs=1, seconds_training=3.0, absences={0: 0, 1: 0}),
        Bill(repairs=1, seconds_training=4.0, absences={0: 0, 1: 0}),
        Bill(repairs=1, seconds_training=5.0, absences={0: 0, 1: 1}),
    ):
        driver.send(Billed(trial_id=driver.trial_id, bill=bill), stream=driver.trial_id)

    told = [each.data for each in store.events(0, job_id=driver.job_id, kinds=frozenset([EventKind.REPAIR])).events]

    assert [(each["seconds"], each["repairs"]) for each in told] == [(3.0, 1), (5.0, 1)]


def test_a_change_of_state_has_the_clocks_of_trials_under_way(store, driver):
    driver.decide(0, first_step=0)
    driver.close(0, step=10, num_steps=10, bill=Bill(seconds_training=7.0, steps=10), resume={})
    store.pause(driver.job_id)

    told = store.events(0, job_id=driver.job_id, kinds=frozenset([EventKind.JOB])).events

    assert told[-1].data["clocks"] == {driver.trial_id: 7.0}


def test_the_start_of_an_attempt_has_the_clocks_that_it_goes_on_from(store, driver, begin):
    driver.decide(0, first_step=0)
    driver.close(0, step=10, num_steps=10, bill=Bill(seconds_training=7.0, steps=10), resume={})
    driver.send(Billed(trial_id=driver.trial_id, bill=Bill(seconds_training=9.0, steps=12)), stream=driver.trial_id)
    driver.send(points(driver.trial_id, [11]).model_copy(update={"seconds": (9.0,)}), stream=driver.trial_id)
    store.attempts.lose(driver.job_id, 1, reason="its node was lost")

    begin(driver.job_id)

    lost, starting = store.events(0, job_id=driver.job_id, kinds=frozenset([EventKind.JOB])).events[-2:]
    assert (lost.data["clocks"], lost.data["state"]) == ({driver.trial_id: 9.0}, "queued")
    assert (starting.data["clocks"], starting.data["state"]) == ({driver.trial_id: 7.0}, "starting")


def test_a_clone_knows_its_source(store, driver):
    made, _ = store.add_job(store.job(driver.job_id).spec, source=driver.job_id)

    assert store.job(made.id).source == driver.job_id
    assert store.job(driver.job_id).source is None
