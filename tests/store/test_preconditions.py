"""A verb meant for a version of a job does nothing once the job has changed."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from search.config import Budget
from service.errors import PreconditionFailed
from service.job.states import ALLOWED_IN, JobState, Verb
from service.wire.steering import SteerRequest
from tests.store.conftest import only

GIVEN = {Verb.EXTEND: {"caps": Budget(steps=200)}, Verb.STEER: {"asked": SteerRequest(search_now=True)}}


def ask(store, job_id, verb, **options):
    return getattr(store, verb)(job_id, **GIVEN.get(verb, {}), **options)


@only("sqlite")
@pytest.mark.parametrize("verb", list(Verb))
def test_a_verb_passes_at_the_version_that_was_seen_and_at_no_other(store, job_in, verb):
    state = next(each for each in JobState if each in ALLOWED_IN[verb])
    job = store.job(job_in(state))

    with pytest.raises(PreconditionFailed) as refusal:
        ask(store, job.id, verb, versions={job.version - 1})

    assert store.job(job.id) == job
    said = str(refusal.value)
    assert f"is {state} now" in said and f"at version {job.version}, not {job.version - 1}" in said
    assert all(f"`{each}`" in said for each in job.verbs)
    done = ask(store, job.id, verb, versions={job.version - 1, job.version})
    assert (done.state is state) == (verb is Verb.STEER) and done.version > job.version


@only("sqlite")
def test_a_verb_that_the_state_forbids_is_stale_first(store, job_in):
    """Who saw another version learns that, rather than that a state which it has not seen forbids the verb."""
    for verb in Verb:
        with pytest.raises(PreconditionFailed):
            ask(store, job_in(JobState.CANCELLING), verb, versions=frozenset())


def test_of_many_who_act_on_what_they_all_saw_one_is_heard(store, spec):
    job = store.add_job(spec)[0]

    def try_one(number):
        try:
            return ask(store, job.id, [Verb.PAUSE, Verb.CANCEL][number % 2], versions={job.version})
        except PreconditionFailed:
            return None

    with ThreadPoolExecutor(8) as pool:
        [heard] = [view for view in pool.map(try_one, range(8)) if view is not None]

    assert store.job(job.id) == heard
