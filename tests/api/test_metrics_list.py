"""The list of a job's metrics: what each trial has recorded, and what the refusal of an unknown one names."""

from fastapi.testclient import TestClient

from api.client import Client
from service.wire.records import MetricPoints
from tests.api.conftest import Reporting


def test_the_list_has_the_number_of_points_and_the_last_one_of_each_trials_series(
    http: TestClient, reporting: Reporting
) -> None:
    reporting.run_to_the_end()

    listed = http.get(f"/v1/jobs/{reporting.job_id}/metrics").json()

    ends = {
        each["arm"]: (each["num_points"], each["last_step"], each["last_value"])
        for each in listed
        if each["name"] == "loss"
    }
    series = http.get(f"/v1/jobs/{reporting.job_id}/metrics/loss").json()
    assert ends == {each["arm"]: (each["num_points"], each["steps"][-1], each["values"][-1]) for each in series}
    assert ends.keys() == {"tuned", "dense"}


def test_the_list_names_what_the_refusal_of_an_unknown_metric_names(http: TestClient, reporting: Reporting) -> None:
    reporting.start("tuned")
    trial_id = reporting.trial("tuned")
    reporting.post(MetricPoints(trial_id=trial_id, name="own_aux", steps=(0,), seconds=(0.1,), values=(1.0,)))

    names = {each["name"] for each in http.get(f"/v1/jobs/{reporting.job_id}/metrics").json()}

    refused = http.get(f"/v1/jobs/{reporting.job_id}/metrics/own_other")
    assert refused.status_code == 404
    assert refused.json()["detail"].endswith(f"there are {', '.join(sorted(names))}")
    assert "own_aux" in names


def test_a_client_lists_the_metrics_of_one_trial(client: Client, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    found = client.recorded(reporting.job_id, trial=reporting.trial("dense"))

    assert {each.arm for each in found} == {"dense"}
    assert not [each.name for each in found if each.name.startswith("own_")]
