"""The Python client against the application over a real socket."""

import dataclasses
import inspect
import io
import json
import re
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api import calls
from api.async_client import AsyncClient
from api.calls import JobFilters
from api.client import Client
from api.connection import request
from api.failures import ApiError, DamagedDownload, Unreachable
from api.http.app import create_app
from api.http.connections import Deadlines
from api.http.routes.jobs import job_filter
from api.http.server import server_config
from api.jobs import AsyncJob, Job
from service.code_package import Package, of_folder
from service.control.listing import JobFilter
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from tests.api.conftest import Reporting
from tests.support.patience import PATIENCE_S


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


def test_waiting_keeps_no_view_but_the_last(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    class View:
        """Stands where a job's view stands."""

    alive, most = weakref.WeakSet[View](), 0

    def watch(*_: Any, **__: Any) -> Iterator[View]:
        nonlocal most
        for _ in range(9):
            alive.add(view := View())
            most = max(most, len(alive))
            yield view

    monkeypatch.setattr(client, "watch", watch)
    client.wait("job-0")

    assert most <= 2  # it, and the one before


def test_waiting_gives_up_in_time(client: Client, reporting: Reporting) -> None:
    began = time.monotonic()

    for poll_s in (0.01, 60.0):
        with pytest.raises(TimeoutError, match=reporting.job_id):
            client.wait(reporting.job_id, timeout_s=0.05, poll_s=poll_s)

    assert time.monotonic() - began < 60.0


def test_watching_shows_every_state_from_the_first_to_the_last(client: Client, reporting: Reporting) -> None:
    states = []
    for view in client.watch(reporting.job_id, timeout_s=PATIENCE_S, poll_s=0.0):
        states.append(view.state)
        if len(states) == 1:
            reporting.run_to_the_end()

    assert states == [JobState.STARTING, JobState.SUCCEEDED]


#: Of drivers, of browsers, and of those who watch the service.
NOT_OF_CLIENTS = {
    *("getAttempt", "addRecords", "renewLease"),
    *("createSession", "deleteSession"),
    *("health", "ready", "getMetrics"),
}
GIVEN: dict[str, Any] = {
    "spec": {},
    "request": {},
    "changes": {},
    "package": Package(digest="", content=b"", num_bytes=0, num_files=0),
    "kind": "owner",
    "after": None,
    "kinds": (),
    "limit": 1,
}
#: The same of all parameters.
ALL_GIVEN = GIVEN | {"labels": {"a": "b"}, "archived": True, "after": 1, "me": None, "webhook": {}, "grace_s": 1}
ALL_GIVEN |= dict.fromkeys(("created_after", "created_before", "expires_at"), datetime(2030, 1, 1, tzinfo=UTC))
#: A client's `events` are a stream, of one job or of all, and no pages.
PAGED = ("listEvents", "listJobEvents")
#: Calls about one job that have other names on its handle.
RENAMED = {"job": "refresh", "weights": "download", "table": "download", "file": "download_file"}


def described() -> Iterator[tuple[str, Callable[..., calls.Call[Any]]]]:
    """Yield each call that both clients make: its name, and what describes it."""
    source = [inspect.getsource(each) for each in (Client, AsyncClient)]
    for name, describe in inspect.getmembers(calls, inspect.isfunction):
        if describe.__module__ == calls.__name__ and all(re.search(rf"\bcalls\.{name}\b", each) for each in source):
            yield name, describe


def requests_of_clients(*, is_all_given: bool = False) -> Iterator[calls.Call[Any]]:
    """Yield each call that both clients make, with what it needs or with all that it takes."""
    values = ALL_GIVEN if is_all_given else GIVEN
    for _, describe in described():
        parameters = inspect.signature(describe).parameters.values()
        given = [each.name for each in parameters if is_all_given or each.default is each.empty]
        yield describe(**{name: values.get(name, "x") for name in given})
    yield calls.events(None, after=values["after"], kinds=())


def operations() -> Iterator[tuple[str, str, Any]]:
    """Yield the method and the pattern of the path of each operation that the service has, and its description."""
    document = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), re.sub(r"{\w+}", "[^/:]+", path), operation


def test_there_is_a_method_for_every_call_of_rest_that_is_for_users() -> None:
    made = [*requests_of_clients()]

    missing = {
        operation["operationId"]
        for method, path, operation in operations()
        if not any(call.method == method and re.fullmatch(path, call.path) for call in made)
    }

    assert missing == NOT_OF_CLIENTS


def test_the_calls_take_every_query_parameter_of_rest_that_is_for_users() -> None:
    made = [*requests_of_clients(is_all_given=True)]

    missing = set()
    for method, path, operation in operations():
        taken = [call.params.keys() for call in made if call.method == method and re.fullmatch(path, call.path)]
        named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
        missing |= {(operation["operationId"], name) for name in named.difference(*taken) if taken}

    assert {each for each in missing if each[0] not in PAGED} == set()


def test_every_filter_of_a_list_is_known_to_the_store_to_rest_and_to_the_clients() -> None:
    of_store = {each.name.removesuffix("s") for each in dataclasses.fields(JobFilter)}
    of_list = set(inspect.signature(calls.jobs).parameters) - {"limit", "cursor", "count"}

    assert set(inspect.signature(job_filter).parameters) == of_store
    assert JobFilters.__annotations__.keys() == of_list
    assert {name.removesuffix("s") for name in of_list - {"progress", "fields", "bill", "order_by"}} == of_store


def test_a_job_has_every_call_about_it_without_its_id() -> None:
    of_one_job = {
        name for name, describe in described() if next(iter(inspect.signature(describe).parameters), "") == "job_id"
    }

    assert {"comparison", "snapshot", "events", *RENAMED} <= of_one_job
    for handle in (Job, AsyncJob):
        assert [name for name in of_one_job if not hasattr(handle, RENAMED.get(name, name))] == []


def test_a_job_is_compared_seen_at_once_and_followed_without_its_id(client: Client, job: JobSpec) -> None:
    one, other = client.submit(job), client.submit(job)

    assert {each.id for each in one.comparison([other.id]).jobs} == {one.id, other.id}
    assert one.snapshot().job == client.snapshot(one.id).job
    assert next(one.events(after=0)).job_id == one.id


def test_jobs_are_listed_by_their_ids_and_a_clone_names_its_source(client: Client, job: JobSpec) -> None:
    one, other = client.submit(job), client.submit(job)
    with pytest.raises(ApiError, match="404"):
        client.submit(job, source="job-none")

    assert [each.id for each in client.jobs(ids=[one.id]).jobs] == [one.id]
    assert len(client.jobs(ids=[one.id, other.id]).jobs) == 2


@pytest.mark.parametrize("none", [{"ids": []}, {"state": ()}], ids=str)
def test_of_no_id_and_of_no_state_there_is_no_job_and_of_any_there_is(
    client: Client, job: JobSpec, none: dict[str, Any]
) -> None:
    made = client.submit(job)

    assert client.jobs(**none, count=True).total == 0
    assert [*client.iter_jobs(**none)] == []
    assert [each.id for each in client.iter_jobs(**dict.fromkeys(none))] == [made.id]


def test_a_key_the_cluster_and_a_choice_of_what_users_did_are_read(client: Client) -> None:
    made = client.create_key("ci")
    client.revoke_key(made.key.id)

    assert client.key(made.key.id).revoked_at is not None
    assert not client.cluster().reachable
    found = client.audit(name="test", action="revokeKey", target=made.key.id, outcome="done")
    assert [each.action for each in found.entries] == ["revokeKey"]
    assert client.audit(outcome="refused").entries == ()


def test_a_file_of_a_job_is_downloaded(client: Client, store: Store, reporting: Reporting, tmp_path: Path) -> None:
    reporting.run_to_the_end()
    storage = store.storage
    storage.write(storage.file_url(reporting.job_id, "1/a/manifest.json"), b"{}")

    place = client.job(reporting.job_id).download_file("1/a/manifest.json", tmp_path / "m.json")

    assert place.read_bytes() == b"{}"


def test_an_error_reads_well_in_a_terminal(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.submit({"workload": {"kind": "digits-mlp"}, "workers": {"count": 0}})

    assert caught.value.status == 422
    assert {error.pointer for error in caught.value.errors} == {"/workers/count", "/budget"}
    assert "/budget: `budget` is required" in str(caught.value).splitlines()[2]


def test_a_refusal_has_the_slug_that_its_documentation_has_and_the_id_of_its_request(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.job("job-none")

    assert caught.value.slug == "not-found" and caught.value.request_id
    assert caught.value.request_id not in str(caught.value)  # which says all that there is to know
    assert {
        "type": "/problems/not-found",
        "request_id": caught.value.request_id,
    }.items() <= caught.value.document.items()


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        ('{"type": "/problems/internal", "request_id": "3f2a"}', {"Content_Type": "application/problem+json"}),
        ("<html>something", {"X_Request_ID": "3f2a"}),  # a proxy has put its own page in the place of the problem
    ],
)
def test_a_failure_of_the_service_names_the_request_by_which_its_log_has_the_cause(
    content: str, headers: dict[str, str]
) -> None:
    with answered(500, content, **headers) as client, pytest.raises(ApiError, match=r"\(HTTP 500, request 3f2a\)"):
        client.jobs()


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


@pytest.mark.parametrize(("timeout_s", "usual", "long"), [(10.0, 10.0, 60.0), (90.0, 90.0, 90.0)])
def test_what_the_service_may_work_on_for_long_is_waited_for_longer(
    timeout_s: float, usual: float, long: float, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("")
    several: list[calls.Call[Any]] = [calls.snapshot("j"), calls.report("j"), calls.comparison("j"), calls.stages("j")]
    several += [calls.artifacts("j"), calls.retry("j"), calls.extend("j"), calls.upload_code(of_folder(tmp_path))]

    with Client("http://127.0.0.1:1", "wt_any", timeout_s=timeout_s) as client:
        asked = [request(client._http, call).extensions["timeout"] for call in (calls.job("j"), *several)]

    assert [each["read"] for each in asked] == [usual, *[long] * len(several)]
    assert {each["connect"] for each in asked} == {timeout_s}


def test_a_client_closes_an_idle_connection_before_the_service_does(client: Client) -> None:
    kept_s = server_config(create_app, Deadlines()).timeout_keep_alive

    for made in (client, AsyncClient(client.url, "")):
        assert made._http._transport._pool._keepalive_expiry < kept_s - 1  # type: ignore[attr-defined]


def answered(status: int, content: str, **headers: str) -> Client:
    """A client of `http://x`, which answers so whatever is asked."""
    client = Client("http://x", "wt_any")
    answer = httpx2.Response(status, text=content, headers={name.replace("_", "-"): headers[name] for name in headers})
    client._http = httpx2.Client(base_url=client.url, transport=httpx2.MockTransport(lambda _: answer))
    return client


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("https://tuning.example/a/v1/jobs?limit=50", "the service is at https://tuning.example/a: give that as --url"),
        ("/v1/jobs", "the service is at http://x: give that as --url"),
        ("https://login.example/?next=1", "at http://x is no Wiretune service; it leads to https://login.example/$"),
    ],
)
def test_an_answer_that_leads_elsewhere_says_where_the_service_is(location: str, said: str) -> None:
    with answered(301, "<html>moved", Location=location) as client, pytest.raises(ApiError, match=said):
        client.jobs()


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, _: client.jobs(),
        lambda client, _: client.logs("j"),
        lambda client, _: next(client.events()),
        lambda client, out: client.save_weights("j", out),
        lambda client, out: client.save_metrics("j", out),
        lambda client, out: client.save_file("j", "a", out),
    ],
)
def test_another_web_server_is_no_service_and_its_page_is_no_file(ask: Callable[[Client, io.BytesIO], Any]) -> None:
    out = io.BytesIO()

    with (
        answered(200, "<html>hello", Content_Type="text/html; charset=utf-8") as client,
        pytest.raises(ApiError, match="what answers at http://x is no Wiretune service"),
    ):
        ask(client, out)

    assert out.getvalue() == b""


def test_nothing_behind_the_url_is_said_so(busy_machine: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"

        with Client(url, "wt_any") as client, pytest.raises(Unreachable, match=url) as nothing:
            client.jobs()

    assert busy_machine not in str(nothing.value)
