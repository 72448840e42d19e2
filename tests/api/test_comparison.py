"""The comparison of jobs over HTTP: its content, and who may see it."""

import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from api.cli import compare_command, report
from api.client import Client
from service.control.access.rules import LOCAL, Principal
from service.control.store import Store
from service.job.spec import JobSpec
from service.wire.access import NewKey, Role
from service.wire.records import MetricPoints
from tests.api.conftest import Reporting


def test_arms_are_held_to_the_target_that_all_jobs_have_in_common(http: TestClient, store: Store, job: JobSpec) -> None:
    done, begun = Reporting(store, job), Reporting(store, job.model_copy(update={"clip": 1.0}))
    done.run_to_the_end()
    begun.start("tuned")
    begun.stage("tuned", 0, rate=1.0, density=0.01)

    found = http.get(f"/v1/jobs/{done.job_id}/comparison", params={"other": [begun.job_id, done.job_id]}).json()

    assert [each["id"] for each in found["jobs"]] == [done.job_id, begun.job_id]
    assert found["differences"] == [{"pointer": "/clip", "values": [None, 1.0]}]
    assert found["target"] == pytest.approx(0.4, abs=0.1)  # where one ended, not where one is that trains
    ends = [each["trial"]["trial_id"] for each in found["trials"] if each["seconds_to_target"] is not None]
    assert ends == [done.trial("tuned"), done.trial("dense")]
    tuned, dense, running, _ = (each["arm"] for each in found["arms"])
    assert tuned["seconds_to_target"]["mean"] < dense["seconds_to_target"]["mean"]
    assert running["seconds_to_target"] is None  # it has not finished


def test_no_job_is_held_to_an_arm_that_was_stopped_alone(http: TestClient, store: Store, job: JobSpec) -> None:
    ended = {"tuned": 0.4, "dense": 0.9}  # hopeless, and stopped by a person
    one = Reporting(store, job)
    for arm, loss in ended.items():
        one.start(arm)
        one.post(
            MetricPoints(trial_id=one.trial(arm), name="validation_loss", steps=(9,), seconds=(1,), values=(loss,))
        )
    store.stop_trial(one.job_id, one.trial("dense"))
    for arm, loss in ended.items():
        one.finish_trial(arm, rates=[0.1], density=None, loss=loss, stopped=arm == "dense")
    one.finish()

    found = http.get(f"/v1/jobs/{one.job_id}/comparison").json()
    alone = http.get(f"/v1/jobs/{one.job_id}/report").json()

    assert found["target"] == 0.4
    assert {each["target"] for each in alone["trials"]} == {0.4}


def test_a_loss_that_only_a_hopeless_arm_ended_at_is_no_target(http: TestClient, store: Store, job: JobSpec) -> None:
    ended = {"tuned": 0.3, "dense": 0.4}
    good, hopeless = Reporting(store, job), Reporting(store, job)
    for of, worse in ((good, 0.0), (hopeless, 2.0)):
        for arm, loss in ended.items():
            of.start(arm)
            values = (loss if arm == "tuned" else loss + worse,)
            of.post(
                MetricPoints(trial_id=of.trial(arm), name="validation_loss", steps=(9,), seconds=(1,), values=values)
            )
            of.finish_trial(arm, rates=[0.1], density=None, loss=values[0])
        of.finish()

    found = http.get(f"/v1/jobs/{good.job_id}/comparison", params={"other": hopeless.job_id}).json()

    assert found["target"] == 0.4  # of 0.3, 0.3, 0.4 and 2.4, the worse of the middle two


def test_a_model_that_was_not_trained_sets_no_target(http: TestClient, store: Store, job: JobSpec) -> None:
    one = Reporting(store, job)
    for arm, loss in {"tuned": 0.3, "dense": 2.3}.items():
        one.start(arm)
        one.post(
            MetricPoints(trial_id=one.trial(arm), name="validation_loss", steps=(0,), seconds=(1,), values=(loss,))
        )
        one.finish_trial(arm, rates=[0.1] if arm == "tuned" else [], density=None, loss=loss)
    one.finish()

    assert http.get(f"/v1/jobs/{one.job_id}/comparison").json()["target"] == 0.3


ACCURACIES = {
    "one": {"tuned": (0.2, 0.9, 0.7), "dense": (0.1, 0.4, 0.8)},
    "two": {"tuned": (0.6, 0.7, 0.9), "dense": (0.1, 0.5, 0.65)},
}


@pytest.fixture
def by_accuracy(store: Store, job: JobSpec) -> list[Reporting]:
    """Two jobs that are over, of which the objective is an accuracy that was measured at 1, 2 and 3 s."""
    objective, pair = job.objective.model_copy(update={"metric": "accuracy"}), []
    for name, of_arm in ACCURACIES.items():
        pair.append(each := Reporting(store, job.model_copy(update={"name": name, "objective": objective})))
        for arm, values in of_arm.items():
            each.start(arm)
            each.post(
                MetricPoints(
                    trial_id=each.trial(arm), name="validation_accuracy", steps=(0, 1, 2), seconds=(1, 2, 3),
                    values=values,
                )
            )  # fmt: skip
            each.finish_trial(arm, rates=[0.1], density=None, loss=0.3)
        each.finish()
    return pair


def test_jobs_are_timed_to_the_median_of_their_accuracies(http: TestClient, by_accuracy: list[Reporting]) -> None:
    one, two = by_accuracy

    found = http.get(f"/v1/jobs/{one.job_id}/comparison", params={"other": two.job_id}).json()

    assert (found["metric"], found["target"], found["target_loss"]) == ("accuracy", 0.7, None)
    assert [each["seconds_to_target"] for each in found["trials"]] == [2, 3, 2, None]
    means = [each["arm"]["seconds_to_target"] for each in found["arms"]]
    assert [mean and mean["mean"] for mean in means] == [2, 3, 2, None]


def test_a_job_of_an_accuracy_and_one_of_the_loss_are_timed_to_a_loss(
    http: TestClient, store: Store, job: JobSpec, by_accuracy: list[Reporting]
) -> None:
    other = Reporting(store, job)
    other.run_to_the_end()

    path = f"/v1/jobs/{by_accuracy[0].job_id}/comparison"
    found = http.get(path, params={"other": other.job_id}).json()

    assert found["metric"] == "loss" and found["target"] == found["target_loss"] is not None


def test_the_command_line_says_which_metric_jobs_and_arms_are_timed_to(
    client: Client, by_accuracy: list[Reporting]
) -> None:
    one, two = by_accuracy
    table = Console(width=160)

    with table.capture() as capture:
        for sheet in compare_command.sheets(client.comparison(one.job_id, [two.job_id])):
            table.print(sheet)
    crossings = list(report.crossing_lines(report.result(client, client.job(two.job_id).view)))

    assert "accuracy 0.7000" in capture.get()
    assert crossings == ["tuned reached the accuracy at which dense ended (0.6500) after 2.0 s instead of 3.0 s"]


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
