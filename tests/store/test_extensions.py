"""Extensions: nothing is lost before one begins, and what waits can be taken back."""

import pytest
from sqlalchemy import select

from search.config import Budget
from search.past_jobs.prior import PastSearch, Prior
from search.types import Allowance
from service.control import attempts, jobs
from service.control.access.rules import Principal
from service.control.models import JobRow, TrialRow
from service.control.queue.capacity import Shape
from service.control.store import Store
from service.errors import CheckpointGone, IllegalTransition, InvalidJob
from service.job.states import JobState, Verb
from service.wire.access import Role
from service.wire.events import EventKind
from service.wire.jobs import JobEdit
from service.wire.records import (
    AttemptFinished,
    Bill,
    Checkpointed,
    MetricPoints,
    RungReached,
    TrialFailed,
    TrialStarted,
)
from service.wire.steering import SteerRequest
from tests.store.conftest import only
from tests.support.decisions import decision
from tests.support.reported import finished

pytestmark = only("sqlite")
OLGA = Principal(name="olga", role=Role.OPERATOR, project="another")
LARGER = Budget(steps=200)


def train(driver, *, steps, steady):
    """Train a stage up to the end of the budget, whose rate followed that end from step `steady` on."""
    driver.decide(0, first_step=0, decision=decision(0).model_copy(update={"commit_until": Allowance(steps=100)}))
    at = tuple(range(steps))
    values = {"steps": at, "seconds": tuple(map(float, at)), "values": tuple(1.0 / (step + 1) for step in at)}
    driver.send(MetricPoints(trial_id=driver.trial_id, name="loss", **values), stream=driver.trial_id)
    keep(driver, steady, is_steady=True)
    driver.close(0, step=steps, num_steps=steps, bill=_bill(steps), resume={"at": steps})


def keep(driver, step, *, is_steady=False):
    record = Checkpointed(
        trial_id=driver.trial_id, stage=0, step=step, bill=_bill(step), resume={"at": step}, steady=is_steady
    )
    driver.send(record, stream=driver.trial_id)


def end(driver, *, steps, **changes):
    driver.send(finished(driver.trial_id, bill=_bill(steps), **changes), stream=driver.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))


def _bill(steps):
    return Bill(steps=steps, seconds_training=float(steps))


@pytest.fixture
def done(driver):
    """The driver of a job that has spent its budget of 100 steps, in a commit that can go on from step 60."""
    train(driver, steps=100, steady=60)
    end(driver, steps=100)
    return driver


def shown(store, job_id):
    """Return what users see of a job's result."""
    [listed] = store.jobs(with_progress=True).jobs
    return (
        *(listed.result, listed.best_validation_loss, listed.progress.losses, listed.progress.num_finished),
        *(store.trials(job_id), store.stages(job_id), store.series(job_id, "loss"), store.schedules(job_id)[0].entries),
        [each.model_dump(exclude={"searching_budget"}) for each in store.report(job_id).trials],  # which is of the next
    )


def test_a_job_shows_its_result_until_its_extension_begins(store, done, begin):
    before = shown(store, done.job_id)

    extended = store.extend(done.job_id, LARGER)

    assert (extended.state, extended.spec.budget) == (JobState.QUEUED, LARGER)
    assert shown(store, done.job_id) == before
    assert store.snapshot(done.job_id).trials[0].outcome == "completed"
    assert store.jobs(with_progress=True).jobs[0].progress.seconds_left is None

    begin(done.job_id)

    [trial], [stage] = store.trials(done.job_id), store.stages(done.job_id)
    assert (trial.outcome, trial.step, stage.closed) == (None, 60, False)
    assert store.series(done.job_id, "loss")[0].steps == tuple(range(60))
    assert store.jobs().jobs[0].result is None


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("verb", ["cancel", "stop"])
def test_an_extension_that_is_cancelled_before_it_begins_leaves_the_job_as_it_was(store, done, verb, is_paused):
    before, result = store.job(done.job_id), shown(store, done.job_id)
    store.extend(done.job_id, LARGER, workers=3)
    if is_paused:
        store.pause(done.job_id)
        store.resume(done.job_id, workers=1)
        store.pause(done.job_id)

    after = getattr(store, verb)(done.job_id, by=OLGA)

    assert after.model_dump(exclude={"version"}) == before.model_dump(exclude={"version"})
    told = store.events(0, job_id=done.job_id, kinds=[EventKind.JOB]).events[-1]
    assert told.data["reason"] == f"its extension was {'cancelled' if verb == 'cancel' else 'stopped'} by olga"
    assert shown(store, done.job_id) == result


@pytest.fixture
def stopped(store, driver):
    """The archived view of a job that Olga stopped early."""
    train(driver, steps=40, steady=40)
    store.stop(driver.job_id, by=OLGA)
    end(driver, steps=40, stopped=True)
    return store.edit(driver.job_id, JobEdit(archived=True))


def test_a_job_whose_extension_is_taken_back_is_archived_and_stopped_by_whom_it_was(store, stopped):
    extended = store.extend(stopped.id, LARGER)
    after = store.cancel(stopped.id)

    assert (stopped.archived, stopped.reason, extended.archived) == (True, "stopped early by olga", False)
    assert after.model_dump(exclude={"version"}) == stopped.model_dump(exclude={"version"})


def test_an_extension_that_the_release_before_has_noted_is_taken_back(store, stopped):
    def forget(_, job):
        later = ("archived", "reason", "seeds", "sweep", "reopens")
        job.before_extension = {name: had for name, had in job.before_extension.items() if name not in later}

    store.extend(stopped.id, LARGER)
    jobs.on_job(store._db, stopped.id, forget)
    after = store.cancel(stopped.id, by=OLGA)

    assert (after.state, after.spec.budget) == (JobState.SUCCEEDED, stopped.spec.budget)
    assert (after.archived, after.reason) == (False, "its extension was cancelled by olga")


def test_an_extension_outlives_a_pause_and_a_restart_of_the_service(store, done, settings, clock):
    store.extend(done.job_id, LARGER)
    store.pause(done.job_id)
    store.close()

    again = Store.open(settings, clock=clock)
    again.resume(done.job_id)
    number = again.attempts.begin(done.job_id).attempt
    brief = again.attempts.brief(done.job_id, number)
    again.close()

    [point] = brief.trials
    assert (point.finished, point.resume, brief.spec.budget) == (False, {"at": 60}, LARGER)


def test_an_extension_begins_once_and_a_later_attempt_goes_on_from_where_it_got_to(store, done, begin):
    store.extend(done.job_id, LARGER)
    second = begin(done.job_id)
    second.start()
    keep(second, 150)
    store.pause(done.job_id)
    second.send(AttemptFinished(outcome="paused"))
    store.resume(done.job_id)

    begin(done.job_id)

    assert store.attempts.brief(done.job_id, 3).trials[0].resume == {"at": 150}
    assert store.cancel(done.job_id).state is JobState.CANCELLING


def test_a_job_is_extended_further_once_its_extension_is_taken_back(store, done, begin):
    store.extend(done.job_id, LARGER)
    with pytest.raises(IllegalTransition, match="is queued: `extend` is for one that is succeeded"):
        store.extend(done.job_id, Budget(steps=300))

    store.cancel(done.job_id)
    store.extend(done.job_id, Budget(steps=300))
    begin(done.job_id)

    assert store.attempts.brief(done.job_id, 2).spec.budget == Budget(steps=300)
    with store._db.reading() as session:
        stage = attempts.last_resumable(session, done.trial_id)
        assert stage.decision["commit_until"]["steps"] == 300  # it was 100, the end of the first budget


@pytest.mark.parametrize("verb", ["begin", "cancel"])
def test_a_job_that_the_release_before_has_extended_goes_on_or_is_cancelled_as_there(store, done, begin, verb):
    def extend(session):
        job = jobs.locked(session, done.job_id)
        attempts.reopen(session, session.get_one(TrialRow, done.trial_id), before=Budget(steps=100), budget=LARGER)
        job.spec = {**job.spec, "budget": LARGER.model_dump(mode="json")}
        jobs.transition(job, JobState.QUEUED, now=store._db.now(), reason="extended by olga")

    store._db.write(extend)
    if verb == "cancel":
        assert store.cancel(done.job_id).state is JobState.CANCELLED
        return
    begin(done.job_id)
    [trial] = store.trials(done.job_id)
    assert (trial.outcome, trial.step) == (None, 60)
    assert store.attempts.brief(done.job_id, 2).trials[0].resume == {"at": 60}


def test_a_stopped_job_whose_extension_is_taken_back_may_still_get_the_budget_that_it_had(store, driver):
    train(driver, steps=40, steady=40)
    store.stop(driver.job_id)
    end(driver, steps=40, stopped=True)

    for _ in range(2):
        assert store.extend(driver.job_id, Budget(steps=100)).state is JobState.QUEUED
        store.cancel(driver.job_id)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PAUSED])
def test_an_extension_that_waits_for_too_long_costs_no_result(store, done, state):
    before = shown(store, done.job_id)
    store.extend(done.job_id, LARGER)
    [seen] = store.work.backlog().waiting
    deadline = seen.deadline
    if state is JobState.PAUSED:
        store.pause(done.job_id)
        with store._db.reading() as session:
            deadline = session.get_one(JobRow, done.job_id).deadline

    job = store.work.fail_waiting(done.job_id, state=state, deadline=deadline, reason="it waited for long")

    told = store.events(0, job_id=done.job_id, kinds=[EventKind.JOB]).events[-1]
    assert told.data["reason"] == "its extension did not begin: it waited for long"
    assert (job.state, job.reason) == (JobState.SUCCEEDED, "")
    assert (job.spec.budget, shown(store, done.job_id)) == (Budget(steps=100), before)


def test_the_trials_that_a_waiting_extension_continues_can_be_steered_and_no_others(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(seeds=[0, 1]))[0].id)
    driver.start()
    at_target, short = (trial.trial_id for trial in store.trials(driver.job_id))
    driver.send(finished(at_target, at_target=True), stream=at_target)
    driver.send(finished(short), stream=short)
    driver.send(AttemptFinished(outcome="succeeded"))
    store.extend(driver.job_id, LARGER)

    store.steer(driver.job_id, SteerRequest(search_now=True))

    view = store.steering(driver.job_id)
    assert {steerable.trials for steerable in view.steerable} == {(short,)} and view.steers[0].trials == (short,)
    with pytest.raises(InvalidJob, match=f"trial `{at_target}` has finished"):
        store.steer(driver.job_id, SteerRequest(search_now=True, trials=(at_target,)))


def test_a_cap_that_no_trial_has_spent_is_not_extended_alone(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(budget={"steps": 100, "seconds": 1000}))[0].id)
    driver.start()
    train(driver, steps=100, steady=60)
    end(driver, steps=100)
    before = store.job(driver.job_id)

    with pytest.raises(InvalidJob, match="each has spent a cap of 2000 seconds or 100 steps: give more"):
        store.extend(driver.job_id, Budget(seconds=2000))

    assert store.job(driver.job_id) == before
    assert store.extend(driver.job_id, Budget(steps=101)).state is JobState.QUEUED


SWEEP = {
    "optimizer": {"kind": "sgd"},
    "params": {"optimizer.momentum": {"uniform": [0.5, 0.95]}},
}


@pytest.fixture
def swept(store, make_spec, begin):
    """Begin a job with an arm and three samples, which all start; return its driver and its trials."""

    def swept(**sweep):
        driver = begin(store.add_job(make_spec(**SWEEP, sweep={"samples": 3} | sweep))[0].id)
        trials = [trial.trial_id for trial in store.trials(driver.job_id)]
        for trial in trials:
            told = {"arm": "a", "seed": 0, "backend": "gloo", "device": "cpu"}
            driver.send(TrialStarted(trial_id=trial, **told), stream=trial)
        return driver, trials

    return swept


def rung(trial, number, value):
    return RungReached(trial_id=trial, rung=number, step=10, seconds=1.0, bytes_sent=100, value=value)


def test_a_job_without_a_trial_that_could_train_is_not_extended_whatever_its_objective(store, swept):
    driver, (arm, first, second, third) = swept()
    for trial, value in ((first, 0.1), (second, 0.9)):  # the second is pruned
        driver.send(rung(trial, 0, value), stream=trial)
    driver.send(finished(second, stopped=True), stream=second)
    driver.send(finished(arm, outcome="diverged"), stream=arm)
    for trial in (first, third):
        driver.send(TrialFailed(trial_id=trial, reason="out of memory"), stream=trial)
    driver.send(AttemptFinished(outcome="succeeded"))
    before = store.job(driver.job_id)
    assert before.state is JobState.SUCCEEDED

    with pytest.raises(InvalidJob, match="no trial would train: each has diverged, failed or been pruned, or was "):
        store.extend(driver.job_id, LARGER)

    assert store.job(driver.job_id) == before


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_stopped_sweep_is_finished_before_a_larger_budget_moves_its_rungs(store, swept, begin, has_begun):
    driver, (arm, first, second, third) = swept()
    for number in (0, 1):
        driver.send(rung(first, number, 0.1), stream=first)
    store.stop(driver.job_id)
    for trial in (arm, first):
        driver.send(finished(trial), stream=trial)
    for trial in (second, third) if has_begun else ():
        driver.send(finished(trial, stopped=True), stream=trial)
    driver.send(AttemptFinished(outcome="succeeded"))

    with pytest.raises(InvalidJob, match=r"`steps` must stay 100 .* `sample-1`: .* `extend` the job to it first") as no:
        store.extend(driver.job_id, LARGER)
    assert [problem.pointer for problem in no.value.problems] == ["/steps"]

    assert store.extend(driver.job_id, Budget(steps=100)).state is JobState.QUEUED
    again = begin(driver.job_id)
    again.send(*(finished(trial) for trial in (arm, first, second, third)))
    again.send(AttemptFinished(outcome="succeeded"))
    assert store.extend(driver.job_id, LARGER).state is JobState.QUEUED


def test_a_stopped_sweep_without_rungs_gets_any_larger_budget(store, swept):
    driver, (arm, *_) = swept(scheduler="none")
    store.stop(driver.job_id)
    driver.send(finished(arm), stream=arm)
    driver.send(AttemptFinished(outcome="succeeded"))

    assert store.extend(driver.job_id, LARGER).state is JobState.QUEUED


def test_a_waiting_extension_offers_what_a_queued_job_does(store, done):
    verbs = store.extend(done.job_id, LARGER).verbs

    assert set(verbs) == {Verb.PAUSE, Verb.STOP, Verb.CANCEL, Verb.STEER}


def test_a_trial_is_no_more_completed_once_its_extension_has_begun_and_failed(store, done, begin):
    store.extend(done.job_id, LARGER)
    for number in (2, 3):
        begin(done.job_id)
        store.attempts.lose(done.job_id, number, reason="lost")

    assert store.job(done.job_id).state is JobState.FAILED
    assert store.trials(done.job_id)[0].outcome is None


ARMS = {"arms": [{"name": "tuned"}, {"name": "dense", "exchange": {"kind": "none"}}]}


@pytest.fixture
def two_arms(store, make_spec, begin):
    """The driver of a job that has succeeded with two arms, a seed and three samples."""
    driver = begin(store.add_job(make_spec(**ARMS, **SWEEP, sweep={"samples": 3}), idempotency_key="k")[0].id)
    driver.start()
    train(driver, steps=100, steady=60)
    for each in store.trials(driver.job_id):
        driver.send(finished(each.trial_id), stream=each.trial_id)
    driver.send(AttemptFinished(outcome="succeeded"))
    return driver


def rows_of(store, job_id):
    """Return all of the job's trials as stored, by id, but for their places."""
    columns = [each for each in TrialRow.__table__.columns if each.name != "position"]
    with store._db.reading() as session:
        return {row.id: row for row in session.execute(select(*columns).where(TrialRow.job_id == job_id))}


def planned(store, job_id):
    """Return what the job's next attempt would train, in order: each trial with its sample and its run."""
    with store._db.reading() as session:
        points = attempts.resume_points(session, session.get_one(JobRow, job_id))
    spec = store.job(job_id).spec
    drawn = {each.arm: each.sample.values for each in store.trials(job_id) if each.sample and each.sample.values}
    return [
        (point.trial_id.partition(".")[2], point.sample, run)
        for point, run in zip(points, spec.trials(drawn), strict=True)
    ]


@pytest.mark.parametrize("more", [{"seeds": [5, 2]}, {"samples": 6}, {"seeds": [5, 2], "samples": 6}])
def test_a_job_with_further_seeds_and_samples_has_the_trials_of_one_that_began_with_them(
    store, two_arms, make_spec, begin, more
):
    seeds, samples = [0, *more.get("seeds", ())], more.get("samples", 3)
    whole = store.add_job(make_spec(**ARMS, **SWEEP, seeds=seeds, sweep={"samples": samples}))[0].id

    store.extend(two_arms.job_id, **more)
    assert len(store.trials(two_arms.job_id)) == 5  # until it begins
    begin(two_arms.job_id)

    assert planned(store, two_arms.job_id) == planned(store, whole)


def test_trials_that_have_finished_stay_as_they_are_beside_further_seeds_and_samples(store, two_arms, begin):
    before, stages = rows_of(store, two_arms.job_id), store.stages(two_arms.job_id)

    store.extend(two_arms.job_id, seeds=[1], samples=4)
    again = begin(two_arms.job_id)
    after = rows_of(store, two_arms.job_id)

    assert {name: after[name] for name in before} == before and store.stages(two_arms.job_id) == stages
    unfinished = {p.trial_id for p in store.attempts.brief(two_arms.job_id, 2).trials if not p.finished}
    assert unfinished == after.keys() - before.keys() and len(unfinished) == 3
    again.send(*(finished(trial_id) for trial_id in unfinished))
    again.send(AttemptFinished(outcome="succeeded"))
    assert store.job(two_arms.job_id).state is JobState.SUCCEEDED


@pytest.mark.parametrize("caps", [None, LARGER])
def test_further_seeds_that_are_cancelled_before_they_begin_leave_the_job_as_it_was(store, two_arms, make_spec, caps):
    before, rows = store.job(two_arms.job_id), rows_of(store, two_arms.job_id)
    extended = store.extend(two_arms.job_id, caps, seeds=[1, 2])
    assert (extended.spec.seeds, store.job(two_arms.job_id).spec.num_trials) == ((0, 1, 2), 9)
    assert store.report(two_arms.job_id).trials and store.steering(two_arms.job_id)

    after = store.cancel(two_arms.job_id)

    assert after.model_dump(exclude={"version"}) == before.model_dump(exclude={"version"})
    assert rows_of(store, two_arms.job_id) == rows


def test_a_job_with_further_seeds_and_samples_is_still_the_first_of_its_key(store, two_arms, make_spec, begin):
    store.extend(two_arms.job_id, seeds=[1], samples=4)
    begin(two_arms.job_id)
    posted = make_spec(**ARMS, **SWEEP, sweep={"samples": 3})

    again, is_new = store.add_job(posted, idempotency_key="k")

    assert (again.id, is_new, again.spec.num_trials) == (two_arms.job_id, False, 8)


def test_a_larger_budget_with_further_seeds_continues_the_old_trials_and_begins_the_new(store, done, begin):
    asked = store.extend(done.job_id, LARGER, seeds=[1])
    assert asked.reason.endswith(
        "`tuned.0` goes on from step 60, before its rate followed the budget's end; new seeds: 1"
    )
    begin(done.job_id)

    brief = store.attempts.brief(done.job_id, 2)
    assert [(point.finished, point.resume) for point in brief.trials] == [(False, {"at": 60}), (False, None)]
    assert (brief.spec.budget, brief.spec.seeds) == (LARGER, (0, 1))


def test_a_budget_is_extended_alone_after_further_seeds(store, done, begin):
    store.extend(done.job_id, seeds=[1])
    second = begin(done.job_id)
    new = store.trials(done.job_id)[1].trial_id
    second.send(finished(new), stream=new)
    second.send(AttemptFinished(outcome="succeeded"))

    store.extend(done.job_id, LARGER)
    begin(done.job_id)

    assert [point.finished for point in store.attempts.brief(done.job_id, 3).trials] == [False, False]


@pytest.mark.parametrize(
    ("more", "pointers", "said"),
    [
        ({"seeds": [0]}, ["/seeds/0"], "the job already has the seed 0"),
        ({"seeds": [1, 2, 1]}, ["/seeds/2"], "the seed 1, or gets it twice"),
        ({"seeds": range(1, 101)}, ["/seeds"], "at most 100"),
        ({"samples": 3}, ["/samples"], "`samples` must be more than 3, what the job has"),
        ({"samples": 4, "caps": LARGER}, ["/samples"], "compared at shares of 100 steps"),
    ],
)
def test_seeds_and_samples_that_add_nothing_or_compare_nothing_are_refused_by_name(
    store, two_arms, more, pointers, said
):
    before = store.job(two_arms.job_id)

    with pytest.raises(InvalidJob, match=said) as refused:
        store.extend(two_arms.job_id, **more)

    assert [each.pointer for each in refused.value.problems] == pointers
    assert store.job(two_arms.job_id) == before


def test_a_job_without_a_sweep_gets_no_samples(store, done):
    with pytest.raises(InvalidJob, match="the job has no `params`"):
        store.extend(done.job_id, samples=4)


def test_further_seeds_need_no_checkpoint_of_the_trials_that_have_finished(store, driver):
    driver.decide(0, first_step=0)
    resume = {"checkpoint": f"{store.settings.resolved_storage_url}/{driver.job_id}/gone"}
    driver.close(0, step=100, num_steps=100, bill=_bill(100), resume=resume)
    end(driver, steps=100)

    with pytest.raises(CheckpointGone):
        store.extend(driver.job_id, LARGER)
    assert store.extend(driver.job_id, seeds=[1]).state is JobState.QUEUED


def test_a_new_seed_learns_from_the_past_searches_of_its_arm(store, done, begin):
    prior = Prior(searches=(PastSearch(job="job-1", probes=()),))
    changed = TrialRow.__table__.update().where(TrialRow.id == done.trial_id)
    store._db.write(lambda session: session.execute(changed.values(prior=prior.model_dump(mode="json"))))

    store.extend(done.job_id, seeds=[1])
    begin(done.job_id)

    assert [point.prior for point in store.attempts.brief(done.job_id, 2).trials] == [prior, prior]


def test_a_job_that_only_gets_seeds_asks_for_the_room_of_their_trials(store, two_arms):
    store.extend(two_arms.job_id, seeds=[1, 2])

    [waiting] = store.work.backlog().waiting

    assert waiting.shape == Shape.of(store.job(two_arms.job_id).spec)._replace(trials=4)


def test_a_stopped_job_that_got_further_seeds_may_still_get_the_budget_that_it_had(store, stopped, begin):
    store.extend(stopped.id, seeds=[1])
    again = begin(stopped.id)
    new = store.trials(stopped.id)[1].trial_id
    again.send(finished(new), stream=new)
    again.send(AttemptFinished(outcome="succeeded"))

    assert store.extend(stopped.id, Budget(steps=100)).reason.endswith(": `tuned.0` goes on from its end, step 40")


def test_a_trial_that_has_spent_the_budget_stays_as_it_is_while_a_stopped_one_goes_on_to_it(store, make_spec, begin):
    driver = begin(store.add_job(make_spec(seeds=[0, 1]))[0].id)
    driver.start()
    whole, short = (trial.trial_id for trial in store.trials(driver.job_id))
    driver.send(finished(whole), stream=whole)
    store.stop(driver.job_id)
    driver.send(finished(short, stopped=True), stream=short)
    driver.send(AttemptFinished(outcome="succeeded"))
    before = rows_of(store, driver.job_id)[whole]

    reason = store.extend(driver.job_id, Budget(steps=100)).reason
    [waiting] = store.work.backlog().waiting
    begin(driver.job_id)

    assert (reason, waiting.shape.trials) == ("extended by first: `tuned.1` goes on from its end, step 30", 1)
    assert rows_of(store, driver.job_id)[whole] == before
    assert [point.finished for point in store.attempts.brief(driver.job_id, 2).trials] == [True, False]


def test_a_stopped_job_whose_trials_had_all_spent_the_budget_gets_only_a_larger_one(store, done):
    store._db.write(lambda session: setattr(jobs.locked(session, done.job_id), "stopped_by", "olga"))

    with pytest.raises(InvalidJob, match="nothing is larger: the job has 100 steps"):
        store.extend(done.job_id, Budget(steps=100))
    assert store.extend(done.job_id, LARGER).state is JobState.QUEUED
