"""The queue and its quotas as users see and change them, with a reconciler over an in-memory cluster."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli.main import app as cli
from api.client import Client
from api.http.app import create_app
from service.control.access.rules import LOCAL
from service.control.reconciling.assembly import assemble
from service.control.reconciling.reconciler import Reconciler
from service.control.store import Store
from service.settings import Settings
from service.wire.access import MAX_OWNER_CHARS, NewKey, Role
from tests.api.conftest import serving
from tests.support.fake_ray import FakeCluster, FakeRay

JOB = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 10}}


@pytest.fixture
def reconciler(store: Store, settings: Settings) -> Reconciler:
    cluster = FakeCluster(FakeRay(cpus=8))
    return assemble(store, settings, api_url="http://127.0.0.1:8470", cluster=cluster).reconciler


@pytest.fixture
def tick(reconciler: Reconciler, store: Store) -> Callable[[], None]:
    return lambda: reconciler.tick(store._db.now())


@pytest.fixture
def app(store: Store, reconciler: Reconciler, tick: Callable[[], None]) -> Any:
    tick()  # the cluster is known
    return create_app(store, conflicts=reconciler.conflicts, outlook=lambda: reconciler.outlook)


@pytest.fixture
def call(app: Any, store: Store) -> Iterator[Callable[..., Any]]:
    """Make a request as anna of the project red, or as whom is named."""
    with TestClient(app, raise_server_exceptions=False) as client:

        def call(
            method: str,
            path: str,
            *,
            role: Role = Role.SUBMITTER,
            owner: str = "anna",
            project: str = "red",
            **rest: Any,
        ) -> Any:
            new = NewKey(name=owner, owner=owner, role=role, project=project)
            key = store.keyring.create(new, by=LOCAL).secret
            headers = {"Authorization": f"Bearer {key}"} | rest.pop("headers", {})
            return client.request(method, path, headers=headers, **rest)

        yield call


def submitted(call: Callable[..., Any], *, workers: int = 6, priority: str = "normal", **who: Any) -> str:
    body = JOB | {"workers": {"count": workers}, "priority": priority}
    made = call("POST", "/v1/jobs", json=body, **who)
    assert made.status_code == 202, made.text
    job_id: str = made.json()["id"]
    return job_id


ADMIN = {"role": Role.ADMIN, "owner": "carl", "project": "blue"}


def test_a_queued_job_says_its_place_what_is_missing_and_behind_whom(call, tick):
    submitted(call)
    tick()
    ahead = submitted(call, workers=4, priority="high", **ADMIN)
    waiting = [submitted(call, workers=3) for _ in range(2)]
    tick()

    for job, number in zip([ahead, *waiting], (1, 2, 3), strict=True):
        seen = call("GET", f"/v1/jobs/{job}", **ADMIN).json()
        assert (seen["queue"]["place"], seen["queue"]["of"]) == (number, 3)
    name = call("GET", f"/v1/jobs/{ahead}", **ADMIN).json()["name"]
    said = call("GET", f"/v1/jobs/{waiting[0]}", **ADMIN).json()["queue"]["sentence"]
    assert said == f"2nd of 3; waits for 1 of 3 workers; behind {name} of project blue ({ahead}, priority high)"
    listed = call("GET", "/v1/jobs?state=queued").json()["jobs"]
    assert {each["id"]: each["queue"]["place"] for each in listed} == dict(zip(waiting, (2, 3), strict=True))
    assert all(ahead not in str(each) and "a job of another project (priority high)" in str(each) for each in listed)


def test_the_place_is_in_the_answer_though_the_job_is_unchanged(call, tick, store):
    submitted(call)
    tick()
    job = submitted(call)
    tick()
    known = {"If-None-Match": call("GET", f"/v1/jobs/{job}").headers["etag"]}

    assert call("GET", f"/v1/jobs/{job}", headers=known).json()["queue"]["kind"] == "room"
    store.cancel(job)
    tick()
    known = {"If-None-Match": call("GET", f"/v1/jobs/{job}").headers["etag"]}
    assert call("GET", f"/v1/jobs/{job}", headers=known).status_code == 304


def test_the_queue_is_that_of_the_caller_and_names_no_other_project(call, tick):
    submitted(call, **ADMIN)
    tick()
    hidden = submitted(call, **ADMIN)
    own = submitted(call)
    tick()

    seen = call("GET", "/v1/queue").json()
    assert [(each["job_id"], each["place"]["place"]) for each in seen["entries"]] == [(own, 1)]
    assert hidden not in str(seen) and "blue" not in str(seen)
    assert (seen["of"], seen["cpus"], seen["free_cpus"]) == (2, 8.0, 2.0)

    pages = [call("GET", f"/v1/queue?limit=1&after={after}", **ADMIN).json() for after in (0, 1)]
    assert [page["entries"][0]["job_id"] for page in pages] == [own, hidden]
    assert [page["next_after"] for page in pages] == [1, None]
    shares = {each["project"]: (each["running"], each["workers"], each["share"]) for each in pages[0]["projects"]}
    assert shares == {"blue": (1, 6, 0.75), "red": (0, 0, 0.0)}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [(Role.SUBMITTER, ["low", "normal"]), (Role.OPERATOR, ["low", "normal", "high"]),
     (Role.ADMIN, ["low", "normal", "high", "urgent"])],
)  # fmt: skip
def test_a_role_gives_the_priorities_that_are_its_own(call, store, role, allowed):
    job = submitted(call)
    for priority in ("low", "normal", "high", "urgent"):
        posted = call("POST", "/v1/jobs", role=role, json=JOB | {"priority": priority})
        checked = call("POST", "/v1/jobs:validate", role=role, json=JOB | {"priority": priority})
        cloned = call("POST", f"/v1/jobs/{job}:clone", role=role, json={"priority": priority})
        patched = call("PATCH", f"/v1/jobs/{job}", role=role, json={"priority": priority})
        codes = [each.status_code for each in (posted, checked, cloned, patched)]

        assert codes == ([202, 200, 202, 200] if priority in allowed else [403] * 4)
        if priority not in allowed:
            assert f"`priority` is {priority}; allowed to your role here, {role}: " in patched.json()["detail"]
            store.add_key("next")  # writes are in order
            refused = [each.target for each in store.keyring.audit(limit=20).entries if each.outcome == "refused"]
            assert {job, ""} <= {*refused}


def test_ones_own_job_is_cloned_with_the_priority_that_ones_role_gives_whatever_it_was_raised_to(call):
    job = submitted(call)
    call("PATCH", f"/v1/jobs/{job}", json={"priority": "urgent"}, **ADMIN)

    made = {role: call("POST", f"/v1/jobs/{job}:clone", role=role, json={}) for role in (Role.SUBMITTER, Role.OPERATOR)}
    low = call("POST", f"/v1/jobs/{job}:clone", json={"priority": "low"})

    assert {role: answer.json()["changes"] for role, answer in made.items()} == {
        role: [{"pointer": "/priority", "before": "urgent", "after": after}]
        for role, after in ((Role.SUBMITTER, "normal"), (Role.OPERATOR, "high"))
    }
    assert low.json()["job"]["priority"] == "low"


def test_a_check_says_that_ones_role_may_not_submit_the_job(call):
    def notes(role: Role) -> list[str]:
        return call("POST", "/v1/jobs:validate", role=role, json=JOB).json()["notes"]

    assert "your role here, viewer, may not create a job" in notes(Role.VIEWER)
    assert not any("your role" in note for note in notes(Role.SUBMITTER))


def test_a_check_that_a_role_refuses_names_the_field_and_is_no_entry_in_the_audit_log(call, store):
    answer = call("POST", "/v1/jobs:validate", json=JOB | {"priority": "high"})
    store.add_key("next")  # writes are in order

    assert answer.status_code == 403
    assert [(each["pointer"], each["value"]) for each in answer.json()["errors"]] == [("/priority", "high")]
    assert all(each.outcome == "done" for each in store.keyring.audit(limit=20).entries)


def test_a_job_that_the_cluster_or_a_quota_can_never_place_is_refused_at_once(call):
    too_large = call("POST", "/v1/jobs", json=JOB | {"workers": {"count": 9}})
    call("PUT", "/v1/quotas/owner/anna", json={"workers": 3}, **ADMIN)
    over_quota = call("POST", "/v1/jobs", json=JOB | {"workers": {"count": 4}})

    for answer, said in (
        (too_large, "1 to 8, all that the cluster holds"),
        (over_quota, "0 to 3, the quota of owner anna"),
    ):
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/does-not-fit")
        assert answer.json()["errors"][0]["pointer"] == "/workers/count" and said in answer.text
    assert submitted(call, workers=3)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/{first}:clone"])
def test_a_job_beyond_those_that_may_wait_is_refused_with_the_quota_that_is_full(call, path):
    path = path.format(first=submitted(call))
    call("PUT", "/v1/quotas/project/red", json={"waiting": 1}, **ADMIN)

    refused = call("POST", path, json=JOB)

    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/queue-full")
    assert "project red has as many waiting jobs as its quota allows, 1" in refused.json()["detail"]
    assert call("POST", "/v1/jobs", json=JOB, **ADMIN).status_code == 202


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/{first}:clone"])
def test_a_job_that_was_accepted_once_is_the_answer_to_its_key_whatever_a_quota_says_by_now(call, path):
    headers = {"Idempotency-Key": "once"}
    body = JOB | {"workers": {"count": 6}}
    path = path.format(first=submitted(call))
    first = call("POST", path, json=body, headers=headers)
    call("PUT", "/v1/quotas/owner/anna", json={"workers": 3}, **ADMIN)

    again = call("POST", path, json=body, headers=headers)

    assert (first.status_code, again.status_code) == (202, 202), again.text
    assert again.headers["Location"] == first.headers["Location"]


def test_a_cluster_that_grows_by_itself_takes_what_it_will_hold(store, tmp_path):
    grows = Settings(state_dir=tmp_path, cluster_nodes='[{"cpus": 4, "memory_gb": 16, "count": 5}]')
    cluster = FakeCluster(FakeRay(cpus=2))
    reconciler = assemble(store, grows, api_url="http://x", cluster=cluster).reconciler
    with TestClient(create_app(store, conflicts=reconciler.conflicts)) as client:
        client.headers["Authorization"] = f"Bearer {store.add_key('k')}"
        made, refused = (client.post("/v1/jobs", json=JOB | {"workers": {"count": n}}) for n in (20, 21))
        too_large = client.post("/v1/jobs", json=JOB | {"workers": {"count": 1, "memory_gb": 17}})
    reconciler.tick(store._db.now())

    assert (made.status_code, refused.status_code, too_large.status_code) == (202, 409, 409)
    assert too_large.json()["errors"][0]["pointer"] == "/workers/memory_gb"
    assert store.job(made.json()["id"]).state == "starting"  # Ray adds the nodes for what waits there


def test_three_owners_with_quotas_get_what_is_theirs_and_in_the_end_everything(call, tick, store):
    for owner, running in (("anna", 1), ("bert", 2), ("dora", 3)):
        answer = call("PUT", f"/v1/quotas/owner/{owner}", json={"running": running}, **ADMIN)
        assert answer.status_code == 200
    jobs = {owner: [submitted(call, workers=1, owner=owner) for _ in range(20)] for owner in ("anna", "bert", "dora")}
    at_once, ended = dict.fromkeys(jobs, 0), 0

    for _ in range(60):
        tick()
        active = {owner: [job for job in ids if store.job(job).state == "starting"] for owner, ids in jobs.items()}
        at_once = {owner: max(most, len(active[owner])) for owner, most in at_once.items()}
        for ids in active.values():
            for job in ids:
                store.cancel(job)
                store.attempts.lose(job, 1, reason="ended")
                ended += 1

    assert at_once == {"anna": 1, "bert": 2, "dora": 3}
    assert ended == 60


def test_the_command_line_shows_the_queue_and_sets_quotas_and_priorities(app, call, tick, store, monkeypatch):
    submitted(call)
    tick()
    waiting = submitted(call)
    tick()
    with serving(app) as url:
        monkeypatch.setenv("WIRETUNE_URL", url)
        monkeypatch.setenv("WIRETUNE_API_KEY", store.add_key("operator"))

        def run(*words: str) -> str:
            result = CliRunner().invoke(cli, list(words))
            assert result.exit_code == 0, result.output
            return result.output

        assert "project vision: 8 workers, 2 GPUs, 90 waiting jobs; weight 3" in run(
            *("quota", "set", "project", "vision", "--workers", "8", "--gpus", "2", "--waiting", "90", "--weight", "3")
        )
        assert "vision" in run("quota", "list") and "any" in run("quota", "list")
        assert "project vision: 8 workers, 90 waiting jobs; weight 5" in run(
            *("quota", "set", "project", "vision", "--gpus", "none", "--weight", "5")
        )
        assert "removed the quota of project vision" in run("quota", "delete", "project", "vision")
        shown = run("queue")
        assert "1 wait; free are 2 of 8 CPUs" in shown and waiting in shown
        assert "1st of 1; waits for 4 of 6 workers" in shown
        run("priority", waiting, "urgent")
        assert "1st of 1; waits for 4 of 6 workers" in run("show", waiting)
    assert store.job(waiting).priority == "urgent"


def test_an_owner_that_an_issuer_names_with_slashes_and_at_length_is_a_filter_and_has_a_quota(call):
    owner = "oidc:repo:org/app:ref:refs/heads/".ljust(MAX_OWNER_CHARS, "x")
    path = f"/v1/quotas/owner/{quote(owner, safe='')}"

    assert call("PUT", path, json={"workers": 3}, **ADMIN).json()["name"] == owner
    assert call("GET", "/v1/jobs", params={"owner": owner}, **ADMIN).json()["jobs"] == []
    assert call("GET", "/v1/audit", params={"name": owner}, **ADMIN).json()["entries"] == []
    told = call("GET", "/v1/audit", params={"target": f"owner {owner}"}, **ADMIN).json()
    assert [each["action"] for each in told["entries"]] == ["setQuota"]
    assert call("DELETE", path, **ADMIN).status_code == 204


def test_the_client_sets_lists_and_removes_quotas(app, store):
    with serving(app) as url, Client(url, store.add_key("operator")) as client:
        made = client.set_quota("owner", "oidc:a|b@c", workers=3)

        assert client.quotas() == (made,)
        assert (made.name, made.workers, made.gpus) == ("oidc:a|b@c", 3, None)
        client.delete_quota("owner", "oidc:a|b@c")
        assert client.quotas() == () and client.queue().of == 0


def test_a_patch_changes_only_the_limits_that_it_names_and_makes_a_quota_where_there_is_none(app, store):
    with serving(app) as url, Client(url, store.add_key("operator")) as client:
        made = client.edit_quota("project", "vision", {"workers": 64, "gpus": 8})
        assert (made.workers, made.gpus, made.running, made.weight) == (64, 8, None, 1)

        found = client.edit_quota("project", "vision", {"weight": 3, "gpus": None})

        assert (found.workers, found.gpus, found.running, found.weight) == (64, None, None, 3)
        assert client.quotas() == (found,)
