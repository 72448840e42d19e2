"""Several jobs side by side, over HTTP: what is told of them, and to whom."""

from fastapi.testclient import TestClient

from service.control.access import LOCAL, Principal
from service.control.store import Store
from service.job.spec import JobSpec
from service.wire.access import NewKey, Role
from tests.api.conftest import Reporting


def test_arms_are_held_to_the_target_that_all_jobs_have_in_common(http: TestClient, store: Store, job: JobSpec) -> None:
    done, begun = Reporting(store, job), Reporting(store, job.model_copy(update={"clip": 1.0}))
    done.run_to_the_end()
    begun.start("tuned")
    begun.stage("tuned", 0, rate=1.0, density=0.01)

    found = http.get(f"/v1/jobs/{done.job_id}/comparison", params={"other": [begun.job_id, done.job_id]}).json()

    assert [each["id"] for each in found["jobs"]] == [done.job_id, begun.job_id]
    assert found["differences"] == [{"pointer": "/clip", "values": [None, 1.0]}]
    ends = [each["trial"]["trial_id"] for each in found["trials"] if each["seconds_to_target"] is not None]
    assert ends == [done.trial("tuned"), done.trial("dense"), begun.trial("tuned")]
    tuned, dense, running, _ = (each["arm"] for each in found["arms"])
    assert tuned["seconds_to_target"]["mean"] < dense["seconds_to_target"]["mean"]
    assert running["seconds_to_target"] is None  # it has not finished


def test_a_job_that_one_may_not_see_cannot_be_put_beside_ones_own(
    anonymous: TestClient, store: Store, job: JobSpec
) -> None:
    ours, theirs = (
        store.add_job(job, by=Principal(name=name, role=Role.SUBMITTER, project=name))[0].id for name in ("red", "blue")
    )
    secret = store.keyring.create(NewKey(name="anna", owner="red", project="red", role=Role.VIEWER), by=LOCAL).secret
    headers = {"Authorization": f"Bearer {secret}"}

    for other in (theirs, "job-none"):
        answer = anonymous.get(f"/v1/jobs/{ours}/comparison", params={"other": other}, headers=headers)
        assert (answer.status_code, answer.json()["detail"]) == (404, f"there is no job `{other}`")
    assert anonymous.get(f"/v1/jobs/{ours}/comparison", headers=headers).status_code == 200


def test_more_jobs_than_letters_are_refused(http: TestClient, store: Store, job: JobSpec) -> None:
    job_id = store.add_job(job)[0].id

    answer = http.get(f"/v1/jobs/{job_id}/comparison", params={"other": [job_id] * 26})

    assert answer.status_code == 422
    assert "25" in answer.text
