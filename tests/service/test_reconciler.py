"""The reconciler brings a job from the queue to its end, whatever Ray does."""

import sys
import threading

import pytest

from service.control import attempts, jobs
from service.control.attempts import submission_id
from service.control.queue.capacity import Node
from service.control.ray_cluster.ray_jobs import RayStatus
from service.control.reconciling.assembly import assemble
from service.errors import NotFound, Unavailable
from service.job.spec import JobSpec
from service.job.states import RULES, JobState
from service.settings import Settings
from service.wire.records import AttemptFinished, Batch, TrialStarted
from tests.support.fake_ray import FakeCluster, FakeRay
from tests.support.patience import PATIENCE_S


@pytest.fixture
def cluster():
    return FakeCluster(FakeRay())


@pytest.fixture
def tick(store, settings, cluster, clock):
    """Run a round after so many seconds."""
    reconciler = assemble(store, settings, api_url="http://127.0.0.1:8470", cluster=cluster, clock=clock).reconciler

    def tick(after_s=1.0):
        clock.now += after_s
        reconciler.tick(clock.now)

    return tick


@pytest.fixture
def make_spec():
    def make(count=1):
        body = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}, "workers": {"count": count}}
        return JobSpec.model_validate(body)

    return make


@pytest.fixture
def add(store, make_spec):
    def add(count=1):
        return store.add_job(make_spec(count))[0].id

    return add


def report(store, job_id, number, sequence, *records):
    return store.attempts.ingest(job_id, number, Batch(stream="driver", sequence=sequence, records=records))


def start(store, job_id, number=1):
    trial_id = store.trials(job_id)[0].trial_id
    started = TrialStarted(trial_id=trial_id, arm="tuned", seed=0, backend="gloo", device="cpu")
    report(store, job_id, number, 1, started)


def test_an_attempt_whose_machine_leaves_before_its_workers_start_makes_room_for_one_with_fewer(store, cluster, tick):
    workers = {"count": 2, "min": 1, "patience_s": 5}
    body = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}, "workers": workers}
    job_id = store.add_job(JobSpec.model_validate(body))[0].id
    tick()

    cluster.ray.cpus = 1  # the other machine is gone, and Ray says so only now
    tick()
    tick(4)
    assert (cluster.ray.stopped, store.attempts.of_job(job_id)[-1].workers) == ([], 2)
    tick(2)
    tick()
    tick(5)

    assert cluster.ray.stopped == [store.attempts.one(job_id, 1).submission_id]
    first, second = store.attempts.of_job(job_id)
    assert "workers.patience_s" in first.reason
    assert (second.workers, store.job(job_id).state) == (1, JobState.STARTING)


def test_a_queued_job_is_submitted_with_what_its_driver_needs(store, settings, cluster, tick, add):
    job_id = add()

    tick()

    name = store.attempts.one(job_id, 1).submission_id
    environment = cluster.ray.environments[name]
    assert store.job(job_id).state is JobState.STARTING
    assert cluster.ray.entrypoints[name] == f"{sys.executable} -P -m service.cluster.entrypoint"
    assert environment["WIRETUNE_API_URL"] == "http://127.0.0.1:8470"
    assert (environment["WIRETUNE_JOB"], environment["WIRETUNE_ATTEMPT"]) == (job_id, "1")
    assert float(environment["WIRETUNE_MAX_SILENCE_S"]) == settings.max_silence_s
    assert store.attempts.check_token(job_id, 1, environment["WIRETUNE_TOKEN"])


def test_a_stored_job_that_asks_for_next_to_nothing_holds_up_no_other(store, tick, make_spec):
    workers = make_spec().workers.model_copy(update={"cpus": 1e-310})
    tiny = store.add_job(make_spec().model_copy(update={"workers": workers}))[0].id
    other = store.add_job(make_spec())[0].id

    tick()

    assert [store.job(each).state for each in (tiny, other)] == [JobState.STARTING] * 2


def test_jobs_that_have_room_are_begun_side_by_side_and_looked_at_so(store, cluster, tick, add, monkeypatch):
    jobs = [add(), add()]
    meeting = threading.Barrier(2, timeout=60)
    monkeypatch.setattr(cluster.ray, "statuses", dict)  # its list has none of them yet
    for name in ("submit", "status"):
        monkeypatch.setattr(cluster.ray, name, meet_before(getattr(cluster.ray, name), meeting))

    tick()
    tick()

    assert {store.job(job).state for job in jobs} == {JobState.STARTING}
    assert len(cluster.ray.jobs) == 2


def test_several_drivers_are_looked_at_in_one_call(store, cluster, tick, add, monkeypatch):
    jobs = [add(), add()]
    tick()
    monkeypatch.setattr(cluster.ray, "status", None)  # a call would fail
    cluster.ray.jobs[store.attempts.one(jobs[0], 1).submission_id] = RayStatus.FAILED
    tick()

    assert [store.attempts.one(job, 1).ended_at is None for job in jobs] == [False, True]


def meet_before(call, meeting):
    """Return `call` as one that waits until another is called too."""

    def met(*given, **named):
        meeting.wait()
        return call(*given, **named)

    return met


def test_a_job_that_reports_to_the_end_succeeds_and_the_next_one_begins(store, tick, add):
    first, second = add(count=2), add(count=2)
    tick()
    start(store, first)
    tick()
    assert store.job(second).state is JobState.QUEUED

    report(store, first, 1, 2, AttemptFinished(outcome="succeeded"))
    tick()

    assert store.job(first).state is JobState.SUCCEEDED
    assert store.job(second).state is JobState.STARTING


def test_a_crash_between_begin_and_submit_is_made_good(store, cluster, tick, add):
    job_id = add()
    store.attempts.begin(job_id)

    tick()

    assert list(cluster.ray.jobs) == [store.attempts.one(job_id, 1).submission_id]


def test_an_attempt_begun_again_after_a_restore_is_not_taken_for_the_one_that_ray_has_seen_end(
    store, cluster, tick, add
):
    job_id = add()
    earlier = {submission_id(job_id, 1): RayStatus.FAILED, f"wiretune-{job_id}-a1": RayStatus.STOPPED}
    cluster.ray.jobs |= earlier  # of a life that the restored database does not know

    tick()
    tick()

    assert (store.job(job_id).state, store.job(job_id).attempt) == (JobState.STARTING, 1)


def test_a_submission_whose_answer_was_lost_starts_one_driver(store, cluster, tick, add, monkeypatch):
    add()
    submit = cluster.ray.submit

    def lose_answer(*given, **named):
        submit(*given, **named)
        raise Unavailable("the connection was lost")

    with monkeypatch.context() as lost:
        lost.setattr(cluster.ray, "submit", lose_answer)
        lost.setattr(cluster.ray, "status", lambda _: RayStatus.MISSING)
        tick()
        tick()
    tick()

    assert len(cluster.ray.jobs) == 1


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_restarted_cluster_gets_the_attempt_again_only_if_nothing_of_it_was_heard(
    store, cluster, tick, add, is_heard
):
    job_id = add()
    tick()
    if is_heard:
        report(store, job_id, 1, 1)  # the driver is there, and its workers start

    cluster.ray.jobs.clear()
    tick()
    tick()

    assert list(cluster.ray.jobs) == [store.attempts.one(job_id, 2 if is_heard else 1).submission_id]


def test_a_job_that_fails_for_its_wait_says_what_it_waited_for(store, tick, add):
    job_id = add(count=9)
    tick()

    tick(RULES[JobState.QUEUED].deadline_s)

    assert store.job(job_id).state is JobState.FAILED
    assert store.job(job_id).reason.startswith("it waited in the queue for a week: the job asks for 9 workers")


def test_a_job_that_waited_while_the_service_was_off_begins(store, settings, cluster, clock, add):
    job_id = add()
    clock.now += RULES[JobState.QUEUED].deadline_s + 1

    assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock).reconciler.tick(clock.now)

    assert store.job(job_id).state is JobState.STARTING


def test_a_job_fails_for_its_wait_only_after_an_hour_in_which_ray_was_there(store, cluster, tick, add):
    job_id = add(count=9)
    cluster.ray.failure = "Ray is starting"
    tick(RULES[JobState.QUEUED].deadline_s + 1)
    tick(3601)
    cluster.ray.failure = None
    tick()
    tick(3599)
    assert store.job(job_id).state is JobState.QUEUED

    tick(2)

    assert store.job(job_id).state is JobState.FAILED


@pytest.mark.parametrize("act", ["work.explain", "work.fail_waiting", "attempts.one", "attempts.lose"])
def test_a_job_that_is_deleted_during_a_round_holds_up_no_other(store, cluster, tick, add, clock, monkeypatch, act):
    deleted = add(count=1 if "attempt" in act else 9)
    if act == "work.fail_waiting":
        tick()
        clock.now += RULES[JobState.QUEUED].deadline_s + 1
    if "attempt" in act:
        tick()
        cluster.ray.jobs[store.attempts.one(deleted, 1).submission_id] = RayStatus.FAILED
    book, _, name = act.partition(".")
    owner = getattr(store, book)
    other, call = add(), getattr(owner, name)

    def delete_first(job_id, *given, **named):
        if job_id == deleted:
            jobs.on_job(store._db, job_id, lambda session, job: session.delete(job))
        return call(job_id, *given, **named)

    monkeypatch.setattr(owner, name, delete_first)
    tick()

    with pytest.raises(NotFound):
        store.job(deleted)
    assert store.job(other).state is JobState.STARTING


def test_a_failed_driver_gets_further_attempts_and_then_fails_with_its_last_words(store, cluster, tick, add, settings):
    job_id = add()
    cluster.ray.output = "\n".join(f"line {number}" for number in range(20))
    for number in range(1, settings.max_attempts + 1):
        tick(60)
        assert store.job(job_id).attempt == number
        cluster.ray.jobs[store.attempts.one(job_id, number).submission_id] = RayStatus.FAILED
        tick()

    job = store.job(job_id)
    assert job.state is JobState.FAILED
    assert "line 19" in job.reason
    assert "line 14" not in job.reason


def test_a_driver_that_failed_before_it_printed_fails_with_rays_own_reason(store, cluster, tick, add):
    job_id = add()
    tick()
    token = store.attempts.token(job_id, 1)
    cluster.ray.message = f"Traceback\nruntime_env setup failed: no space left, {token}\n"
    cluster.ray.jobs[store.attempts.one(job_id, 1).submission_id] = RayStatus.FAILED
    tick()

    [lost, *_] = store.attempts.of_job(job_id)
    assert lost.reason == "its driver failed\nruntime_env setup failed: no space left, [token]"


def test_a_back_off_is_waited_out(store, cluster, tick, add):
    job_id = add()
    for number in (1, 2):
        tick()
        cluster.ray.jobs[store.attempts.one(job_id, number).submission_id] = RayStatus.FAILED
        tick()

    tick(0.5)
    assert store.job(job_id).attempt == 2

    tick(5)
    assert store.job(job_id).attempt == 3


def test_a_silent_driver_is_stopped_and_replaced(store, cluster, tick, add):
    job_id = add()
    tick(20)
    start(store, job_id)

    tick(16)
    assert cluster.ray.stopped == [store.attempts.one(job_id, 1).submission_id]

    tick()
    assert store.job(job_id).state is JobState.QUEUED


def test_after_its_own_start_the_service_waits_a_lease_before_it_judges(store, settings, cluster, clock, add):
    job_id = add()
    store.attempts.begin(job_id)
    cluster.ray.submit(store.attempts.one(job_id, 1).submission_id, entrypoint="", env_vars={})
    start(store, job_id)
    clock.now += 3600  # the service was down
    reconciler = assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock).reconciler

    clock.now += settings.lease_s - 1
    reconciler.tick(clock.now)
    assert store.job(job_id).state is JobState.RUNNING

    clock.now += 2
    reconciler.tick(clock.now)
    assert cluster.ray.stopped == [store.attempts.one(job_id, 1).submission_id]


def test_a_driver_without_a_first_report_is_given_up_with_advice(store, cluster, tick, add):
    job_id = add()
    tick()

    tick(301)
    tick()

    assert cluster.ray.stopped == [store.attempts.one(job_id, 1).submission_id]
    assert "check WIRETUNE_API_URL" in store.job(job_id).reason


def test_a_driver_that_reports_while_its_workers_start_has_their_time_too(store, tick, add, make_spec):
    job_id = add()
    tick(20)

    lived_s = 0
    while store.job(job_id).state is JobState.STARTING and lived_s < 2000:
        store.attempts.renew(job_id, 1)
        tick(10)
        lived_s += 10

    assert 0 < lived_s - RULES[JobState.STARTING].deadline_s - make_spec().workers.start_timeout_s <= 40
    assert RULES[JobState.STARTING].on_deadline in store.job(job_id).reason


@pytest.mark.parametrize("ray_address", [None, "http://head:8265"])
def test_an_overloaded_machine_is_named_where_its_driver_is_late(
    store, settings, cluster, clock, add, busy_machine, ray_address
):
    elsewhere = settings.model_copy(update={"ray_address": ray_address})
    reconciler = assemble(store, elsewhere, api_url="http://x", cluster=cluster, clock=clock).reconciler
    job_id = add()
    clock.now += 20
    reconciler.tick(clock.now)
    start(store, job_id)

    clock.now += 16
    reconciler.tick(clock.now)

    reason = store.job(job_id).reason
    assert ("the machine is overloaded, load 40 on 2 cores" in reason) is (ray_address is None)
    assert ("its machine or its network failed" in reason) is (ray_address is not None)


def test_a_cancelled_job_ends_when_its_driver_does(store, cluster, tick, add):
    job_id = add()
    tick()
    start(store, job_id)
    store.cancel(job_id)
    cluster.ray.jobs[store.attempts.one(job_id, 1).submission_id] = RayStatus.SUCCEEDED

    tick()

    job = store.job(job_id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled by first")


def test_a_driver_that_ignores_a_cancel_is_stopped_after_its_deadline(store, cluster, tick, add):
    job_id = add()
    tick()
    start(store, job_id)
    store.cancel(job_id)
    tick()
    assert cluster.ray.stopped == []

    tick(31)
    tick()

    assert cluster.ray.stopped == [store.attempts.one(job_id, 1).submission_id]
    assert store.job(job_id).state is JobState.CANCELLED


def test_without_ray_jobs_wait_and_say_why(store, cluster, tick, add):
    job_id = add()
    cluster.ray.failure = "Ray at http://ray:8265 does not answer"

    tick()
    waiting = store.job(job_id)
    cluster.ray.failure = None
    tick()

    assert (waiting.state, waiting.reason) == (JobState.QUEUED, "Ray at http://ray:8265 does not answer")
    assert (store.job(job_id).state, store.job(job_id).reason) == (JobState.STARTING, "")


def test_a_job_that_waits_says_that_ray_is_down_also_where_the_largest_cluster_is_declared(
    store, tmp_path, cluster, clock, add
):
    grows = Settings(state_dir=tmp_path, cluster_nodes='[{"cpus": 4, "count": 5}]')
    reconciler = assemble(store, grows, api_url="http://x", cluster=cluster, clock=clock).reconciler
    waits, goes = add(), add()
    store.attempts.begin(goes)
    cluster.ray.failure = "Ray at http://ray:8265 does not answer"

    reconciler.tick(clock.now)

    assert [store.job(each).reason for each in (waits, goes)] == [cluster.ray.failure] * 2
    assert store.job(waits).state is JobState.QUEUED
    assert b"wiretune_cluster_up 0.0" in store.telemetry.text()


def test_a_job_that_was_paused_says_by_whom_though_ray_was_away_meanwhile(store, cluster, tick, add):
    job_id = add()
    tick()
    start(store, job_id)
    store.pause(job_id)
    cluster.ray.failure = "away"
    tick()
    cluster.ray.failure = None
    cluster.ray.jobs[store.attempts.one(job_id, 1).submission_id] = RayStatus.FAILED
    tick()

    assert (store.job(job_id).state, store.job(job_id).reason) == (JobState.PAUSED, "paused by first")


def test_a_running_job_outlives_a_silent_ray_as_long_as_it_reports(store, cluster, tick, add):
    job_id = add()
    tick()
    start(store, job_id)
    cluster.ray.failure = "away"
    for sequence in range(2, 6):
        tick(10)
        report(store, job_id, 1, sequence)

    assert store.job(job_id).state is JobState.RUNNING

    cluster.ray.failure = None
    tick()
    assert store.job(job_id).reason == ""


def test_a_job_that_the_cluster_can_never_hold_says_so_and_lets_others_pass(store, tick, add):
    large, small = add(count=5), add(count=1)

    tick()

    assert "allowed: 1 to 2" in store.job(large).reason
    assert store.job(small).state is JobState.STARTING


def test_an_idle_cluster_is_told_how_long(cluster, tick, store, add):
    job_id = add()
    tick()
    start(store, job_id)
    report(store, job_id, 1, 2, AttemptFinished(outcome="succeeded"))

    tick(10)
    tick(20)

    assert cluster.idle == pytest.approx([10.0, 30.0], abs=0.1)


def test_what_does_not_fit_is_known_once_the_cluster_was_seen(store, settings, cluster, clock, add):
    reconciler = assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock).reconciler
    spec = store.job(add(count=5)).spec
    assert reconciler.conflicts(spec) == []

    reconciler.tick(clock.now)

    assert [problem.pointer for problem in reconciler.conflicts(spec)] == ["/workers/count"]


def test_an_idle_service_takes_over_an_earlier_ones_ray_while_that_has_a_log(cluster, tick, store, add):
    tick()
    assert cluster.num_adopted == 0

    job_id = add()
    tick()
    start(store, job_id)
    report(store, job_id, 1, 2, AttemptFinished(outcome="succeeded"))
    tick(20)

    assert cluster.num_adopted == 1


def test_the_first_job_can_be_refused_because_an_idle_cluster_is_looked_at(store, settings, cluster, clock, make_spec):
    reconciler = assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock).reconciler
    cluster.ray.failure = "Ray at http://ray:8265 does not answer"
    with pytest.raises(Unavailable, match="does not answer"):
        reconciler.tick(clock.now)
    assert reconciler.conflicts(make_spec(count=5)) == []

    cluster.ray.failure = None
    for after_s in (1, 5, 10, 11, 19):
        reconciler.tick(clock.now + after_s)

    assert cluster.num_connected == 2
    assert [problem.pointer for problem in reconciler.conflicts(make_spec(count=5))] == ["/workers/count"]


def test_an_idle_service_tells_operators_whether_ray_is_up_and_what_it_holds(store, settings, cluster, clock):
    reconciler = assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock).reconciler

    reconciler.tick(clock.now)
    up = store.telemetry.text()
    cluster.ray.failure = "Ray at http://ray:8265 does not answer"
    with pytest.raises(Unavailable):
        reconciler.tick(clock.now + 11)

    assert b"wiretune_cluster_up 1.0" in up and b'wiretune_cluster_resources{kind="cpus"} 2.0' in up
    assert b"wiretune_cluster_up 0.0" in store.telemetry.text()


def test_a_cluster_that_grew_while_idle_takes_what_it_could_not_hold_before(store, settings, cluster, clock, make_spec):
    reconciler = assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock).reconciler
    reconciler.tick(clock.now)
    assert reconciler.conflicts(make_spec(count=5)) != []

    cluster.ray.cpus = 8
    reconciler.tick(clock.now + 11)

    assert reconciler.conflicts(make_spec(count=5)) == []


def test_a_job_is_not_refused_for_a_node_that_has_been_away_for_less_than_an_hour(
    store, settings, cluster, clock, make_spec, add
):
    reconciler = assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock).reconciler
    reconciler.tick(clock.now)
    cluster.ray.cpus = 1
    reconciler.tick(clock.now + 11)

    assert reconciler.conflicts(make_spec(count=2)) == []
    assert "allowed: 1 to 2" in reconciler.conflicts(make_spec(count=3))[0].message
    job_id = add(count=2)
    reconciler.tick(clock.now + 12)
    assert "allowed: 1 to 1" in store.job(job_id).reason  # the queue counts on what is there

    reconciler.tick(clock.now + 3601)

    assert "allowed: 1 to 1" in reconciler.conflicts(make_spec(count=2))[0].message


def test_no_job_is_refused_before_a_node_that_trains_has_joined(store, settings, cluster, clock, make_spec):
    reconciler = assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock).reconciler
    cluster.ray.cpus = 0  # a head that leads alone
    reconciler.tick(clock.now)

    assert reconciler.conflicts(make_spec()) == []


def test_a_declared_cluster_is_not_started_by_looking_at_it(store, settings, cluster, clock):
    cluster.nodes = (Node(cpus=2),)

    assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock).reconciler.tick(clock.now)

    assert cluster.num_connected == 0


def test_stop_ends_the_thread_and_lets_go_of_ray(store, settings, cluster):
    assembly = assemble(store, settings, api_url="http://x", cluster=cluster)
    assembly.start(interval_s=0.01)

    assembly.stop()

    assert cluster.closed
    assert not any(thread.is_alive() for thread in assembly.loops._threads)


def test_logs_that_cannot_be_kept_do_not_keep_ray_alive(store, settings, cluster, monkeypatch):
    assembly = assemble(store, settings, api_url="http://x", cluster=cluster)

    def fail():
        raise RuntimeError("why")

    monkeypatch.setattr(assembly.logs, "keep_all", fail)
    with pytest.raises(RuntimeError, match="why"):
        assembly.stop()

    assert cluster.closed


def test_a_storage_that_is_silent_keeps_no_idle_ray_and_holds_up_no_round(store, settings, cluster, clock, monkeypatch):
    cluster.nodes = (Node(cpus=2),)
    assembly = assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock)
    answered, ran_out, cluster.spent = threading.Event(), [], True
    monkeypatch.setattr(assembly.logs, "keep_all", lambda: answered.wait(PATIENCE_S) or ran_out.append(1))
    monkeypatch.setattr("service.control.reconciling.reconciler._LOGS_S", 0.05)

    assembly.reconciler.tick(clock.now)

    answered.set()
    assert cluster.closed and not ran_out


def test_the_logs_of_an_idle_ray_are_kept_before_it_is_stopped(store, settings, cluster, clock, add):
    cluster.nodes = (Node(cpus=2),)
    assembly = assemble(store, settings, api_url="http://x", cluster=cluster, clock=clock)
    job_id = add()
    assembly.reconciler.tick(clock.now)
    start(store, job_id)
    report(store, job_id, 1, 2, AttemptFinished(outcome="succeeded"))
    cluster.ray.output, cluster.spent = "hello\n", True

    assembly.reconciler.tick(clock.now)

    assert cluster.closed and assembly.logs.read(job_id) == b"hello\n"


def test_the_last_words_of_a_lost_driver_do_not_show_its_token(store, tick, cluster, add):
    job_id = add()
    tick()
    cluster.ray.output = f"environ: {store.attempts.token(job_id, 1)}\n"
    cluster.ray.jobs[store.attempts.one(job_id, 1).submission_id] = RayStatus.FAILED

    tick()

    assert "environ: [token]" in store.job(job_id).reason


def test_a_driver_that_ignores_a_pause_is_stopped_and_its_room_is_free(store, cluster, tick, add):
    first, second = add(count=2), add(count=2)
    tick()
    start(store, first)
    store.pause(first)
    tick(301)
    assert cluster.ray.stopped == [store.attempts.one(first, 1).submission_id]

    tick()
    tick()

    assert (store.job(first).state, store.job(second).state) == (JobState.PAUSED, JobState.STARTING)


def test_a_paused_job_is_left_alone_and_keeps_its_place(store, tick, add, cluster):
    first, second = add(count=2), add(count=2)
    store.pause(first)
    cluster.ray.failure = "Ray is away"
    tick()
    assert store.job(first).reason == "paused by first"

    cluster.ray.failure = None
    store.resume(first)
    tick()

    assert (store.job(first).state, store.job(second).state) == (JobState.STARTING, JobState.QUEUED)


def test_a_job_whose_attempt_cannot_begin_says_why_and_begins_once_it_can(store, tick, add, monkeypatch):
    job_id = add()
    with monkeypatch.context() as fault:
        fault.setattr(attempts, "begin", lambda *_, **__: 1 / 0)
        tick()
    refused = store.job(job_id)

    tick()

    assert refused.state is JobState.QUEUED and "ZeroDivisionError: division by zero" in refused.reason
    assert (store.job(job_id).state, store.job(job_id).reason) == (JobState.STARTING, "")


def test_a_job_that_nobody_resumes_fails_with_the_way_back(store, tick, add):
    job_id = add()
    store.pause(job_id)

    tick(RULES[JobState.PAUSED].deadline_s + 1)

    job = store.job(job_id)
    assert job.state is JobState.FAILED and "`wiretune retry JOB`" in job.reason


def test_a_job_whose_pause_ended_while_the_service_was_off_has_a_day_and_starts_no_ray(
    store, settings, add, cluster, clock
):
    cluster.nodes = (Node(cpus=2),)  # as those of an embedded Ray, which are known without it
    job_id = add()
    store.pause(job_id)
    clock.now += RULES[JobState.PAUSED].deadline_s + 1
    reconciler = assemble(store, settings, api_url="", cluster=cluster, clock=clock).reconciler

    states = []
    for hours in (1, 23, 2):
        clock.now += hours * 3600
        reconciler.tick(clock.now)
        states.append(store.job(job_id).state)

    assert cluster.num_connected == 0
    assert states == [JobState.PAUSED, JobState.PAUSED, JobState.FAILED]


def test_a_pause_also_ends_on_a_service_that_is_off_every_night(store, settings, add, cluster, clock):
    job_id = add()
    store.pause(job_id)
    clock.now += RULES[JobState.PAUSED].deadline_s + 1
    states = []
    for _day in range(2):
        reconciler = assemble(store, settings, api_url="", cluster=cluster, clock=clock).reconciler
        for hours in (0, 8):
            clock.now += hours * 3600
            reconciler.tick(clock.now)
            states.append(store.job(job_id).state)
        clock.now += 16 * 3600

    assert states == [JobState.PAUSED, JobState.PAUSED, JobState.PAUSED, JobState.FAILED]


def test_a_job_that_is_paused_again_has_its_day_again(store, settings, add, cluster, clock):
    job_id = add()
    states = []
    for _ in range(2):
        store.pause(job_id)
        clock.now += RULES[JobState.PAUSED].deadline_s + 1
        reconciler = assemble(store, settings, api_url="", cluster=cluster, clock=clock).reconciler
        for hours in (0, 2):
            clock.now += hours * 3600
            reconciler.tick(clock.now)
        states.append(store.job(job_id).state)
        store.resume(job_id)

    assert states == [JobState.PAUSED, JobState.PAUSED]


OWN = JobSpec.model_validate({"workload": {"factory": "mine:build"}, "budget": {"steps": 1}})


def test_a_job_of_user_code_does_not_begin_where_that_is_not_allowed_any_more(store, cluster, tick, add):
    own, other = store.add_job(OWN)[0].id, add()

    tick()

    assert (store.job(own).state, store.job(other).state) == (JobState.FAILED, JobState.QUEUED)
    assert "WIRETUNE_USER_CODE" in store.job(own).reason
    tick()
    assert store.job(other).state is JobState.STARTING
    assert not any(own in name for name in cluster.ray.jobs)


def test_an_attempt_of_user_code_that_was_not_submitted_yet_never_is(store, cluster, tick):
    own = store.add_job(OWN)[0].id
    store.attempts.begin(own)  # by a service that allowed it, and ended then

    tick()
    tick()

    assert store.job(own).state is JobState.FAILED
    assert not cluster.ray.jobs
