"""Every operation of the OpenAPI document x every role x every ownership of the job or key: nothing leaks."""

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from fastapi import Depends
from fastapi.testclient import TestClient

from api.http.app import OPERATIONS, create_app
from api.http.auth import require_key
from api.http.examples import EXAMPLE_JOB
from service.code_package import Package, of_zip
from service.control.access.rules import LOCAL, Action, Owned, Principal, may
from service.control.store import Store
from service.job.spec import JobSpec
from service.wire.access import NewKey, Role
from service.wire.records import AttemptFinished, Batch

#: Without a key: a code, or the token of an attempt, is given instead; or nothing.
OPEN = {"health", "ready", "createSession", "getAttempt", "addRecords", "renewLease"}
ACTIONS = {each.id: each.action for each in OPERATIONS if each.action is not None}
NAMES = {"own": ("anna", "red"), "project": ("bert", "red"), "elsewhere": ("carl", "blue")}
KINDS = ("job", "key", "code")
#: What the examples in the document make.
MADE = {"createKey": Owned("ci", "default", Role.SUBMITTER)}
MISSING = {kind: f"{kind}-none" for kind in KINDS}


class Operation(NamedTuple):
    id: str
    method: str
    path: str
    body: Any


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            example = content.get("application/json", next(iter(content.values()), {})).get("example")
            body = new_package("anna").content if "application/zip" in content else example
            yield Operation(operation["operationId"], method, path, body)


@pytest.fixture
def api(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(store, user_code=True), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def listed(api: TestClient) -> list[Operation]:
    return list(operations(api.get("/openapi.json").json()))


def new_job(store: Store, owner: str, project: str) -> str:
    """A finished job, with a log's absence and a name that must not be seen elsewhere."""
    spec = JobSpec.model_validate(EXAMPLE_JOB | {"name": f"name-of-{owner}", "labels": {"of": f"label-of-{owner}"}})
    job_id = store.add_job(spec, by=Principal(name=owner, role=Role.SUBMITTER, project=project))[0].id
    number = store.attempts.begin(job_id).attempt
    ended = AttemptFinished(outcome="failed", reason=f"reason-of-{owner}")
    store.attempts.ingest(job_id, number, Batch(stream="driver", sequence=1, records=(ended,)))
    return job_id


def new_key(store: Store, owner: str, project: str, role: Role = Role.VIEWER) -> tuple[str, str]:
    issued = store.keyring.create(NewKey(name=f"name-of-{owner}", owner=owner, project=project, role=role), by=LOCAL)
    return issued.key.id, issued.secret


def new_package(owner: str) -> Package:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("train.py", f"print('{owner}')")
    return of_zip(out)


def new_code(store: Store, owner: str, project: str) -> str:
    by = Principal(name=owner, role=Role.SUBMITTER, project=project)
    return store.code.add(new_package(owner), by=by).digest


def test_every_operation_but_those_without_a_key_says_what_a_caller_does(listed: list[Operation]) -> None:
    assert {each.id for each in listed} - OPEN == set(ACTIONS)


def test_a_route_that_declares_no_operation_is_nobodys(store: Store) -> None:
    app = create_app(store)
    app.add_api_route("/v1/undeclared", lambda: None, dependencies=[Depends(require_key)])

    answer = TestClient(app).get("/v1/undeclared", headers={"Authorization": f"Bearer {store.add_key('admin')}"})

    assert answer.status_code == 403


@pytest.mark.parametrize("role", Role)
def test_no_role_reaches_or_sees_what_is_not_its_own(
    store: Store, api: TestClient, listed: list[Operation], role: Role
) -> None:
    caller = Principal(name="anna", role=role, project="red")
    jobs = {whose: new_job(store, *who) for whose, who in NAMES.items()}
    new_code(store, *NAMES["elsewhere"])
    names = [f"{what}-of-carl" for what in ("name", "label", "reason")]
    hidden = [jobs["elsewhere"], new_package("carl").digest, *names]
    faults, asked = [], 0
    for operation in listed:
        if operation.id in OPEN:
            continue
        kind = next((kind for kind in KINDS if f"{{{kind}}}" in operation.path), None)
        for whose in [*NAMES, "nobody"] if kind else ["own"]:
            owner, project = NAMES.get(whose, ("", ""))
            if whose == "nobody":
                target = MISSING[kind or "job"]
            elif kind == "code":  # it is deleted; keys end by being asked for
                target = new_code(store, owner, project)
            else:  # jobs refuse the next verb
                target = jobs[whose] if kind == "job" else new_key(store, owner, project)[0]
            _, secret = new_key(store, "anna", "red", role)
            answer = ask(api, operation, secret, target)
            asked += 1
            what = Owned(owner, project) if kind and whose != "nobody" else None
            if not fits(answer, operation, caller, kind, target, what, exists=whose != "nobody"):
                faults.append((operation.id, whose, answer.status_code, answer.text[:200]))
            if role in (Role.VIEWER, Role.SUBMITTER):
                told = answer.text.replace(target, "") if whose == "elsewhere" else answer.text
                faults += [(operation.id, whose, word) for word in hidden if word in told]

    assert not faults
    assert asked > 80


def ask(api: TestClient, operation: Operation, secret: str, target: str) -> Any:
    named = {"kind": "project", "name": "loss", "path": "attempt-1/x", "trial": f"{target}.tuned.0"}
    path = operation.path.format(job=target, key=target, code=target, **named)
    is_zip = isinstance(operation.body, bytes)
    content = operation.body if is_zip or operation.body is None else json.dumps(operation.body)
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": f"application/{'zip' if is_zip else 'json'}"}
    return api.request(operation.method, path, headers=headers, content=content)


def fits(
    answer: Any,
    operation: Operation,
    caller: Principal,
    kind: str | None,
    target: str,
    what: Owned | None,
    *,
    exists: bool,
) -> bool:
    """Return whether the answer is that of the rules: hidden things are as if they were not there."""
    action = ACTIONS[operation.id]
    reading = Action.READ_KEY if kind == "key" else Action.READ
    if not exists or (what is not None and not may(caller, reading, what)):
        return answer.status_code == 404 and answer.json()["detail"] == f"there is no {kind} `{target}`"
    if not may(caller, action, MADE.get(operation.id, what)):
        return answer.status_code == 403
    is_hidden = answer.status_code == 404 and answer.json()["detail"].startswith(f"there is no {kind} ")
    return answer.status_code < 500 and answer.status_code not in (401, 403, 422) and not is_hidden


def test_a_refusal_by_role_is_in_the_audit_log(store: Store, api: TestClient) -> None:
    job_id = new_job(store, *NAMES["project"])
    key_id, secret = new_key(store, "anna", "red")

    refused = api.post(f"/v1/jobs/{job_id}:cancel", headers={"Authorization": f"Bearer {secret}"})
    entry = store.keyring.create(NewKey(name="x"), by=LOCAL) and store.keyring.audit(limit=2).entries[1]  # in order

    assert refused.json()["type"] == "/problems/forbidden"
    assert (entry.action, entry.target, entry.key, entry.outcome) == ("cancelJob", job_id, key_id, "refused")
