"""A job that has held its workers for as long as it may is stopped, by the clocks of its drivers alone."""

from typing import Any

import pytest

from search.config import Budget
from service.control.access.rules import Principal
from service.control.models import JobRow
from service.control.store import Store
from service.job.states import JobState, Verb
from service.settings import Settings
from service.wire.access import Role
from service.wire.records import AttemptFinished, Bill, Control
from tests.store.conftest import Clock, Driver, only
from tests.support.reported import finished

LIMIT_S = 600.0
STOPPED = "stopped: it held its workers for 600 s, its limit"
YEAR_S = 366 * 86_400.0


@pytest.fixture
def limited(store: Store, make_spec: Any, begin: Any) -> Driver:
    """The driver of a running job with a limit, whose trial is at a checkpoint."""
    driver: Driver = begin(store.add_job(make_spec(limits={"wall_seconds": LIMIT_S}))[0].id)
    driver.start()
    driver.decide(0, first_step=0)
    driver.close(0, step=10, num_steps=10, bill=Bill(steps=10), resume={"at": "a checkpoint"})
    return driver


def renew(driver: Driver, held_s: float) -> Control:
    return driver.store.attempts.renew(driver.job_id, driver.number, held_s=held_s).control


def held_s(store: Store, job_id: str) -> float:
    with store._db.reading() as session:
        return session.get_one(JobRow, job_id).held_s


def test_a_job_at_its_limit_ends_as_if_its_budget_were_spent(store: Store, limited: Driver) -> None:
    assert renew(limited, LIMIT_S - 1) is Control.RUN

    assert renew(limited, LIMIT_S) is Control.STOP

    assert limited.send(stream=limited.trial_id).control is Control.STOP
    assert (store.job(limited.job_id).state, store.job(limited.job_id).reason) == (JobState.STOPPING, STOPPED)
    limited.send(finished(limited.trial_id, stopped=True), stream=limited.trial_id)
    limited.send(AttemptFinished(outcome="succeeded"))
    job = store.job(limited.job_id)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, STOPPED)
    assert store.report(limited.job_id).reason == STOPPED


@only("sqlite")
def test_the_time_is_summed_over_attempts_without_waits_and_pauses(
    store: Store, limited: Driver, begin: Any, clock: Clock
) -> None:
    renew(limited, 200.0)
    store.attempts.lose(limited.job_id, 1, reason="its node is gone")
    clock.now += 3600.0
    again = begin(limited.job_id)
    again.start()
    renew(again, 200.0)
    store.pause(limited.job_id)
    again.send(AttemptFinished(outcome="paused"))
    clock.now += 3600.0
    store.resume(limited.job_id)
    last = begin(limited.job_id)
    last.start()

    assert [renew(last, held) for held in (199.0, 200.0)] == [Control.RUN, Control.STOP]


@only("sqlite")
def test_a_renewal_that_comes_again_or_late_counts_once(store: Store, limited: Driver) -> None:
    for held in (300.0, 300.0, 100.0, 350.0):
        assert renew(limited, held) is Control.RUN

    assert held_s(store, limited.job_id) == 350.0


@only("sqlite")
@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
def test_a_clock_that_is_set_ends_no_job(store: Store, limited: Driver, clock: Clock, jump_s: float) -> None:
    renew(limited, 10.0)

    clock.now += jump_s

    assert renew(limited, 15.0) is Control.RUN
    assert held_s(store, limited.job_id) == 15.0


@only("sqlite")
def test_the_time_outlives_the_service(store: Store, limited: Driver, settings: Settings, clock: Clock) -> None:
    renew(limited, LIMIT_S - 1)
    store.close()

    again = Store.open(settings, clock=clock)
    try:
        assert again.attempts.renew(limited.job_id, 1, held_s=LIMIT_S).control is Control.STOP
        assert again.job(limited.job_id).reason == STOPPED
    finally:
        again.close()


@only("sqlite")
def test_the_next_driver_of_a_job_at_its_limit_brings_its_trials_to_their_end(
    store: Store, limited: Driver, begin: Any
) -> None:
    renew(limited, LIMIT_S)
    store.attempts.lose(limited.job_id, 1, reason="its node is gone")
    assert Verb.STOP not in store.job(limited.job_id).verbs  # it was stopped already

    again = begin(limited.job_id)

    assert store.attempts.brief(limited.job_id, 2).control is Control.STOP
    again.start()
    assert store.job(limited.job_id).reason == STOPPED


@only("sqlite")
def test_a_job_that_reached_its_limit_while_it_paused_ends_when_it_is_resumed(
    store: Store, limited: Driver, begin: Any
) -> None:
    store.pause(limited.job_id)
    assert renew(limited, LIMIT_S) is Control.PAUSE
    limited.send(AttemptFinished(outcome="paused"))

    store.resume(limited.job_id)
    begin(limited.job_id)

    assert store.attempts.brief(limited.job_id, 2).control is Control.STOP


@only("sqlite")
def test_a_job_without_a_result_at_its_limit_has_failed_and_says_why(store: Store, make_spec: Any, begin: Any) -> None:
    driver = begin(store.add_job(make_spec(limits={"wall_seconds": LIMIT_S}))[0].id)
    assert renew(driver, LIMIT_S) is Control.STOP  # its workers had not started

    driver.send(AttemptFinished(outcome="succeeded"))

    job = store.job(driver.job_id)
    assert (job.state, job.reason) == (JobState.FAILED, f"stopped before any trial had a result ({STOPPED})")


@only("sqlite")
@pytest.mark.parametrize("verb", ["retry", "extend"])
def test_a_retry_and_an_extension_give_the_whole_time_again(
    store: Store, limited: Driver, begin: Any, verb: str
) -> None:
    renew(limited, LIMIT_S)
    if verb == "retry":
        store.cancel(limited.job_id)
        limited.send(AttemptFinished(outcome="cancelled"))
        store.retry(limited.job_id)
    else:
        limited.send(finished(limited.trial_id, stopped=True), stream=limited.trial_id)
        limited.send(AttemptFinished(outcome="succeeded"))
        store.extend(limited.job_id, Budget(steps=100))  # what it had: it was stopped before it was spent

    again = begin(limited.job_id)
    again.start()

    assert store.job(limited.job_id).state is JobState.RUNNING
    assert [renew(again, held) for held in (LIMIT_S - 1, LIMIT_S)] == [Control.RUN, Control.STOP]


@only("sqlite")
def test_who_stopped_a_job_before_its_limit_is_named(store: Store, limited: Driver) -> None:
    store.stop(limited.job_id, by=Principal(name="olga", role=Role.OPERATOR, project="another"))

    assert renew(limited, LIMIT_S) is Control.STOP

    assert store.job(limited.job_id).reason == "stopped early by olga"


@only("sqlite")
def test_a_job_without_a_limit_is_never_stopped_for_its_time(store: Store, driver: Driver) -> None:
    assert renew(driver, YEAR_S) is Control.RUN

    assert held_s(store, driver.job_id) == 0.0


@only("sqlite")
def test_an_extension_that_is_taken_back_leaves_a_job_that_was_stopped_at_its_limit(
    store: Store, limited: Driver
) -> None:
    renew(limited, LIMIT_S)
    limited.send(finished(limited.trial_id, stopped=True), stream=limited.trial_id)
    limited.send(AttemptFinished(outcome="succeeded"))
    store.extend(limited.job_id, Budget(steps=200))

    store.cancel(limited.job_id)

    assert held_s(store, limited.job_id) == LIMIT_S
    assert store.extend(limited.job_id, Budget(steps=100)).state is JobState.QUEUED  # the old budget again
