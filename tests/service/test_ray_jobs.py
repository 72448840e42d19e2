"""Ray's answers are translated into our types."""

import json

import httpx2
import pytest

from service.control.queue.capacity import Node
from service.control.ray_cluster import ray_jobs
from service.control.ray_cluster.ray_jobs import Machine, RayJobs, RayStatus, Workers
from service.errors import Unavailable


@pytest.fixture
def ray_of():
    """Return a client whose server answers each request by `handle`, and the requests it got."""
    clients = []

    def ray_of(handle):
        requests = []

        def note(request):
            requests.append(request)
            return handle(request)

        clients.append(RayJobs("http://ray:8265", "secret", transport=httpx2.MockTransport(note)))
        return clients[-1], requests

    yield ray_of
    for client in clients:
        client.close()


@pytest.fixture
def ray(ray_of):
    """Return a client whose server gives one answer, and the requests it got."""

    def ray(answer):
        def handle(_request):
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ray_of(handle)

    return ray


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
    assert list(client.log("x")) == []
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


@pytest.fixture
def driver(ray_of):
    """Return a client whose server has a driver on node `a1` that gives `answer` for its log, and its requests."""

    def driver(answer, *, node="a1"):
        def handle(request):
            is_log = request.url.path == "/api/v0/logs/file"
            return answer if is_log else httpx2.Response(200, json={"status": "RUNNING", "driver_node_id": node})

        return ray_of(handle)

    return driver


@pytest.mark.parametrize(("lines", "asked"), [(None, "-1"), (25, "25")])
def test_a_log_is_its_bytes_in_pieces_from_the_node_of_its_driver(driver, lines, asked):
    client, requests = driver(httpx2.Response(200, content=iter([b"one \xff\n", b"two\n"])))

    assert list(client.log("x", lines=lines)) == [b"one \xff\n", b"two\n"]
    query = requests[-1].url.params
    assert (query["node_id"], query["filename"], query["lines"]) == ("a1", "job-driver-x.log", asked)


def test_a_driver_that_has_no_node_or_no_file_yet_has_printed_nothing(driver):
    no_file = httpx2.Response(500, text="A file is not found at: /tmp/ray/session/logs/job-driver-x.log")

    for client, _ in (driver(httpx2.Response(200, content=b"of another"), node=None), driver(no_file)):
        assert list(client.log("x")) == []


def test_a_log_on_a_node_that_is_gone_says_so(driver):
    client, _ = driver(httpx2.Response(500, text="Agent for node id: a1 doesn't exist."))

    with pytest.raises(Unavailable, match="Agent for node id: a1"):
        list(client.log("x"))


def test_a_log_that_takes_too_long_is_not_read_to_its_end(driver, monkeypatch):
    client, _ = driver(httpx2.Response(200, content=iter([b"one\n", b"two\n"])))
    monkeypatch.setattr(ray_jobs, "_LOG_S", -1.0)

    with pytest.raises(Unavailable, match="took longer than"):
        list(client.log("x"))


def test_a_client_that_was_closed_meanwhile_is_unavailable(ray):
    client, _ = ray(httpx2.Response(200, json={"status": "RUNNING"}))
    client.close()

    for call in (client.status, lambda name: list(client.log(name))):
        with pytest.raises(Unavailable, match="closed"):
            call("x")


def test_only_living_nodes_count(ray):
    rows = [
        {"node_id": "a", "node_ip": "10.0.0.1", "is_head_node": True, "state": "ALIVE",
         "resources_total": {"CPU": 2.0, "memory": "3 GiB"}},
        {"node_id": "b", "node_ip": "10.0.0.2", "node_name": "two", "is_head_node": False, "state": "ALIVE",
         "resources_total": {"CPU": 8.0, "GPU": 1.0, "memory": 64e9, "accelerator_type:A100": 1.0}},
        {"node_id": "c", "node_ip": "10.0.0.3", "state": "DEAD", "resources_total": {"CPU": 64.0}},
    ]  # fmt: skip
    client, _ = ray(listing(rows))

    a, b = client.machines()
    assert a == Machine("a", "10.0.0.1", "10.0.0.1", is_head=True, cpus=2.0, gpus=0.0, memory_gb=a.memory_gb)
    assert a.memory_gb == pytest.approx(3 * 1.024**3, rel=1e-3) and a.memory_gb < 3 * 1.024**3  # text is rounded
    assert b == Machine("b", "two", "10.0.0.2", is_head=False, cpus=8.0, gpus=1.0, memory_gb=64.0, accelerator="A100")
    assert client.nodes() == (
        Node(cpus=2, memory_gb=a.memory_gb, accelerator=""),
        Node(cpus=8, gpus=1, memory_gb=64, accelerator="A100"),
    )


def test_a_node_of_which_ray_tells_no_memory_is_not_judged_by_it(ray):
    row = {"node_id": "a", "node_ip": "10.0.0.1", "state": "ALIVE", "resources_total": {"CPU": 2.0}}
    client, _ = ray(listing([row]))

    assert client.nodes() == (Node(cpus=2, accelerator=""),)


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

    for ask in (*asked, lambda: list(client.log("x"))):
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
