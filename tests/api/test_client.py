"""The Python client against the application over a real socket."""

import socket
from pathlib import Path

import pytest

from api.client import ApiError, Client, DamagedDownload, Unreachable
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from tests.api.conftest import Reporting
from tests.patience import PATIENCE_S


def test_what_was_submitted_is_read_back(client: Client, job: JobSpec) -> None:
    made = client.submit(job)

    assert made.spec == job
    assert client.job(made.id).view == made.view
    assert [summary.id for summary in client.jobs().jobs] == [made.id]


def test_a_submission_can_be_repeated_with_its_key(client: Client, job: JobSpec) -> None:
    first, second = (client.submit(job, idempotency_key="once") for _ in range(2))

    assert first.id == second.id


def test_a_mapping_is_checked_by_the_service(client: Client) -> None:
    checked = client.validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 10}})

    assert checked.spec.budget.steps == 10


def test_results_equal_what_the_store_holds(client: Client, store: Store, reporting: Reporting) -> None:
    reporting.run_to_the_end()
    job_id = reporting.job_id

    assert client.trials(job_id) == store.trials(job_id)
    assert client.stages(job_id) == store.stages(job_id)
    assert client.metrics(job_id, "loss", max_points=10) == store.series(job_id, "loss", max_points=10)
    assert client.schedule(job_id, arm="dense") == store.schedules(job_id, arm="dense")[0]


def test_the_schedule_is_by_default_the_first_arms(client: Client, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    assert client.schedule(reporting.job_id).arm == "tuned"


def test_a_download_that_is_not_what_the_worker_wrote_is_refused_and_leaves_no_file(
    client: Client, store: Store, reporting: Reporting, tmp_path: Path
) -> None:
    reporting.run_to_the_end()
    (url,) = {trial.weights_url for trial in store.trials(reporting.job_id) if trial.arm == "tuned"}
    assert url is not None
    job, place = client.job(reporting.job_id), tmp_path / "weights.safetensors"
    whole = job.download("weights", place).read_bytes()
    place.unlink()

    Path(url.removeprefix("file://")).write_bytes(whole[:-1] + b"x")

    with pytest.raises(DamagedDownload, match=r"its SHA-256 is .*, and the service says"):
        job.download("weights", place)
    assert not place.exists()


def test_waiting_ends_with_the_job(client: Client, reporting: Reporting) -> None:
    reporting.run_to_the_end()

    assert client.wait(reporting.job_id, timeout_s=PATIENCE_S).state is JobState.SUCCEEDED


def test_waiting_gives_up_in_time(client: Client, reporting: Reporting) -> None:
    with pytest.raises(TimeoutError, match=reporting.job_id):
        client.wait(reporting.job_id, timeout_s=0.05, poll_s=0.01)


def test_watching_shows_every_state_from_the_first_to_the_last(client: Client, reporting: Reporting) -> None:
    states = []
    for view in client.watch(reporting.job_id, timeout_s=PATIENCE_S, poll_s=0.0):
        states.append(view.state)
        if len(states) == 1:
            reporting.run_to_the_end()

    assert states == [JobState.STARTING, JobState.SUCCEEDED]


def test_an_error_reads_well_in_a_terminal(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.submit({"workload": {"kind": "digits-mlp"}, "workers": {"count": 0}})

    assert caught.value.status == 422
    assert {error.pointer for error in caught.value.errors} == {"/workers/count", "/budget"}
    assert "/budget: `budget` is required" in str(caught.value).splitlines()[2]


def test_without_a_key_the_service_says_what_to_do(client: Client) -> None:
    with Client(client.url, "") as keyless, pytest.raises(ApiError, match="send an API key"):
        keyless.jobs()


def test_cancelling_twice_says_why_not(client: Client, job: JobSpec) -> None:
    made = client.submit(job)

    assert client.cancel(made.id).state is JobState.CANCELLED
    with pytest.raises(ApiError, match="cancelled"):
        client.cancel(made.id)


def test_a_service_that_is_late_on_an_overloaded_machine_is_no_wrong_url(busy_machine: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        with Client(url, "wt_any", timeout_s=0.05) as client, pytest.raises(Unreachable) as late:
            client.jobs()

    assert str(late.value).endswith(busy_machine)


def test_nothing_behind_the_url_is_said_so(busy_machine: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"

        with Client(url, "wt_any") as client, pytest.raises(Unreachable, match=url) as nothing:
            client.jobs()

    assert busy_machine not in str(nothing.value)
