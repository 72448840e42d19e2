"""The queue's part of the store: places, preemption, quotas and use, on both databases."""

from contextlib import suppress

import pytest

from search.config import Budget
from service.control import events
from service.control.access.rules import LOCAL, Principal
from service.control.queue.capacity import Node, Shape, Size
from service.control.queue.order import HALF_LIFE_S
from service.control.queue.queued import Start
from service.control.queue.quotas import QuotaBook
from service.errors import IllegalTransition, NotFound, QueueFull
from service.job.priority import Priority
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.access import Role
from service.wire.jobs import JobEdit
from service.wire.queue import QuotaKind, QuotaLimits
from service.wire.records import AttemptFinished, Control
from tests.store.conftest import only
from tests.support.reported import finished

URGENT = {"priority": "urgent"}


def known(store):
    return {job.job_id: job for job in store.work.backlog().waiting}


def begin_in_room(store, job_id, *, cpus):
    job = known(store)[job_id]
    return store.attempts.begin(job_id, Start(job, job.shape.one, 1), [Node(cpus=cpus)])


def test_what_waits_is_kept_up_to_date_whatever_is_done_to_it(store, make_spec, begin, monkeypatch):
    first, second, third = (store.add_job(make_spec(name=name))[0].id for name in "abc")
    assert set(known(store)) == {first, second, third}

    store.edit(first, JobEdit(priority=Priority.HIGH))
    store.pause(second)
    driver = begin(third)
    fourth = store.add_job(make_spec(workers={"count": 3}))[0].id
    found = known(store)

    assert set(found) == {first, fourth}
    assert (found[first].priority, found[fourth].shape.num_workers) == (Priority.HIGH, 3)
    assert [each.job_id for each in store.work.backlog().running] == [third]

    store.cancel(first)
    driver.start()
    monkeypatch.setattr(events, "KEPT_EVENTS", 0)
    store.expiry.prune_events(kept=0)  # it was away for too long
    store.resume(second)
    assert set(known(store)) == {second, fourth} == set(_fresh(store))


def _fresh(store):
    """What a service that has just started knows."""
    from service.control.queue.waiting import WaitingList

    return {job.job_id for job in WaitingList(store._db).backlog(now=0.0).waiting}


def test_time_in_the_queue_is_kept_over_a_run_and_over_a_pause(store, spec, clock, begin):
    job_id = store.add_job(spec)[0].id
    clock.now += 100
    driver = begin(job_id)
    driver.start()
    clock.now += 1000
    store.attempts.lose(job_id, 1, reason="lost")
    assert clock.now - known(store)[job_id].queued_at == pytest.approx(100, abs=1)

    clock.now += 50
    store.pause(job_id)
    clock.now += 10_000
    store.resume(job_id)
    assert clock.now - known(store)[job_id].queued_at == pytest.approx(150, abs=1)

    store.cancel(job_id)
    store.retry(job_id)
    assert clock.now - known(store)[job_id].queued_at == pytest.approx(0, abs=1)


def test_a_preempted_job_is_queued_again_by_itself_and_loses_no_attempt(store, driver, make_spec, begin, clock):
    urgent = store.add_job(make_spec(**URGENT))[0].id

    store.attempts.preempt(driver.job_id, by=urgent)
    pausing = store.job(driver.job_id)
    assert (pausing.state, store.attempts.renew(driver.job_id, 1).control) == (JobState.PAUSING, Control.PAUSE)
    assert f"paused for job `{urgent}` of priority urgent" in pausing.reason

    driver.send(AttemptFinished(outcome="paused"))
    again = store.job(driver.job_id)
    assert (again.state, again.reason) == (JobState.QUEUED, pausing.reason)
    assert known(store)[driver.job_id].preempted_by == urgent

    for number in (2, 3):  # as many attempts as before, and no back-off
        assert known(store)[driver.job_id].not_before <= clock.now
        begin(driver.job_id)
        store.attempts.lose(driver.job_id, number, reason="lost")
    assert store.job(driver.job_id).state is JobState.FAILED


def test_a_job_that_grows_goes_on_by_itself_with_as_many_workers_as_its_attempt_was_given(
    store, driver, make_spec, begin
):
    store.attempts.regroup(driver.job_id)
    pausing = store.job(driver.job_id)
    assert (pausing.state, store.attempts.renew(driver.job_id, 1).control) == (JobState.PAUSING, Control.PAUSE)
    driver.send(AttemptFinished(outcome="paused", reason="paused by a user"))
    assert store.job(driver.job_id).state is JobState.QUEUED
    assert store.attempts.of_job(driver.job_id)[0].reason == pausing.reason

    waits = known(store)[driver.job_id]
    store.attempts.begin(driver.job_id, Start(waits, Size(cpus=1, workers=1), 1), [Node(cpus=9)])
    assert store.attempts.brief(driver.job_id, 2).num_workers == 1
    assert store.attempts.of_job(driver.job_id)[-1].workers == 1


@pytest.mark.parametrize(("at_a_time", "more"), [(1, 2), (2, 4), (4, None)])
def test_a_job_can_have_more_trials_at_a_time_until_all_that_are_left_go_side_by_side(
    store, make_spec, at_a_time, more
):
    job_id = store.add_job(make_spec(arms=[{"name": "a"}], seeds=[0, 1, 2, 3], workers={"count": 1}))[0].id
    waits = known(store)[job_id]
    store.attempts.begin(job_id, Start(waits, waits.shape.one * at_a_time, at_a_time), [Node(cpus=9)])

    (job,) = store.work.backlog().running

    assert (job.larger and job.larger.one.workers) == more


@pytest.mark.parametrize("when", ["pausing", "queued"])
def test_a_persons_pause_of_a_preempted_job_ends_by_a_person_alone(store, driver, make_spec, when):
    urgent = store.add_job(make_spec(**URGENT))[0].id
    store.attempts.preempt(driver.job_id, by=urgent)
    if when == "pausing":
        store.pause(driver.job_id)
        driver.send(AttemptFinished(outcome="paused"))
    else:
        driver.send(AttemptFinished(outcome="paused"))
        store.pause(driver.job_id)

    paused = store.job(driver.job_id)
    assert (paused.state, paused.reason) == (JobState.PAUSED, "paused by first")
    store.resume(driver.job_id)
    assert known(store)[driver.job_id].preempted_by is None


@pytest.mark.parametrize("by", [{"priority": "normal"}, {"priority": "low"}])
def test_nobody_is_paused_for_a_job_that_is_not_more_urgent(store, driver, make_spec, by):
    store.attempts.preempt(driver.job_id, by=store.add_job(make_spec(**by))[0].id)

    assert store.job(driver.job_id).state is JobState.RUNNING


def test_nobody_is_paused_for_a_job_that_waits_no_more(store, driver, make_spec):
    urgent = store.add_job(make_spec(**URGENT))[0].id
    store.cancel(urgent)

    store.attempts.preempt(driver.job_id, by=urgent)

    assert store.job(driver.job_id).state is JobState.RUNNING


def test_no_attempt_begins_beyond_the_room_or_a_quota(store, make_spec):
    first, second = (store.add_job(make_spec(name=name))[0].id for name in "ab")
    begin_in_room(store, first, cpus=3)

    with pytest.raises(IllegalTransition, match="another replica has started jobs"):
        begin_in_room(store, second, cpus=3)
    store.quotas.set(QuotaKind.OWNER, "first", QuotaLimits(workers=3), by=LOCAL)
    with pytest.raises(IllegalTransition):
        begin_in_room(store, second, cpus=8)

    store.quotas.remove(QuotaKind.OWNER, "first", by=LOCAL)
    assert begin_in_room(store, second, cpus=4).state is JobState.STARTING


@only("postgresql")
def test_of_two_replicas_that_start_jobs_at_once_none_exceeds_the_room(replicas, make_spec, pool):
    store, other = replicas
    ids = [store.add_job(make_spec(name=f"j{number}"))[0].id for number in range(6)]
    for replica in (store, other):
        assert set(known(replica)) == set(ids)
    waiting = known(store)

    def start(number):
        job = waiting[ids[number]]
        replica = (store, other)[number % 2]
        try:
            replica.attempts.begin(job.job_id, Start(job, job.shape.one, 1), [Node(cpus=5)])
        except IllegalTransition:
            return False
        return True

    begun = list(pool.map(start, range(6)))

    assert begun.count(True) == 2  # of two workers each


@only("postgresql")
def test_of_two_replicas_that_take_jobs_at_once_none_exceeds_what_a_quota_lets_wait(replicas, spec, pool):
    store, other = replicas
    store.quotas.set(QuotaKind.OWNER, "*", QuotaLimits(waiting=1), by=LOCAL)

    def submit(number):
        by = Principal(name=f"owner {number // 2}", role=Role.SUBMITTER, project="red")
        with suppress(QueueFull):
            return (store, other)[number % 2].add_job(spec, by=by)

    list(pool.map(submit, range(32)))

    assert sorted(job.owner for job in known(store).values()) == sorted(f"owner {number}" for number in range(16))


def test_what_a_project_used_counts_half_after_the_half_life(store, make_spec, clock, begin):
    def run(seconds, project):
        by = Principal(name="anna", role=Role.SUBMITTER, project=project)
        job_id = store.add_job(make_spec(), by=by)[0].id
        begin(job_id).start()
        clock.now += seconds
        store.cancel(job_id)
        store.attempts.lose(job_id, 1, reason="ended")

    run(3600.0, "red")
    before = store.work.backlog().recent["red"].cpus
    assert before == pytest.approx(2 * 3600 * 0.6931 / HALF_LIFE_S, rel=0.02)

    clock.now += HALF_LIFE_S
    assert store.work.backlog().recent["red"].cpus == pytest.approx(before / 2, rel=0.01)
    run(3600.0, "red")
    run(0.0, "blue")
    recent = store.work.backlog().recent
    assert recent["red"].cpus == pytest.approx(before * 1.5, rel=0.03)
    assert recent["blue"].cpus < 0.01 * before


@pytest.mark.parametrize(("kind", "name"), [(QuotaKind.OWNER, "*"), (QuotaKind.PROJECT, "red")])
def test_no_more_jobs_are_submitted_than_a_quota_lets_wait(store, spec, begin, pool, kind, name):
    anna, bert, carl = (
        Principal(name=owner, role=Role.SUBMITTER, project=project)
        for owner, project in (("anna", "red"), ("bert", "red"), ("carl", "blue"))
    )
    store.quotas.set(kind, name, QuotaLimits(waiting=3), by=LOCAL)

    def submit(_):
        with suppress(QueueFull):
            return store.add_job(spec, by=anna)[0].id

    ids = [job_id for job_id in pool.map(submit, range(8)) if job_id]
    whose = "owner anna" if kind is QuotaKind.OWNER else "project red"
    with pytest.raises(QueueFull, match=f"{whose} has as many waiting jobs as its quota allows, 3: try again"):
        store.add_job(spec, by=anna)
    assert len(ids) == 3 and store.add_job(spec, by=carl)
    if kind is QuotaKind.OWNER:
        store.add_job(spec, by=bert)

    store.cancel(ids[0], by=anna)
    begin(ids[1])
    made = [store.add_job(spec, by=anna, idempotency_key=key)[1] for key in "aaba"]
    assert made == [True, False, True, False]  # the last though the queue is full again


def test_a_quota_that_another_replica_sets_is_there_a_second_later_though_the_clock_was_set_back(store, clock):
    assert store.quotas.limits() == {}
    clock.now -= 3600

    QuotaBook(store._db).set(QuotaKind.OWNER, "*", QuotaLimits(running=1), by=LOCAL)
    clock.now += 1

    assert store.quotas.limits() == {(QuotaKind.OWNER, "*"): QuotaLimits(running=1)}


def test_quotas_are_set_listed_and_removed_and_each_is_in_the_audit_log(store):
    wanted = QuotaLimits(workers=4, gpus=1.5, waiting=9, weight=2.0)

    made = store.quotas.set(QuotaKind.PROJECT, "vision", wanted, by=LOCAL)
    store.quotas.set(QuotaKind.OWNER, "*", QuotaLimits(running=0), by=LOCAL)
    assert [(each.kind, each.name) for each in store.quotas.list()] == [("owner", "*"), ("project", "vision")]
    assert store.quotas.limits()[QuotaKind.PROJECT, "vision"] == wanted
    assert (made.set_by, made.workers) == ("first", 4)

    store.quotas.set(QuotaKind.PROJECT, "vision", QuotaLimits(), by=LOCAL)
    store.quotas.remove(QuotaKind.OWNER, "*", by=LOCAL)
    assert store.quotas.limits() == {(QuotaKind.PROJECT, "vision"): QuotaLimits()}
    with pytest.raises(NotFound, match="no quota of owner `\\*`"):
        store.quotas.remove(QuotaKind.OWNER, "*", by=LOCAL)

    entries = [(each.action, each.target) for each in store.keyring.audit(limit=4).entries]
    assert entries[::-1] == [
        ("setQuota", "project vision"),
        ("setQuota", "owner *"),
        ("setQuota", "project vision"),
        ("deleteQuota", "owner *"),
    ]


def test_a_new_priority_is_seen_and_the_submission_stays_what_it_was(store, make_spec, driver):
    spec = make_spec(name="kept")
    job_id = store.add_job(spec, idempotency_key="k")[0].id

    edited = store.edit(job_id, JobEdit(priority=Priority.URGENT))
    assert (edited.priority, edited.spec.priority) == (Priority.URGENT, Priority.URGENT)
    assert store.add_job(spec, idempotency_key="k")[0].id == job_id
    assert store.edit(driver.job_id, JobEdit(priority=Priority.LOW)).priority is Priority.LOW
    assert [each.priority for each in store.work.backlog().running] == [Priority.LOW]

    store.cancel(job_id)
    with pytest.raises(IllegalTransition, match="waits for nothing that a priority would change"):
        store.edit(job_id, JobEdit(priority=Priority.LOW))


def test_an_attempt_that_no_queue_has_started_takes_one_training_run(store, driver):
    (job,) = store.work.backlog().running

    assert job.size == Shape.of(store.job(driver.job_id).spec).one == Size(2.0, 0.0, 2)


@pytest.fixture
def two_seeds(store, make_spec, begin):
    """The driver of a running job of two trials, one at a time, of 100 seconds each."""
    driver = begin(store.add_job(make_spec(seeds=[0, 1], budget={"seconds": 100.0}))[0].id)
    driver.start()
    return driver


def end_trial(driver, number):
    trial_id = driver.store.trials(driver.job_id)[number].trial_id
    driver.send(finished(trial_id), stream=trial_id)


def test_a_job_that_resumes_asks_for_no_room_for_trials_that_have_finished(store, two_seeds):
    end_trial(two_seeds, 0)
    store.pause(two_seeds.job_id)
    two_seeds.send(AttemptFinished(outcome="paused"))
    store.resume(two_seeds.job_id)

    assert known(store)[two_seeds.job_id].shape.trials == 1


def test_an_extended_job_asks_for_room_for_the_trials_that_go_on(store, two_seeds):
    end_trial(two_seeds, 0)
    end_trial(two_seeds, 1)
    two_seeds.send(AttemptFinished(outcome="succeeded"))
    store.extend(two_seeds.job_id, Budget(seconds=200.0))

    assert known(store)[two_seeds.job_id].shape.trials == 2


def test_a_running_job_ends_by_the_time_that_its_unfinished_trials_take(store, two_seeds, clock):
    (before,) = store.work.backlog().running
    clock.now += 10.0
    (later,) = store.work.backlog().running
    end_trial(two_seeds, 0)
    (after,) = store.work.backlog().running

    assert later.ends_by == before.ends_by  # it stands still while nothing finishes
    assert after.ends_by == pytest.approx((before.ends_by + before.began_at) / 2 + 10.0, abs=1.0)


def test_a_running_attempt_takes_the_memory_and_the_kind_of_nodes_that_its_job_asks_for(store, spec):
    workers = {"count": 2, "gpus": 1, "memory_gb": 3, "accelerator": "A100"}
    job_id = store.add_job(JobSpec.model_validate(spec.model_dump() | {"workers": workers}))[0].id
    shape = store.work.backlog().waiting[0].shape
    store.attempts.begin(job_id, Start(store.work.backlog().waiting[0], shape.one, 1), [Node(cpus=4, gpus=4)])

    (running,) = store.work.backlog().running

    assert running.size == shape.one == Size(2.0, 2.0, 2, 6.0, "A100")
