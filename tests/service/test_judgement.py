"""The action on a job follows from its row and from Ray alone."""

import pytest

from service.cluster import trial_checkpoints
from service.control.ray_cluster.ray_jobs import RayStatus
from service.control.reconciling.judgement import Action, judge
from service.control.work import Work
from service.job.states import ACTIVE, RULES, JobState

NOW = 1000.0
S, R = JobState, RayStatus
ENDED = [R.STOPPED, R.SUCCEEDED, R.FAILED]
ALIVE = [R.PENDING, R.RUNNING]


def work(state, *, job_id="job-1", count=1, not_before=0.0, deadline=None, lease_expires=NOW + 10, is_heard=False):
    body = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}, "workers": {"count": count}}
    return Work(
        project="default",
        job_id=job_id,
        state=state,
        reason="",
        stored=body,
        attempt=1,
        submission_id="wiretune-job-1-a1",
        not_before=not_before,
        deadline=deadline,
        lease_expires=lease_expires,
        is_heard=is_heard,
    )


def action(work, status, *, leases_count=True):
    return judge(work, status, now=NOW, leases_count=leases_count).action


@pytest.mark.parametrize("status", ALIVE)
@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_a_driver_that_reports_in_time_is_left_alone(state, status):
    assert action(work(state, deadline=NOW + 1), status) is Action.WAIT


@pytest.mark.parametrize("status", ENDED)
@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_an_attempt_whose_driver_ended_is_lost_with_a_reason(state, status):
    verdict = judge(work(state), status, now=NOW, leases_count=True)

    assert verdict.action is Action.LOSE
    assert "driver" in verdict.reason or "Ray Job" in verdict.reason


def test_a_driver_that_never_reached_ray_is_submitted_again():
    assert action(work(S.STARTING), R.MISSING) is Action.SUBMIT


def test_an_attempt_that_has_reported_is_never_given_a_second_driver():
    verdict = judge(work(S.STARTING, is_heard=True), R.MISSING, now=NOW, leases_count=True)

    assert (verdict.action, "cluster was restarted" in verdict.reason) == (Action.LOSE, True)


@pytest.mark.parametrize("state", sorted(ACTIVE - {S.STARTING}))
def test_a_driver_that_ray_forgot_is_lost(state):
    assert action(work(state), R.MISSING) is Action.LOSE


@pytest.mark.parametrize("status", ALIVE)
@pytest.mark.parametrize("state", [S.RUNNING, S.PAUSING, S.STOPPING])
def test_a_silent_driver_is_stopped(status, state):
    verdict = judge(work(state, lease_expires=NOW - 1), status, now=NOW, leases_count=True)

    assert verdict.action is Action.STOP
    assert "lease" in verdict.reason


def test_no_lease_is_judged_before_the_service_was_up_for_one():
    assert action(work(S.RUNNING, lease_expires=NOW - 1), R.RUNNING, leases_count=False) is Action.WAIT


@pytest.mark.parametrize("state", sorted(ACTIVE - {S.RUNNING}))
def test_no_deadline_is_judged_before_the_service_was_up_for_a_lease(state):
    overdue = work(state, deadline=NOW - 3600, lease_expires=NOW - 1)

    assert action(overdue, R.RUNNING, leases_count=False) is Action.WAIT
    assert action(overdue, R.RUNNING) is Action.STOP


def test_a_starting_driver_has_until_its_deadline_not_its_lease():
    assert action(work(S.STARTING, lease_expires=NOW - 1, deadline=NOW + 1), R.PENDING) is Action.WAIT


@pytest.mark.parametrize("state", sorted(ACTIVE - {S.RUNNING}))
def test_a_driver_past_its_deadline_is_stopped_for_the_tables_reason(state):
    workers = work(state).spec.workers
    closing_s = 3 * workers.reply_timeout_s + trial_checkpoints.UPLOAD_S
    longer_s = {S.STARTING: workers.start_timeout_s, S.PAUSING: closing_s, S.STOPPING: closing_s}.get(state, 0.0)
    early, late = (
        judge(work(state, deadline=NOW - longer_s + more), R.RUNNING, now=NOW, leases_count=True) for more in (1, -1)
    )

    assert early.action is Action.WAIT
    assert (late.action, late.reason) == (Action.STOP, RULES[state].on_deadline)


def test_a_driver_stopped_past_its_deadline_is_lost_for_the_same_reason():
    verdict = judge(work(S.PAUSING, deadline=NOW - 10_000), R.STOPPED, now=NOW, leases_count=True)

    assert (verdict.action, verdict.reason) == (Action.LOSE, RULES[S.PAUSING].on_deadline)


@pytest.mark.parametrize(("lease_expires", "action"), [(NOW - 1, Action.STOP), (NOW + 10, Action.WAIT)])
def test_only_a_driver_that_was_never_heard_is_given_up_before_its_workers_time_is_over(lease_expires, action):
    starting = work(S.STARTING, deadline=NOW - 1, lease_expires=lease_expires)

    verdict = judge(starting, R.RUNNING, now=NOW, leases_count=True)

    assert verdict.action is action and ("WIRETUNE_API_URL" in verdict.reason) is (action is Action.STOP)


def test_a_starting_driver_without_room_for_its_workers_is_stopped_after_their_patience():
    starting = work(S.STARTING, deadline=NOW + 900)
    patience_s = starting.spec.workers.patience_s

    early, late = (
        judge(starting, R.RUNNING, now=NOW, leases_count=True, no_room_s=patience_s + more) for more in (-1, 1)
    )

    assert early.action is Action.WAIT
    assert late.action is Action.STOP and "workers.patience_s" in late.reason
    running = judge(work(S.RUNNING), R.RUNNING, now=NOW, leases_count=True, no_room_s=patience_s + 1)
    assert running.action is Action.WAIT  # its workers find that out


@pytest.mark.parametrize("late", [{"lease_expires": NOW - 1}, {"deadline": NOW - 10_000}])
def test_an_overloaded_machine_is_the_cause_of_what_is_late(late):
    verdict = judge(
        work(S.PAUSING, **late), R.RUNNING, now=NOW, leases_count=True, overload="the machine is overloaded, load 40"
    )

    assert verdict.reason.endswith("the machine is overloaded, load 40") and "network" not in verdict.reason


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (work(S.RUNNING), Action.WAIT),
        (work(S.RUNNING, lease_expires=NOW - 1), Action.LOSE),
        (work(S.CANCELLING, lease_expires=NOW - 1, deadline=NOW + 1), Action.WAIT),
        (work(S.CANCELLING, lease_expires=NOW - 1, deadline=NOW - 1), Action.LOSE),
        (work(S.STARTING, lease_expires=NOW + 1, deadline=NOW - 1), Action.WAIT),
    ],
)
def test_without_ray_only_silence_and_deadlines_decide(job, expected):
    assert action(job, R.UNREACHABLE) is expected
