"""Ray's answers are translated into our types."""

import json

import httpx2
import pytest

from service.control.queue.capacity import Node
from service.control.ray_cluster import ray_jobs
from service.control.ray_cluster.ray_jobs import Machine, RayJobs, RayStatus, Workers
from service.errors import Unavailable


@pytest.fixture
def ray():
    """Return a client whose server gives one answer, and the requests it got."""
    clients = []

    def ray(answer):
        requests = []

        def handle(request):
            requests.append(request)
            if isinstance(answer, Exception):
                raise answer
            return answer

        clients.append(RayJobs("http://ray:8265", "secret", transport=httpx2.MockTransport(handle)))
        return clients[-1], requests

    yield ray
    for client in clients:
        client.close()


def submit(client):
    client.submit("wiretune-job-1-a1", entrypoint="python -m x", env_vars={"WIRETUNE_JOB": "job-1"})


def test_a_submission_carries_the_token_and_asks_for_no_cpus_of_its_own(ray):
    client, (requests) = ray(httpx2.Response(200, json={}))

    submit(client)

    (request,) = requests
    body = json.loads(request.content)
    assert (request.method, request.url.path) == ("POST", "/api/jobs/")
    assert request.headers["authorization"] == "Bearer secret"
    assert body["submission_id"] == "wiretune-job-1-a1"
    assert body["entrypoint_num_cpus"] == 0
    assert body["runtime_env"] == {"env_vars": {"WIRETUNE_JOB": "job-1"}}


@pytest.mark.parametrize("status_code", [400, 500])
def test_a_submission_that_exists_is_a_success(ray, status_code):
    client, _ = ray(httpx2.Response(status_code, text="ValueError: Job with submission_id x already exists."))

    submit(client)


def test_a_refused_submission_says_why(ray):
    client, _ = ray(httpx2.Response(500, text="No available agent to submit job, please try again later."))

    with pytest.raises(Unavailable, match="No available agent"):
        submit(client)


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"])
def test_a_status_is_rays_own(ray, status):
    client, _ = ray(httpx2.Response(200, json={"status": status}))

    assert client.status("x") == status


def test_an_unknown_submission_is_missing_has_no_logs_and_counts_as_stopped(ray):
    client, _ = ray(httpx2.Response(404, text="Job x does not exist"))

    assert client.status("x") is RayStatus.MISSING
    assert client.logs("x") == ""
    assert client.reason("x") == ""
    client.stop("x")
    client.delete("x")


@pytest.mark.parametrize(("status", "said"), [("FAILED", "setup failed"), ("RUNNING", "")])
def test_only_of_a_driver_that_failed_rays_message_is_why(ray, status, said):
    client, _ = ray(httpx2.Response(200, json={"status": status, "message": "setup failed"}))

    assert client.reason("x") == said


def test_a_driver_that_lives_is_not_forgotten_and_says_why(ray):
    client, requests = ray(httpx2.Response(500, text="Job 'x' is in a non-terminal state"))

    with pytest.raises(Unavailable, match="non-terminal"):
        client.delete("x")
    assert (requests[0].method, requests[0].url.path) == ("DELETE", "/api/jobs/x")


@pytest.mark.parametrize(
    ("most", "said"), [("_MAX_LOG_BYTES", "longer than"), ("_LOG_S", "took longer than")], ids=["bytes", "seconds"]
)
def test_a_log_beyond_its_limit_is_not_read_to_its_end(ray, monkeypatch, most, said):
    client, _ = ray(httpx2.Response(200, json={"logs": "x" * 10_000}))
    assert len(client.logs("x")) == 10_000

    monkeypatch.setattr(ray_jobs, most, -1.0)
    with pytest.raises(Unavailable, match=said):
        client.logs("x")


def test_a_client_that_was_closed_meanwhile_is_unavailable(ray):
    client, _ = ray(httpx2.Response(200, json={"status": "RUNNING"}))
    client.close()

    for call in (client.status, client.logs):
        with pytest.raises(Unavailable, match="closed"):
            call("x")


def test_only_living_nodes_count(ray):
    rows = [
        {"node_id": "a", "node_ip": "10.0.0.1", "is_head_node": True, "state": "ALIVE",
         "resources_total": {"CPU": 2.0, "memory": "3 GiB"}},
        {"node_id": "b", "node_ip": "10.0.0.2", "node_name": "two", "is_head_node": False, "state": "ALIVE",
         "resources_total": {"CPU": 8.0, "GPU": 1.0}},
        {"node_id": "c", "node_ip": "10.0.0.3", "state": "DEAD", "resources_total": {"CPU": 64.0}},
    ]  # fmt: skip
    client, _ = ray(listing(rows))

    assert client.nodes() == (Node(cpus=2), Node(cpus=8, gpus=1))
    assert client.machines() == (
        Machine(id="a", name="10.0.0.1", address="10.0.0.1", is_head=True, cpus=2.0, gpus=0.0),
        Machine(id="b", name="two", address="10.0.0.2", is_head=False, cpus=8.0, gpus=1.0),
    )


def listing(rows):
    return httpx2.Response(200, json={"data": {"result": {"result": rows}}})


def test_living_workers_are_counted_by_job_and_node(ray):
    places = [("job-1", "a"), ("job-1", "b"), ("job-1", "a"), ("job-2", None)]
    client, requests = ray(listing([{"ray_namespace": job_id, "node_id": node} for job_id, node in places]))

    assert client.workers() == (Workers("job-1", "a", 2), Workers("job-1", "b", 1))
    asked = requests[0].url.params
    assert asked.get_list("filter_keys") == ["state", "class_name"]
    assert asked.get_list("filter_values") == ["ALIVE", "RankActor"]


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, html="<html>please sign in</html>"),
        httpx2.Response(200, json={"status": "NAPPING", "data": {"result": {"result": [{}]}}, "detail": "x"}),
        httpx2.Response(200, json=[{"resources_total": 1}]),
        httpx2.Response(200, json="no"),
    ],
    ids=["html", "other fields", "a list", "a word"],
)
def test_an_answer_that_is_not_rays_is_unavailable(ray, answer):
    client, _ = ray(answer)
    asked = (client.version, client.live, client.machines, client.workers, lambda: client.status("x"))

    for ask in (*asked, lambda: client.logs("x")):
        with pytest.raises(Unavailable, match="http://ray:8265 gave an answer that is not Ray's"):
            ask()


@pytest.mark.parametrize("status_code", [401, 403])
def test_a_refused_token_names_the_variable_to_check(ray, status_code):
    client, _ = ray(httpx2.Response(status_code))

    with pytest.raises(Unavailable, match="WIRETUNE_RAY_TOKEN_PATH"):
        client.nodes()


def test_a_silent_server_is_unavailable_by_its_address(ray):
    client, _ = ray(httpx2.ConnectError("connection refused"))

    with pytest.raises(Unavailable, match="http://ray:8265 does not answer: connection refused"):
        client.status("x")
