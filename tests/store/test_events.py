"""Every change is announced once, in commit order, in the same transaction or not at all."""

import pytest

from service.control import events, jobs
from service.errors import IllegalTransition, OutOfSequence
from service.job.states import JobState
from service.wire.events import EventKind
from service.wire.records import AttemptFinished, Batch, Bill, Billed, Checkpointed, MetricPoints, ProbeDone
from tests.store.conftest import Group, only
from tests.store.test_replicas import wait_for_a_lock
from tests.support.patience import PATIENCE_S


def told(store, after=0, **filters):
    return [(event.kind.value, event.data) for event in store.events(after, **filters).events]


def points(trial_id, name="loss", steps=(0, 1), values=None):
    seconds = tuple(float(step) for step in steps)
    values = values or tuple(1.0 / (1 + step) for step in steps)
    return MetricPoints(trial_id=trial_id, name=name, steps=tuple(steps), seconds=seconds, values=values)


def probe(trial_id):
    return ProbeDone(
        trial_id=trial_id,
        stage=0,
        probe_id="0.0",
        learning_rate=0.1,
        level=None,
        origin="wide",
        num_steps=5,
        seconds=0.1,
        bytes_sent=10,
        density=None,
        loss=1.5,
    )


def test_a_job_is_told_from_submission_to_its_end(store, driver):
    trial = driver.trial_id
    driver.send(probe(trial), stream=trial)
    driver.decide(0, first_step=0)
    driver.send(points(trial), stream=trial)
    kept = Checkpointed(trial_id=trial, stage=0, step=1, bill=Bill(), resume={})
    driver.send(kept, stream=trial)
    driver.close(0, step=2, num_steps=2, bill=Bill(steps=2), resume={})
    driver.send(AttemptFinished(outcome="succeeded"))

    found = told(store)

    assert [kind for kind, _ in found] == [
        *("job", "job", "job", "trial_started", "probe", "stage_decided", "progress", "checkpoint", "stage_closed"),
        "job",
    ]
    assert [data["state"] for kind, data in found if kind == "job"] == ["queued", "starting", "running", "succeeded"]
    assert found[6][1] == {
        "trial_id": trial,
        "first_step": 0,
        "step": 1,
        "seconds": 1.0,
        "learning_rate": 0.1,
        "level": None,
        "loss": 0.5,
        "validation_loss": None,
        "bytes_sent": 0,
    }


def test_all_progress_of_a_batch_is_one_event(store, driver):
    trial, before = driver.trial_id, store.newest_event()
    driver.send(
        points(trial, steps=(4, 5)),
        points(trial, "validation_loss", steps=(3,), values=(0.7,)),
        Billed(trial_id=trial, bill=Bill(bytes_sent=9)),
    )

    [(_, data)] = told(store, before)

    assert {name: data[name] for name in ("first_step", "step", "loss", "validation_loss", "bytes_sent")} == {
        "first_step": 3,
        "step": 5,
        "loss": 1 / 6,
        "validation_loss": 0.7,
        "bytes_sent": 9,
    }


def test_a_batch_that_comes_twice_is_told_once(store, driver):
    batch = Batch(stream="driver", sequence=2, records=(points(driver.trial_id),))
    store.attempts.ingest(driver.job_id, 1, batch)
    before = store.newest_event()

    store.attempts.ingest(driver.job_id, 1, batch)

    assert told(store, before) == []


def test_a_refused_write_is_not_told_and_its_neighbours_are(store, driver, pool):
    before = store.newest_event()

    def refused(session):
        jobs.explain(jobs.locked(session, driver.job_id), "said in vain")
        raise OutOfSequence("a gap")

    group = Group(store, pool)
    refusal = group.add(refused)
    group.add(lambda session: jobs.explain(jobs.locked(session, driver.job_id), "said"))
    group.release()

    assert isinstance(refusal.exception(PATIENCE_S), OutOfSequence)
    store.job(driver.job_id)
    store.attempts.renew(driver.job_id, 1)  # behind the group
    assert [data["reason"] for _, data in told(store, before)] == ["said"]


def test_a_verb_that_the_state_does_not_allow_is_not_told(store, job_in):
    job_id = job_in(JobState.SUCCEEDED)
    before = store.newest_event()

    with pytest.raises(IllegalTransition):
        store.pause(job_id)

    assert told(store, before) == []


def test_pages_lead_through_all_events_and_a_filter_skips_the_others(store, spec):
    ids = [store.add_job(spec)[0].id for _ in range(5)]
    store.cancel(ids[0])

    seen, cursor = [], 0
    while (page := store.events(cursor, limit=2)).events:
        seen += page.events
        cursor = page.next_after

    assert [event.job_id for event in seen] == [*ids, ids[0]]
    assert [event.id for event in store.events(0, job_id=ids[0]).events] == [seen[0].id, seen[-1].id]
    assert store.events(0, job_id=ids[1]).next_after == seen[-1].id  # nothing before is looked at again
    assert store.events(0, kinds=[EventKind.PROBE]).events == ()


def test_a_reader_of_pages_from_another_database_begins_with_the_oldest_event_that_is_left(store, spec):
    for _ in range(3):
        store.add_job(spec)

    first, second, third = [event.id for event in store.events(0).events]

    page = store.events(999_999, limit=2)  # an older backup was restored

    assert (page.gap, [event.id for event in page.events], page.next_after) == (True, [first, second], second)
    following = store.events(page.next_after)
    assert (following.gap, [event.id for event in following.events]) == (False, [third])


def report_steps(driver, count):
    for step in range(count):
        driver.send(points(driver.trial_id, steps=(step,)))


def test_events_that_are_gone_are_a_gap_and_ids_are_never_given_again(store, driver, spec):
    report_steps(driver, 12)
    newest, num_events = store.newest_event(), len(store.events(0).events)

    store.expiry.prune_events(kept=num_events - 2)
    assert len(store.events(0).events) == num_events  # not yet a tenth more than may stay
    store.expiry.prune_events(kept=5)

    assert [event.id for event in store.events(newest - 6).events] == list(range(newest - 4, newest + 1))
    assert store.events(newest - 6).gap
    assert not store.events(newest - 5).gap
    assert not store.events(newest).gap
    assert store.events(newest + 1).gap  # of another database, say

    store.expiry.prune_events(kept=-100)
    store.add_job(spec)
    assert store.newest_event() > newest


def test_what_timelines_are_drawn_from_outlives_other_events_and_who_reads_it_alone_finds_no_gap(store, driver):
    drawn = [EventKind.JOB, EventKind.REPAIR]
    driver.send(Billed(trial_id=driver.trial_id, bill=Bill(repairs=1, seconds_training=3.0)))
    before = told(store, kinds=drawn)
    for _ in range(2):  # what the second deletes leaves its id, and not that of the first
        report_steps(driver, 12)
        store.expiry.prune_events(kept=3)

    oldest, newest = store.events(0).events[0].id, store.newest_event()
    assert [kind for kind, _ in before] == ["job", "job", "job", "repair"]
    assert told(store, kinds=drawn) == told(store)[:-3] == before
    assert [store.events(after).gap for after in (oldest, newest - 4, newest - 3)] == [True, True, False]
    assert [store.events(after, kinds=drawn).gap for after in (oldest, newest, newest + 1)] == [False, False, True]


def test_the_bell_rings_for_what_is_told_alone(store, driver):
    before = store.bell.num_rings

    store.attempts.renew(driver.job_id, 1)
    assert store.bell.num_rings == before
    store.pause(driver.job_id)
    assert store.bell.num_rings == before + 1


@only("postgresql")
def test_an_event_never_appears_behind_a_later_one_of_another_replica(replicas, clock, spec, pool):
    store, other = replicas
    job_id = store.add_job(spec)[0].id
    before = store.newest_event()
    with other._db._writer._sessions.begin() as session:  # it has its id, and commits late
        jobs.explain(jobs.locked(session, job_id), "first")
        events.store(session, now=clock())
        second = pool.submit(store.add_job, spec)
        wait_for_a_lock(store)
        assert store.events(before).events == ()

    assert second.result(PATIENCE_S)
    found = store.events(before).events
    assert [event.data["reason"] for event in found] == ["first", ""]


@only("postgresql")
def test_a_reader_of_two_busy_replicas_sees_every_event_once(replicas, spec, pool):
    store, other = replicas
    num_jobs = 60
    writing = [pool.submit(lambda r=r: [r.add_job(spec) for _ in range(num_jobs // 4)]) for r in (store, other) * 2]

    seen, cursor = [], 0
    while not all(each.done() for each in writing) or store.newest_event() > cursor:
        page = store.events(cursor, limit=7)
        seen += [event.job_id for event in page.events]
        cursor = page.next_after

    assert [each.exception(PATIENCE_S) for each in writing] == [None] * 4
    assert len(seen) == len(set(seen)) == num_jobs
