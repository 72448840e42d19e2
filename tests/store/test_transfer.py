"""Past jobs: which ones a job may learn from, and that every attempt learns from the same."""

import threading

import pytest

from service.control import transfer
from service.control.access.rules import Principal
from service.control.listing import JobFilter
from service.control.models import StageRow
from service.errors import InvalidJob
from service.job.states import JobState
from service.wire.access import Role
from service.wire.records import AttemptFinished, Bill, SampleDrawn
from service.wire.stored import stored_spec
from tests.support.decisions import decision
from tests.support.unreadable import make_unreadable

AUTO = {"controller": {"kind": "bo", "transfer": "auto"}}
SGD = {"optimizer": {"kind": "sgd", "learning_rate": 0.1}}


REWARDS = (0.1, 0.4, 0.5, 0.2, None)


@pytest.fixture
def past(store, make_spec, begin):
    """Add a job that has searched, and return its id."""

    def past(*, rewards=REWARDS, ends=True, **changes):
        job_id = store.add_job(make_spec(**changes))[0].id
        driver = begin(job_id)
        driver.start()
        driver.decide(0, first_step=0, decision=decision(0, rewards=rewards))
        driver.decide(1, first_step=50, decision=decision(1, rewards=(0.0, 0.0, 0.0, 0.0)))
        if ends:
            driver.close(0, step=50, num_steps=50, bill=Bill(), resume={})
            driver.send(AttemptFinished(outcome="succeeded"))
        return job_id

    return past


def _named(*jobs):
    return {"controller": {"kind": "bo", "transfer": {"jobs": list(jobs)}}}


def _brief(store, job_id):
    return store.attempts.brief(job_id, store.attempts.begin(job_id).attempt)


def test_auto_takes_the_newest_five_that_are_alike(store, make_spec, past):
    alike = [past() for _ in range(6)]
    past(workload={"kind": "mnist5k-cnn"})
    past(exchange={"kind": "threshold", "density": 0.01})
    past(**SGD)
    past(ends=False)
    past(rewards=())
    past(controller={"kind": "fixed"})
    job, _ = store.add_job(make_spec(**AUTO))
    [point] = _brief(store, job.id).trials

    assert [search.job for search in point.prior.searches] == alike[:0:-1]
    assert [probe.reward for probe in point.prior.searches[0].probes] == [0.1, 0.4, 0.5, 0.2, None]
    assert point.prior.searches[0].probes[1].values.learning_rate == pytest.approx(0.1)


def test_a_past_job_is_read_once_for_all_arms_and_not_by_the_thread_that_writes(store, make_spec, past, monkeypatch):
    past_job, readers = past(), []

    def read(*stored):
        readers.append(threading.current_thread())
        return stored_spec(*stored)

    monkeypatch.setattr(transfer, "stored_spec", read)
    job, _ = store.add_job(make_spec(**AUTO, arms=[{"name": "one"}, {"name": "two", **SGD}, {"name": "three"}]))

    assert readers == [threading.current_thread()]
    learned = [[each.job for each in trial.prior.searches] for trial in _brief(store, job.id).trials]
    assert learned == [[past_job], [], [past_job]]


def test_a_sample_is_alike_by_what_it_trained_with(store, make_spec, begin):
    params = {"optimizer": {"choice": [{"kind": "sgd"}, {"kind": "lars"}]}}
    past_job, _ = store.add_job(make_spec(params=params, sweep={"samples": 2}))
    driver = begin(past_job.id)
    driver.start()
    for trial in store.trials(past_job.id):
        driver.trial_id = trial.trial_id
        if trial.sample is not None:
            driver.decide(0, first_step=0, decision=decision(0, rewards=REWARDS))
            driver.close(0, step=50, num_steps=50, bill=Bill(), resume={})
    driver.send(AttemptFinished(outcome="succeeded"))

    found = store.prior_jobs(make_spec(arms=[{"name": "adamw", **AUTO}, {"name": "sgd", **AUTO, **SGD}]))

    assert found == {"adamw": (), "sgd": (past_job.id,)}


KINDS = {"optimizer": {"choice": [{"kind": "sgd", "learning_rate": 0.1}, {"kind": "lars"}]}}


@pytest.mark.parametrize("named", [False, True], ids=["auto", "named"])
def test_a_sample_learns_from_past_jobs_that_are_like_it(store, make_spec, past, named):
    of_sgd, of_adamw = past(**SGD), past()
    asked = _named(of_adamw, of_sgd) if named else AUTO
    arm = {"name": "fixed", "controller": {"kind": "fixed"}}
    job, _ = store.add_job(make_spec(**asked, arms=[arm], params=KINDS, sweep={"samples": 2}))
    past(**SGD)  # too late

    of_arm, *of_samples = _brief(store, job.id).trials

    assert of_arm.prior.searches == ()
    learned = {
        each.sample.values["optimizer"]["kind"]: [search.job for search in each.prior.searches] for each in of_samples
    }
    assert learned == {"sgd": [of_sgd], "lars": []}


def test_a_sample_that_is_drawn_later_learns_from_past_jobs_then(store, make_spec, past, begin):
    of_sgd, arm = past(**SGD), {"name": "fixed", "controller": {"kind": "fixed"}}
    sweep = {"samples": 9, "sampler": "bo"}
    job, _ = store.add_job(make_spec(**AUTO, arms=[arm], params=KINDS, sweep=sweep))
    driver = begin(job.id)
    last = store.attempts.brief(job.id, 1).trials[-1]
    assert last.sample.values is None and last.prior.searches == ()

    values = {"optimizer": {"kind": "sgd", "learning_rate": 0.1}}
    drawn = SampleDrawn(trial_id=last.trial_id, values=values, drawn_by="qLogNEI", only_if_new=False)
    driver.send(drawn, stream=last.trial_id)

    assert [each.job for each in store.attempts.brief(job.id, 1).trials[-1].prior.searches] == [of_sgd]


FIXED = {"name": "fixed", "controller": {"kind": "fixed"}}


@pytest.mark.parametrize("is_swept", [False, True], ids=["in the job", "in a choice"])
def test_a_named_job_that_samples_cannot_learn_from_is_refused_unless_it_is_of_another_kind(
    store, make_spec, past, job_in, is_swept
):
    def asking(job_id):
        asked, sweep = _named(job_id), {"samples": 2}
        if not is_swept:
            return make_spec(**asked, arms=[FIXED], params=KINDS, sweep=sweep)
        choice = [asked["controller"], asked["controller"] | {"first_search": "always"}]
        return make_spec(arms=[FIXED], params={"controller": {"choice": choice}, **KINDS}, sweep=sweep)

    running, hopeless = job_in(JobState.RUNNING), past(rewards=(0.1, None, None, None), **SGD)
    for job_id, why in (("job-0", "no job"), (running, "is running"), (hopeless, "has fewer than 4 probes")):
        for ask in (store.add_job, store.prior_jobs):
            with pytest.raises(InvalidJob, match=why) as refusal:
                ask(asking(job_id))
            (problem,) = refusal.value.problems
            place = "/params/controller" if is_swept else "/controller/transfer"
            assert (problem.pointer, problem.value) == (f"{place}/jobs/0", job_id)

    of_adamw = past()

    assert store.prior_jobs(asking(of_adamw)) == {}
    assert store.add_job(asking(of_adamw))[1]


@pytest.mark.parametrize("role", [Role.SUBMITTER, Role.OPERATOR])
def test_a_sample_that_is_drawn_later_learns_from_the_projects_that_its_submitter_sees(
    store, make_spec, past, begin, role
):
    elsewhere = past(**SGD)
    by = Principal(name="anna", role=role, project="blue")
    spec = make_spec(**AUTO, arms=[FIXED], params=KINDS, sweep={"samples": 9, "sampler": "bo"})
    job, _ = store.add_job(spec, by=by)
    driver = begin(job.id)
    known = [each for each in store.attempts.brief(job.id, 1).trials if each.sample and each.sample.values]
    last = store.attempts.brief(job.id, 1).trials[-1]

    values = {"optimizer": {"kind": "sgd", "learning_rate": 0.1}}
    drawn = SampleDrawn(trial_id=last.trial_id, values=values, drawn_by="qLogNEI", only_if_new=False)
    driver.send(drawn, stream=last.trial_id)

    at_once = {search.job for each in known for search in each.prior.searches}
    later = {search.job for search in store.attempts.brief(job.id, 1).trials[-1].prior.searches}
    assert at_once == later == ({elsewhere} if role is Role.OPERATOR else set())


def test_own_workloads_are_alike_by_their_factory(store, make_spec, past):
    mine = past(workload={"factory": "a.model:make"})
    past(workload={"factory": "another.model:make"})
    job, _ = store.add_job(make_spec(workload={"factory": "a.model:make"}, **AUTO))

    assert [search.job for search in _brief(store, job.id).trials[0].prior.searches] == [mine]


def test_what_was_found_stays_with_the_job_whatever_finishes_later(store, make_spec, past):
    first = past()
    job, _ = store.add_job(make_spec(**AUTO))
    early = _brief(store, job.id)
    past()
    store.attempts.lose(job.id, 1, reason="lost")
    late = _brief(store, job.id)

    assert early.trials == late.trials
    assert [search.job for search in late.trials[0].prior.searches] == [first]


def test_each_arm_learns_from_what_its_own_controller_asks_for(store, make_spec, past):
    one = past(**SGD)
    arms = [{"name": "warm", **_named(one), **SGD}, {"name": "cold"}, {"name": "alike", **AUTO}]
    job, _ = store.add_job(make_spec(arms=arms, seeds=[0, 1]))
    found = {point.trial_id.split(".")[1]: point.prior.searches for point in _brief(store, job.id).trials}

    assert {arm: [search.job for search in searches] for arm, searches in found.items()} == {
        "warm": [one],
        "cold": [],
        "alike": [],
    }
    assert store.prior_jobs(job.spec) == {"warm": (one,), "alike": ()}


def test_a_job_that_cannot_be_learned_from_is_refused_by_name(store, make_spec, past, job_in):
    running, cancelled = job_in(JobState.RUNNING), job_in(JobState.CANCELLED)
    sgd, fixed = past(**SGD), past(controller={"kind": "fixed"})
    hopeless, unprobed = past(rewards=(0.1, None, None, None)), past(rewards=())
    refused = make_spec(arms=[{"name": "a", **_named("job-0", running, cancelled, sgd, fixed)}])
    with pytest.raises(InvalidJob) as refusal:
        store.add_job(refused)
    with pytest.raises(InvalidJob, match=f"{hopeless}. has fewer than 4 probes"):
        store.add_job(make_spec(**_named(hopeless)))
    with pytest.raises(InvalidJob, match=f"{unprobed}. probed nothing: .* has `controller.first_search: always`"):
        store.add_job(make_spec(**_named(unprobed)))
    with pytest.raises(InvalidJob) as shared:
        store.prior_jobs(make_spec(arms=[{"name": "a"}, {"name": "b"}], **_named("job-0")))

    assert [problem.pointer for problem in shared.value.problems] == ["/controller/transfer/jobs/0"]
    problems = refusal.value.problems
    assert [problem.pointer for problem in problems] == [f"/arms/0/controller/transfer/jobs/{n}" for n in range(5)]
    assert [problem.value for problem in problems] == ["job-0", running, cancelled, sgd, fixed]
    for problem, why in zip(problems, ("no job", "is running", "is cancelled", "`sgd`", "no arm"), strict=True):
        assert why in problem.message and f"`{problem.value}`" in problem.message
    assert store.jobs(JobFilter(states=[JobState.QUEUED])).jobs == ()


def test_a_known_key_gives_its_job_again_whatever_has_finished_since(store, make_spec, past):
    first, _ = store.add_job(make_spec(**AUTO), idempotency_key="k")
    past()

    assert store.add_job(make_spec(**AUTO), idempotency_key="k")[0].id == first.id


def test_auto_passes_over_a_job_that_this_release_cannot_read_and_a_named_one_is_refused(store, make_spec, past):
    alike, unreadable, other = past(), past(), past()
    make_unreadable(store, unreadable, "workers")
    rewrite_decision(store, other, probes=[{"colour": "red"}])

    job, _ = store.add_job(make_spec(**AUTO))

    assert [search.job for search in _brief(store, job.id).trials[0].prior.searches] == [alike]
    for past_job, why in ((unreadable, "workers.colour"), (other, "another release")):
        with pytest.raises(InvalidJob, match=why):
            store.add_job(make_spec(**_named(past_job)))


def rewrite_decision(store, job_id, **fields):
    """Let the job's first decision have these fields, as another release may have left it."""

    trial_id = store.trials(job_id)[0].trial_id

    def write(session):
        stage = session.get_one(StageRow, (trial_id, 0))
        stage.decision = stage.decision | fields

    store._db.write(write)
