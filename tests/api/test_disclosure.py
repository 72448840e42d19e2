"""Files and trackers that others may read hold no secret of a job."""

from typing import Any

import pytest

from api import plots
from api.client import Client
from api.disclosure import without_secrets
from api.exporters.trackers import Subject
from service.control.store import Store
from service.job.spec import JobSpec

SECRET = "s3cret"


@pytest.fixture
def job_ids(store: Store, job: JobSpec) -> list[str]:
    """Two jobs whose webhooks' paths and signed URLs are as good as keys."""
    signed = {"url": f"https://host/train.csv?sig={SECRET}", "sha256": "0" * 64}
    workload = {"kind": "own", "factory": "package.module:make", "batch_size": 32, "data": {"train": signed}}
    plain = job.model_dump(mode="json") | {"workload": workload, "objective": {}}
    specs = [plain | {"webhook": {"url": f"https://hooks.example.com/{SECRET}/{n}"}} for n in (1, 2)]
    return [store.add_job(JobSpec.model_validate(spec))[0].id for spec in specs]


def test_the_parameters_of_a_run_hold_no_secret(client: Client, job_ids: list[str]) -> None:
    parameters = Subject(client.job(job_ids[0]).view, "tuned", 0).parameters

    assert parameters["workload"]["data"]["train"]["url"] == "https://host/train.csv"
    assert "webhook" not in parameters and SECRET not in str(parameters)


def test_the_file_of_a_page_holds_no_secret(client: Client, job_ids: list[str]) -> None:
    for chosen in (job_ids[:1], job_ids):
        content = plots.html(plots.plot(client, chosen))

        assert "https://host/train.csv" in content and SECRET not in content


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ({"spec": {"webhook": {"url": "https://host"}, "name": "a"}}, {"spec": {"name": "a"}}),
        (
            ["s3://bucket/key?versionId=1", "https://host/a#b", "why? a: https://host/b?sig=c: gone; S3://d?e f"],
            ["s3://bucket/key", "https://host/a", "why? a: https://host/b gone; S3://d f"],
        ),
        (
            ['{"url":"https://host/a?sig=b","n":[{"u":"https://host/c?d"}]}', "see [it](https://host/a?sig=b), then c"],
            ['{"url":"https://host/a","n":[{"u":"https://host/c"}]}', "see [it](https://host/a), then c"],
        ),
        (
            ["https://host/a?b[0].c=(d)&sig=e f", "<https://host/a?sig=b> ('https://host/a#b')"],
            ["https://host/a f", "<https://host/a> ('https://host/a')"],
        ),
        ([{"pointer": "/webhook/url"}, {"pointer": "/webhooks"}], [{"pointer": "/webhooks"}]),
        ({"values": [1.0, None, True]}, {"values": [1.0, None, True]}),
    ],
)
def test_secrets_are_left_out_and_all_else_stays(content: Any, shown: Any) -> None:
    assert without_secrets(content) == shown
