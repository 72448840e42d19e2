"""Hanging drivers, failing databases and storage, a machine that sleeps: no job is held up or lost."""

import errno
import os
import shutil
import sys
import threading
import time

import pytest
from pydantic import ValidationError

from service.control import jobs, local_folder
from service.control.processes import wait_until
from service.control.queue.capacity import Node
from service.control.ray_cluster.ray_jobs import RayStatus
from service.control.reconciling import calls
from service.control.reconciling.assembly import assemble
from service.control.storage import Storage
from service.control.store import Store
from service.errors import Fenced, Unavailable
from service.job.priority import Priority
from service.job.spec import JobSpec
from service.job.states import RULES, JobState
from service.settings import Settings
from service.wire.jobs import JobView
from service.wire.records import AttemptBrief, AttemptFinished, Batch, Bill, Searched, TrialStarted
from tests.support.patience import PATIENCE_S
from tests.support.read_only import read_only
from tests.support.unreadable import JOB, PARTS, make_unreadable

SPEC = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}})
LEASE_S = 15.0


class HungNode:
    """A Ray, and the way to it, whose drivers run for ever; `refusal` is what it says to a stop."""

    python, refusal = sys.executable, ""

    def __init__(self):
        self.drivers, self.num_told = {}, 0

    def connect(self):
        return self

    def running(self):
        return self

    def adopt(self):
        return False

    def declared(self):
        return None

    def nodes(self):
        return (Node(cpus=8),)

    def submit(self, submission_id, *, entrypoint, env_vars, package=None):
        self.drivers[submission_id] = RayStatus.RUNNING

    def status(self, submission_id):
        return self.drivers[submission_id]

    def statuses(self):
        return self.drivers

    def stop(self, submission_id):
        self.num_told += 1
        if self.refusal:
            raise Unavailable(self.refusal)

    def log(self, submission_id, *, lines=None):
        return iter(())

    def reason(self, submission_id):
        return ""


@pytest.fixture
def now():
    return [1_800_000_000.0]


@pytest.fixture
def store(tmp_path, put_sqlite, now):
    settings = Settings(state_dir=tmp_path, lease_s=LEASE_S)
    put_sqlite(settings)
    store = Store.open(settings, clock=lambda: now[0])
    yield store
    store.close()


@pytest.fixture
def node():
    return HungNode()


@pytest.fixture
def reconciler(store, node, now):
    return assemble(store, store.settings, api_url="http://x", cluster=node, clock=lambda: now[0]).reconciler


@pytest.fixture
def tick(reconciler, now):
    def tick(after_s):
        now[0] += after_s
        reconciler.tick(now[0])

    return tick


@pytest.fixture
def running(store, tick):
    """A job whose driver has just reported."""
    job_id = store.add_job(SPEC)[0].id
    tick(1)
    start(store, job_id)
    return job_id


def start(store, job_id):
    started = TrialStarted(trial_id=store.trials(job_id)[0].trial_id, arm="tuned", seed=0, backend="gloo", device="cpu")
    store.attempts.ingest(job_id, 1, Batch(stream="driver", sequence=1, records=(started,)))


def rewrite(store, job_id, **parts):
    """Let the stored job have these parts, as a release with other rules may have left it."""

    def write(session):
        job = jobs.locked(session, job_id)
        job.spec = job.spec | parts

    store._db.write(write)


def test_a_job_that_this_release_would_refuse_goes_on_and_can_be_cancelled(store, tick, running):
    rewrite(store, running, sync={"kind": "local_sgd", "period": 8}, exchange={"kind": "auto"})
    with pytest.raises(ValidationError, match="auto"):
        JobSpec.model_validate(store.job(running).spec.model_dump(mode="json"))

    tick(1)
    assert AttemptBrief.model_validate_json(store.attempts.brief(running, 1).model_dump_json()).job_id == running
    assert JobView.model_validate_json(store.job(running).model_dump_json()).state is JobState.RUNNING
    assert store.cancel(running).state is JobState.CANCELLING


def test_a_job_that_this_release_cannot_read_holds_up_no_other(store, node, tick, running):
    waiting, other = (store.add_job(SPEC)[0].id for _ in range(2))
    for each in (running, waiting):
        rewrite(store, each, colour="red")

    tick(1)
    tick(1)

    assert store.job(other).state is JobState.STARTING
    assert any(other in driver for driver in node.drivers)
    assert state_of(store, waiting) == ("failed", "this release cannot read the job: colour")


@pytest.mark.parametrize("part", PARTS)
def test_a_field_that_this_release_does_not_know_fails_its_job_alone_wherever_it_is(store, tick, part):
    paused, running = (store.add_job(JOB)[0].id for _ in range(2))
    store.pause(paused)
    tick(1)
    start(store, running)
    queued, other = store.add_job(JOB)[0].id, store.add_job(SPEC)[0].id
    for each in (paused, running, queued):
        make_unreadable(store, each, part)

    tick(1)
    tick(1)

    assert store.job(other).state is JobState.STARTING
    assert state_of(store, queued) == ("failed", f"this release cannot read the job: {f'{part}.colour'.lstrip('.')}")
    assert [store.job(each).state for each in (paused, running)] == [JobState.PAUSED, JobState.RUNNING]


@pytest.mark.parametrize("part", PARTS)
def test_a_paused_job_that_cannot_be_read_is_given_up_in_time(store, tick, now, part):
    paused = store.add_job(JOB)[0].id
    store.pause(paused)
    make_unreadable(store, paused, part)
    now[0] += RULES[JobState.PAUSED].deadline_s
    other = store.add_job(SPEC)[0].id

    tick(1)

    assert (store.job(paused).state, store.job(other).state) == (JobState.FAILED, JobState.STARTING)


@pytest.mark.parametrize("part", PARTS)
def test_a_lost_driver_of_a_job_that_cannot_be_read_is_given_up(store, node, tick, part):
    job_id = store.add_job(JOB)[0].id
    tick(1)
    start(store, job_id)
    make_unreadable(store, job_id, part)

    node.drivers = dict.fromkeys(node.drivers, RayStatus.FAILED)
    tick(1)

    assert state_of(store, job_id)[0] == "queued"


def state_of(store, job_id):
    with store._db.reading() as session:
        job = jobs.locked(session, job_id)
        return job.state, job.reason


@pytest.mark.parametrize("refusal", ["", "the node does not answer"])
def test_a_silent_driver_that_does_not_end_loses_its_job_after_another_lease(store, node, tick, running, refusal):
    node.refusal = refusal

    tick(LEASE_S + 1)
    tick(LEASE_S - 1)
    assert (store.job(running).state, node.num_told) == (JobState.RUNNING, 2)
    for after_s in (2, 3):  # the second round, after the back-off, begins the next attempt
        tick(after_s)

    assert (store.job(running).state, store.job(running).attempt) == (JobState.STARTING, 2)
    with pytest.raises(Fenced):
        store.attempts.renew(running, 1)


def test_a_driver_that_does_not_end_is_cancelled_all_the_same(store, tick, running):
    store.cancel(running)

    for after_s in (31, LEASE_S + 1):  # the state's deadline, then the patience with the driver
        tick(after_s)

    assert store.job(running).state is JobState.CANCELLED


def test_leases_that_the_database_could_not_store_are_not_held_against_their_drivers(store, node, tick, running, now):
    now[0] += LEASE_S
    with read_only(store), pytest.raises(Unavailable):
        store.attempts.renew(running, 1)

    tick(1)
    assert node.num_told == 0
    tick(LEASE_S)

    assert node.num_told == 1  # the driver had a lease of time since


def test_a_machine_that_slept_in_a_round_gives_its_drivers_a_lease_to_report(
    store, node, reconciler, running, now, monkeypatch
):
    status = node.status
    with monkeypatch.context() as night:
        night.setattr(node, "status", lambda name: now.append(now.pop() + 3600) or status(name))
        reconciler.tick(now[0])
    rested(reconciler, now)
    reconciler.tick(now[0])
    assert node.num_told == 0

    reconciler.tick(now[0] + LEASE_S + 1)

    assert node.num_told == 1


def rested(reconciler, now):
    """Tell the reconciler of a rest that took as long as it should."""
    reconciler._uptime.note(now[0], time.monotonic())


def test_a_clock_that_was_set_forward_gives_queued_jobs_an_hour_to_begin(store, reconciler, tick, now):
    too_large = store.add_job(with_workers(9))[0].id
    tick(1)
    rested(reconciler, now)
    now[0] += RULES[JobState.QUEUED].deadline_s
    rested(reconciler, now)

    tick(3600)
    assert state_of(store, too_large)[0] == "queued"
    tick(1)

    assert state_of(store, too_large)[0] == "failed"


def unwritable(state_dir):
    """Put a file where the storage's folder should be."""
    results = state_dir / "results"
    shutil.rmtree(results)
    results.write_text("no folder")
    return results


def test_no_attempt_is_spent_on_a_storage_that_takes_no_files(store, tick, running, tmp_path):
    results = unwritable(tmp_path)
    store.attempts.lose(running, 1, reason="a worker failed: no space left on device")

    tick(3)
    waiting = store.job(running)
    results.unlink()
    tick(10)

    assert (waiting.state, waiting.attempt) == (JobState.QUEUED, 1)
    assert "WIRETUNE_STORAGE_URL" in waiting.reason
    assert (store.job(running).state, store.job(running).attempt) == (JobState.STARTING, 2)
    assert [f"file://{path}" for path in results.iterdir()] == [store.attempts.mark.url]


def refuse_files(_, monkeypatch):
    """Have a folder as a disk that is full, or read-only: it takes no file, and names that."""

    def refuse(top, parts, content):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.path.join(top, *parts))

    monkeypatch.setattr(local_folder, "write", refuse)


def unmark(state_dir, monkeypatch):
    """Let the folder, which takes no files, be without its mark, too."""
    for mark in (state_dir / "results").glob(".storage-*"):
        mark.unlink()
    refuse_files(state_dir, monkeypatch)


@pytest.mark.parametrize("fault", [lambda state_dir, _: unwritable(state_dir), refuse_files, unmark])
def test_a_job_is_not_changed_by_further_questions_to_a_storage_that_stays_away(
    store, tick, running, tmp_path, monkeypatch, fault
):
    fault(tmp_path, monkeypatch)
    store.attempts.lose(running, 1, reason="a worker failed: no space left on device")
    tick(3)
    waiting = store.job(running)

    for _ in range(3):
        tick(11)

    assert store.job(running) == waiting and "WIRETUNE_STORAGE_URL" in waiting.reason


@pytest.fixture
def silent(monkeypatch):
    """Ends the silence of a storage that does not answer."""
    ended = threading.Event()
    monkeypatch.setattr(Storage, "require_writable", lambda _: ended.wait(PATIENCE_S))
    monkeypatch.setattr(calls, "PATIENCE_S", 0.05)
    yield ended.set
    ended.set()


def test_a_storage_that_never_answers_holds_up_no_round_and_its_job_goes_on_once_it_does(
    store, node, tick, running, silent
):
    other = store.add_job(SPEC)[0].id
    tick(1)
    start(store, other)
    store.attempts.lose(running, 1, reason="a worker failed: no answer")
    tick(3)
    assert state_of(store, running)[0] == "queued" and "does not answer" in state_of(store, running)[1]

    node.drivers[store.attempts.one(other, 1).submission_id] = RayStatus.FAILED
    tick(1)
    assert state_of(store, other)[0] == "queued"

    silent()
    assert wait_until(lambda: tick(1) or state_of(store, running)[0] == "starting", timeout_s=PATIENCE_S)


def test_no_attempt_begins_on_an_answer_that_nobody_came_for_in_time(store, tick, running, node, silent, monkeypatch):
    store.attempts.lose(running, 1, reason="a worker failed: no answer")
    tick(3)
    asked = [each for each in threading.enumerate() if each.name == "wiretune-storage"]
    silent()
    for each in asked:
        each.join(PATIENCE_S)
    monkeypatch.setattr(Storage, "require_writable", lambda _: refuse("no space left on device"))
    monkeypatch.setattr(calls, "PATIENCE_S", PATIENCE_S)
    steady = time.monotonic  # no round has asked for the answer, as while Ray is away
    monkeypatch.setattr(time, "monotonic", lambda: steady() + 60)

    tick(60)

    assert state_of(store, running) == ("queued", "no space left on device")


def refuse(reason):
    raise Unavailable(reason)


def test_a_storage_is_asked_once_for_all_jobs_that_wait_for_it(store, tick, monkeypatch):
    asked = []

    def refuse(_):
        asked.append(1)
        raise Unavailable("no space left on device")

    jobs = [store.add_job(SPEC)[0].id for _ in range(3)]
    tick(1)
    for job_id in jobs:
        store.attempts.lose(job_id, 1, reason="a worker failed: no space left on device")
    monkeypatch.setattr(Storage, "require_writable", refuse)

    for num_asked, after_s in enumerate((3, 11, 11), start=1):
        tick(after_s)
        assert len(asked) == num_asked

    assert {state_of(store, job_id)[0] for job_id in jobs} == {"queued"}


class HttpError(Exception):
    """What some drivers of object stores raise: no OSError."""


@pytest.mark.parametrize("question", ["require_writable", "require_room", "mark_url"])
def test_a_question_that_fails_unforeseen_is_its_jobs_reason_and_leaves_the_others_their_turns(
    store, tick, running, monkeypatch, question
):
    def fail(*_, **__):
        raise HttpError("503 backend error")

    monkeypatch.setattr(Storage, "is_folder", property(lambda _: False))  # no first attempt asks
    monkeypatch.setattr(Storage, question, fail)
    store.attempts.lose(running, 1, reason="a worker failed: no answer")
    other = store.add_job(SPEC)[0].id

    tick(3)

    assert state_of(store, running) == ("queued", "the storage failed: HttpError: 503 backend error")
    assert state_of(store, other)[0] == "starting"


def test_a_clock_that_is_set_back_holds_up_no_job_that_the_storage_refused(store, tick, running, tmp_path):
    results = unwritable(tmp_path)
    store.attempts.lose(running, 1, reason="a worker failed: no space left on device")
    tick(3600)
    results.unlink()

    tick(-1800)

    assert state_of(store, running)[0] == "starting"


def test_a_job_whose_turn_fails_leaves_the_others_theirs(store, node, tick, running, monkeypatch):
    status, broken = node.status, store.attempts.one(running, 1).submission_id
    monkeypatch.setattr(node, "status", lambda name: {}[name] if name == broken else status(name))
    other = store.add_job(SPEC)[0].id

    tick(1)

    assert [state_of(store, each)[0] for each in (running, other)] == ["running", "starting"]


@pytest.fixture
def free(monkeypatch):
    """The bytes that the disk has free."""
    free = [2_000_000]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 0, free[0]))
    return free


@pytest.fixture
def kept(store, running, free):
    """A running job with a checkpoint of 3 MB, on a disk with 2 MB free."""
    keep_checkpoints(store, running)
    return running


def keep_checkpoints(store, job_id):
    """Let each trial of the job's first attempt leave a checkpoint of 3 MB."""
    storage = store.storage
    for number, trial in enumerate(store.trials(job_id)):
        url = f"{storage.attempt_url(job_id, 1)}/00000{number}-step-100"
        storage.write(f"{url}/shared.safetensors", bytes(3_000_000))
        resume = {"checkpoint": url}
        searched = Searched(trial_id=trial.trial_id, stage=0, step=0, probes=(), bill=Bill(), resume=resume)
        store.attempts.ingest(job_id, 1, Batch(stream=trial.trial_id, sequence=1, records=(searched,)))


def test_no_attempt_is_spent_on_a_disk_that_takes_a_file_and_not_a_checkpoint(store, tick, kept, free):
    store.attempts.lose(kept, 1, reason="a worker failed: no space left on device")

    tick(3)
    waiting = store.job(kept)
    free[0] = 3_000_000
    tick(10)

    assert (waiting.state, waiting.attempt) == (JobState.QUEUED, 1)
    assert "has less than the 0.003 GB free that the job needs for its next checkpoint" in waiting.reason
    assert (store.job(kept).state, store.job(kept).attempt) == (JobState.STARTING, 2)


def test_a_job_is_not_changed_by_what_a_disk_that_stays_full_has_free(store, tick, kept, free):
    store.attempts.lose(kept, 1, reason="a worker failed: no space left on device")
    tick(3)
    waiting = store.job(kept)

    for free[0] in (1_900_000, 1_000_000, 500_000):
        tick(11)

    assert store.job(kept) == waiting


def test_a_job_that_the_disk_has_no_room_for_holds_up_no_other_and_has_none_paused(store, tick, kept, now):
    store.attempts.lose(kept, 1, reason="a worker failed: no space left on device")
    large = SPEC.model_copy(update={"priority": Priority.LOW, "workers": SPEC.workers.model_copy(update={"count": 8})})
    other = store.add_job(large)[0].id

    tick(3)
    tick(1)
    assert state_of(store, other)[0] == "starting"
    assert "has less than the 0.003 GB free" in state_of(store, kept)[1]

    start(store, other)
    now[0] += 700
    store.attempts.renew(other, 1)
    tick(1)
    assert state_of(store, other)[0] == "running"
    assert "has less than the 0.003 GB free" in state_of(store, kept)[1]


def with_workers(count, **parts):
    return SPEC.model_copy(update={"workers": SPEC.workers.model_copy(update={"count": count}), **parts})


def test_a_disk_that_stays_full_has_no_room_of_the_cluster_kept_for_its_job(store, tick, kept, free):
    store.attempts.lose(kept, 1, reason="a worker failed: no space left on device")
    large = store.add_job(with_workers(7))[0].id
    tick(3)
    tick(1)
    start(store, large)
    for after_s in (10, 10):
        store.attempts.renew(large, 1)
        tick(after_s)

    small = store.add_job(with_workers(1))[0].id
    store.attempts.renew(large, 1)
    tick(1)
    assert state_of(store, small)[0] == "starting"
    assert "has less than the 0.003 GB free" in state_of(store, kept)[1]

    free[0] = 3_000_000
    tick(10)
    assert state_of(store, kept) == ("queued", "waits for room on the cluster")


def test_a_clock_that_was_set_back_gives_no_room_to_a_job_that_the_storage_refuses(store, tick, kept, now):
    def back_off(session):
        jobs.locked(session, kept).not_before = now[0] + 3600  # set before the clock was

    store.attempts.lose(kept, 1, reason="a worker failed: no space left on device")
    store._db.write(back_off)
    other = store.add_job(with_workers(8))[0].id

    tick(3)
    tick(1)

    assert state_of(store, other)[0] == "starting"
    assert "has less than the 0.003 GB free" in state_of(store, kept)[1]


def test_none_is_paused_for_trials_whose_checkpoints_the_disk_cannot_take_side_by_side(
    store, tick, free, now, monkeypatch
):
    asked, require_room = [], Storage.require_room

    def ask(self, *arguments, at_once):
        asked.append(at_once)
        require_room(self, *arguments, at_once=at_once)

    monkeypatch.setattr(Storage, "require_room", ask)
    free[0] = 4_000_000
    two, *low = (
        store.add_job(spec)[0].id
        for spec in (SPEC.model_copy(update={"seeds": (0, 1)}), *[with_workers(2, priority=Priority.LOW)] * 2)
    )
    tick(1)
    for each in (two, *low):
        start(store, each)
    keep_checkpoints(store, two)
    now[0] += 700
    for each in low:
        store.attempts.renew(each, 1)
    store.attempts.lose(two, 1, reason="a worker failed: no space left on device")
    store.add_job(with_workers(4, priority=Priority.URGENT))

    tick(3)
    assert [state_of(store, each)[0] for each in low] == ["running", "running"]
    assert "has less than the 0.006 GB free" in state_of(store, two)[1]
    assert asked == [2]

    free[0] = 6_000_000
    tick(10)
    assert [state_of(store, each)[0] for each in low] == ["pausing", "pausing"]
    assert asked == [2, 2]  # once to have its place again, which is answer enough for both that are paused


def test_a_job_that_was_paused_on_such_a_disk_goes_on(store, tick, kept):
    store.pause(kept)
    store.attempts.ingest(kept, 1, Batch(stream="driver", sequence=2, records=(AttemptFinished(outcome="paused"),)))
    store.resume(kept)

    tick(1)

    assert (store.job(kept).state, store.job(kept).attempt) == (JobState.STARTING, 2)
