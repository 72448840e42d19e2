"""Keys over HTTP and from a terminal, rate limits, and signing in to the page."""

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli import access_commands, main, terminal
from api.client import Client
from api.failures import ApiError
from api.http.app import create_app
from api.http.rate_limits import FAILURES_PER_MINUTE
from api.local_service import Server
from service.control.access.rules import LOCAL
from service.control.store import Store
from service.wire.access import NewKey, Role
from tests.api.conftest import Reporting
from tests.api.dashboard.browser import Tab

JOB_ID = f"job-{0:024x}"
OURS = {"Sec-Fetch-Site": "same-origin"}


def test_a_key_is_made_listed_rotated_and_revoked(http: TestClient) -> None:
    made = http.post("/v1/keys", json={"name": "ci", "role": "viewer", "project": "red"})
    key = made.json()["key"]
    rotated = http.post(f"/v1/keys/{key['id']}:rotate").json()
    revoked = http.post(f"/v1/keys/{key['id']}:revoke").json()

    assert (made.status_code, made.headers["location"]) == (201, f"/v1/keys/{key['id']}")
    assert (key["owner"], key["role"], key["project"], key["created_by"]) == ("ci", "viewer", "red", "test")
    assert rotated["secret"] != made.json()["secret"]
    assert revoked["revoked_at"] is not None
    assert http.get(f"/v1/keys/{key['id']}").json() == revoked
    assert [each["name"] for each in http.get("/v1/keys").json()] == ["test", "ci"]
    assert "secret" not in http.get("/v1/keys").text


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/name"),
        ({"name": "-rf"}, "/name"),
        ({"name": "a", "owner": "*"}, "/owner"),
        ({"name": "a", "owner": "x" * 301}, "/owner"),
        ({"name": "a", "role": "boss"}, "/role"),
        ({"name": "a", "project": "x" * 81}, "/project"),
        ({"name": "a", "expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ({"name": "a", "expires_at": "2990-01-01T00:00:00"}, "/expires_at"),
        ({"name": "a", "digest": "x"}, "/digest"),
    ],
)
def test_a_key_that_cannot_be_is_refused_with_its_pointer(http: TestClient, body: dict[str, Any], pointer: str) -> None:
    answer = http.post("/v1/keys", json=body)

    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_a_caller_is_told_who_he_is(http: TestClient, store: Store) -> None:
    issued = store.keyring.create(NewKey(name="ci", owner="anna", role=Role.VIEWER), by=LOCAL)

    me = http.get("/v1/me", headers={"Authorization": f"Bearer {issued.secret}"}).json()

    may = ["read", "see this key", "change this key", "create keys of their own"]
    assert me.pop("release")
    assert me == {"name": "anna", "role": "viewer", "project": "default", "key": issued.key.id, "may": may}


def test_wrong_keys_of_one_address_are_told_to_wait_and_a_right_one_from_there_is_let_in(
    anonymous: TestClient, key: str
) -> None:
    def status(given: str) -> int:
        return anonymous.get("/v1/jobs", headers={"Authorization": f"Bearer {given}"}).status_code

    answers = [status(f"wt_{number}") for number in range(FAILURES_PER_MINUTE)]
    last = anonymous.get("/v1/jobs", headers={"Authorization": "Bearer wt_another"})

    assert set(answers) == {401}
    assert (last.status_code, last.json()["type"]) == (429, "/problems/too-many-requests")
    assert 1 <= int(last.headers["retry-after"]) <= 60
    assert status(key) == 200


@pytest.mark.parametrize(
    ("host", "kept"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:DB8::1", "2001:db8::1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("fe80::1%" + "x" * 9000, "fe80::1"),
        ("x" * 16_000, "unknown"),
    ],
)
def test_the_audit_log_keeps_a_callers_address_and_no_other_text(store: Store, key: str, host: str, kept: str) -> None:
    api = TestClient(create_app(store), client=(host, 1))

    api.post("/v1/keys", json={"name": "ci"}, headers={"Authorization": f"Bearer {key}"})

    [entry] = store.keyring.audit(limit=1).entries
    assert (entry.action, entry.address) == ("createKey", kept)


def test_a_key_has_a_limit_of_its_own(store: Store) -> None:
    store.settings = store.settings.model_copy(update={"requests_per_minute": 3})
    api = TestClient(create_app(store))
    one, two = ({"Authorization": f"Bearer {store.add_key(name)}"} for name in ("one", "two"))

    answers = [api.get("/v1/jobs", headers=one) for _ in range(5)]

    assert [answer.status_code for answer in answers][-1] == 429  # a window may end between them
    assert sum(answer.status_code == 200 for answer in answers) >= 3
    assert "retry-after" in answers[-1].headers
    assert api.get("/v1/jobs", headers=two).status_code == 200


def sign_in(anonymous: TestClient, key: str) -> Any:
    code = anonymous.post("/v1/sign-in-codes", headers={"Authorization": f"Bearer {key}"}).json()["code"]
    return anonymous.post("/v1/sessions", json={"code": code}, headers=OURS)


def test_a_code_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(anonymous: TestClient, key: str) -> None:
    opened = sign_in(anonymous, key)
    seen = anonymous.get("/v1/me")

    assert opened.status_code == 204
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie and "Secure" not in cookie
    assert key not in cookie
    assert seen.json()["name"] == "test"


def test_over_tls_the_cookie_is_for_tls_alone(store: Store, key: str) -> None:
    secure = TestClient(create_app(store), base_url="https://tune.example")

    assert "Secure" in sign_in(secure, key).headers["set-cookie"]
    assert secure.get("/v1/me").status_code == 200


def test_a_code_is_good_once_and_a_wrong_one_counts_as_a_wrong_key(anonymous: TestClient, key: str) -> None:
    code = anonymous.post("/v1/sign-in-codes", headers={"Authorization": f"Bearer {key}"}).json()["code"]

    answers = [
        anonymous.post("/v1/sessions", json={"code": code}, headers=OURS) for _ in range(FAILURES_PER_MINUTE + 2)
    ]

    assert [answer.status_code for answer in answers] == [204, *[401] * FAILURES_PER_MINUTE, 429]


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "http://testserver"}, True),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://testserver:3000"}, False),  # another port of this machine
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({}, False),
    ],
)
def test_a_cookie_changes_nothing_for_another_sites_page(
    anonymous: TestClient, key: str, store: Store, headers: dict[str, str], passes: bool
) -> None:
    sign_in(anonymous, key)

    answer = anonymous.post("/v1/keys", json={"name": "stolen"}, headers=headers)

    assert answer.status_code == (201 if passes else 403), answer.text
    assert ("stolen" in [view.name for view in store.keyring.list(by=LOCAL)]) is passes


@pytest.mark.parametrize("host", ["", "a:bc", "[", "[::1]", "a:99999999", "a:²", "a;b=c:1"])
def test_a_host_that_makes_no_sense_is_answered(anonymous: TestClient, key: str, host: str) -> None:
    headers = {"Host": host.encode(), "Origin": f"http://{host}".encode(), "Cookie": b"wiretune-80=x"}
    signed = headers | {"Authorization": f"Bearer {key}".encode()}
    code = anonymous.post("/v1/sign-in-codes", headers=signed).json()["code"]

    assert anonymous.get("/v1/jobs", headers=headers).status_code == 401
    assert anonymous.post("/v1/sessions", json={"code": code}, headers=headers).status_code in (204, 403)


def test_another_sites_page_signs_nobody_in(anonymous: TestClient, key: str) -> None:
    code = anonymous.post("/v1/sign-in-codes", headers={"Authorization": f"Bearer {key}"}).json()["code"]

    answer = anonymous.post("/v1/sessions", json={"code": code}, headers={"Sec-Fetch-Site": "cross-site"})

    assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_signing_out_ends_the_session_on_the_service_too(anonymous: TestClient, key: str) -> None:
    sign_in(anonymous, key)
    kept = dict(anonymous.cookies)

    left = anonymous.delete("/v1/sessions", headers=OURS)
    anonymous.cookies.update(kept)

    assert left.status_code == 204
    assert anonymous.get("/v1/me").status_code == 401


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main.app, list(arguments))
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_keys_from_a_terminal(at: str) -> None:
    secret = run("keys", "create", "ci", "--owner", "anna", "--role", "viewer", "--days", "7").strip()
    with Client(at, secret) as anna:
        key_id = anna.me().key
        assert key_id is not None
        with pytest.raises(ApiError, match="viewer, may create only keys of your own: owner `anna`"):
            anna.create_key("more", role=Role.VIEWER)
        assert "anna, viewer in project default" in run("me", "--key", secret)
        rotated = json.loads(run("keys", "rotate", key_id, "--key", secret, "--json"))["secret"]
        with pytest.raises(ApiError, match="401"):
            anna.me()
    old, said = rotated, CliRunner().invoke(main.app, ["keys", "rotate", key_id, "--key", rotated, "--grace", "60"])
    rotated = said.stdout.strip()
    assert "the old secret is accepted until" in said.stderr
    for secret_in_force in (old, rotated):
        with Client(at, secret_in_force) as anna:
            assert anna.me().key == key_id
    listed = run("keys", "list")
    revoked = run("keys", "revoke", key_id)
    logged = run("audit")

    assert rotated not in listed and "until 2" in listed
    assert f"{key_id} (ci) is revoked" in revoked
    assert f"revokeKey {key_id}: done, by test from 127.0.0.1" in logged.splitlines()[0]
    assert secret not in logged and rotated not in logged


@pytest.fixture
def in_vienna(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_vienna")
def test_moments_are_those_of_this_machines_clock_and_name_its_zone(at: str, reporting: Reporting) -> None:
    run("keys", "create", "ci", "--days", "7")
    last = json.loads(run("audit", "--limit", "1", "--json"))["entries"][0]
    created_at = datetime.fromisoformat(last["at"])

    assert f"{created_at + timedelta(hours=1):%Y-%m-%d %H:%M:%S} CET" in run("audit")
    assert re.search(r"\d\d:\d\d CET .* until 2\d{3}-\d\d-\d\d CET", " ".join(run("keys", "list").split()))
    assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d CET", run("show", reporting.job_id))


def test_a_rotated_secret_is_shown_where_it_cannot_be_kept(
    live_url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(terminal, "running_server", lambda settings: Server(live_url, key))
    monkeypatch.setattr(access_commands, "write_private", refuse)
    with Client(live_url, key) as client:
        key_id = client.me().key
    assert key_id is not None

    done = CliRunner().invoke(main.app, ["keys", "rotate", key_id])

    assert done.exit_code == 1 and "api_key keeps the old one: No space left on device" in done.stderr
    with Client(live_url, done.stdout.strip()) as client:
        assert client.me().key == key_id


def test_a_page_of_the_audit_log_says_where_the_next_begins(at: str) -> None:
    run("keys", "create", "ci")

    page = json.loads(run("audit", "--limit", "1", "--json"))

    assert [each["action"] for each in page["entries"]] == ["createKey"]
    assert (
        json.loads(run("audit", "--cursor", str(page["next_cursor"]), "--json"))["entries"][0]["action"] == "createKey"
    )


def test_the_audit_log_is_asked_by_who_what_about_what_and_how_it_ended(at: str) -> None:
    run("keys", "create", "ci")
    made = json.loads(run("keys", "list", "--json"))["keys"][-1]["id"]
    run("keys", "revoke", made)

    def actions(*options: str) -> list[str]:
        return [each["action"] for each in json.loads(run("audit", "--json", *options))["entries"]]

    assert actions("--target", made, "--name", "test") == ["revokeKey", "createKey"]
    assert actions("--target", made, "--action", "createKey", "--outcome", "done") == ["createKey"]
    assert actions("--outcome", "refused") == actions("--name", "nobody") == []


def test_the_link_to_the_page_holds_no_key(at: str, key: str) -> None:
    links = [run("page").strip(), run("page", JOB_ID).strip()]

    assert re.fullmatch(re.escape(at) + r"/#code=[\w-]{32}", links[0])
    assert re.fullmatch(re.escape(f"{at}/?job={JOB_ID}#code=") + r"[\w-]{32}", links[1])
    assert not [link for link in links if key in link]


@pytest.mark.long
def test_a_person_signs_in_with_the_link_comes_back_and_signs_out(
    browser: Tab, live_url: str, client: Client, key: str
) -> None:
    tab = browser
    link = client.sign_in_link()
    tab.open(link)
    tab.wait_for("document.querySelector('.empty') !== null")
    assert tab.value_of("location.href") == f"{live_url}/"
    assert tab.value_of("document.cookie + sessionStorage.length + localStorage.length") == "00"

    tab.open("about:blank")
    tab.wait_for("location.href === 'about:blank'")
    tab.open(link)  # used, but there is a session
    tab.wait_for("document.querySelector('.empty') !== null")

    tab.value_of("document.getElementById('sign-out').click()")
    tab.wait_for("document.getElementById('key') !== null")
    tab.value_of(f"document.getElementById('key').value = '{key}x'")
    tab.value_of("document.querySelector('form button').click()")
    tab.wait_for("document.querySelector('form .refused').textContent.includes('not known')")
    tab.value_of(f"document.getElementById('key').value = '{key}'")
    tab.value_of("document.querySelector('form button').click()")
    tab.wait_for("document.querySelector('.empty') !== null")
