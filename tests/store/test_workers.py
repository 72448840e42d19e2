"""A job that continues with another number of workers."""

import pytest

from search.config import Budget
from service.errors import InvalidJob
from service.job.spec import JobSpec
from service.job.states import JobState
from tests.store.conftest import only


@pytest.mark.parametrize(
    ("state", "verb"), [(JobState.PAUSED, "resume"), (JobState.FAILED, "retry"), (JobState.SUCCEEDED, "extend")]
)
def test_a_job_goes_on_with_the_workers_that_its_user_asks_for(store, job_in, state, verb):
    job_id = job_in(state)
    caps = [Budget(steps=200)] if verb == "extend" else []

    view = getattr(store, verb)(job_id, *caps, workers=3)

    assert (view.state, view.spec.workers.count) == (JobState.QUEUED, 3)
    assert view.reason.endswith(", with 3 workers instead of 2")


@only("sqlite")
def test_workers_that_the_job_cannot_have_are_refused_and_change_nothing(store, job_in):
    job_id = job_in(JobState.PAUSED)
    before = store.job(job_id)

    with pytest.raises(InvalidJob, match="`count` must be in"):
        store.resume(job_id, workers=1024)

    assert store.job(job_id) == before


@only("sqlite")
def test_a_key_still_names_a_job_whose_workers_were_changed(store, spec):
    made, _ = store.add_job(spec, idempotency_key="k")
    store.pause(made.id)
    store.resume(made.id, workers=3)

    again, is_new = store.add_job(JobSpec.model_validate(spec.model_dump()), idempotency_key="k")

    assert (again.id, is_new, again.spec.workers.count) == (made.id, False, 3)


@only("sqlite")
def test_workers_with_parameters_of_their_own_stay_as_many_as_they_are(store, spec):
    local = JobSpec.model_validate(spec.model_dump() | {"sync": {"kind": "local_sgd"}})
    made, _ = store.add_job(local, idempotency_key="k")
    store.pause(made.id)

    with pytest.raises(InvalidJob, match="goes on with 2 workers alone, got 3"):
        store.resume(made.id, workers=3)

    assert store.resume(made.id, workers=2).spec.workers.count == 2


@only("sqlite")
def test_so_do_those_of_a_sweep_of_which_any_sample_may_have_them(store, spec):
    choice = [{"kind": "every_step"}, {"kind": "diloco", "period": 10}]
    swept = JobSpec.model_validate(spec.model_dump() | {"params": {"sync": {"choice": choice}}})
    made, _ = store.add_job(swept, idempotency_key="k")
    store.pause(made.id)

    with pytest.raises(InvalidJob, match="under diloco each worker has parameters"):
        store.resume(made.id, workers=3)


@only("sqlite")
def test_a_job_of_an_earlier_release_with_an_arm_called_best_goes_on_with_other_workers(store, make_spec):
    made, _ = store.add_job(make_spec(arms=[{"name": "best"}]))
    store.pause(made.id)

    assert store.resume(made.id, workers=3).spec.workers.count == 3
