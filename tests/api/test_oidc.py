"""Tokens of a real OpenID Connect issuer, over HTTP on this machine."""

import base64
import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from api.http import oidc
from api.http.app import create_app
from api.http.oidc import MAX_AGE_S, MIN_AGE_S, REFRESH_S, Issuer
from api.http.rate_limits import FAILURES_PER_MINUTE
from service.control.processes import wait_until
from service.control.store import Store
from service.errors import Unauthorized, Unavailable
from service.settings import Settings
from service.wire.access import MAX_OWNER_CHARS, NAME_PATTERN
from tests.support.patience import PATIENCE_S

RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
STRANGER = RSAKey.generate_key(2048, {"kid": "rsa"})
A_TRY = {"state": "x", "nonce": "n", "verifier": "v", "to": "/", "exp": 4_000_000_000}
ROLES = {"staff": "submitter", "root": "admin", "guests": "viewer"}


class Server(ThreadingHTTPServer):
    """The issuer's two documents, and how often they were asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Documents)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.keys: list[Any] = [RSA, EC]
        self.says = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize?kind=page",
            "token_endpoint": f"{self.url}/token",
        }
        self.begun: dict[str, str] = {}  # the parameters of the sign-in that a browser came with
        self.claims: dict[str, Any] = {}  # of the next ID token
        self.exchanged: list[dict[str, Any]] = []
        self.asked = 0
        self.goes_on = threading.Event()  # no answer before this is set
        self.goes_on.set()


class _Documents(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        is_keys = self.path == "/keys"
        self.server.asked += is_keys
        self.server.goes_on.wait(PATIENCE_S)
        content = {"keys": [key.as_dict(private=False) for key in self.server.keys]} if is_keys else self.server.says
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def do_POST(self) -> None:
        """Exchange the code, as the issuer does for the client that proves that it began the sign-in."""
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        self.server.exchanged.append({**form, "authorization": self.headers["Authorization"]})
        begun = self.server.begun
        proves = base64.urlsafe_b64encode(digest).decode().rstrip("=") == begun["code_challenge"]
        is_known = (form["code"], form["redirect_uri"]) == ("a-code", begun["redirect_uri"])
        claims = {"aud": "page", "nonce": begun["nonce"]} | self.server.claims
        content = {"id_token": token(self.server, **claims)} if proves and is_known else {"error": "invalid_grant"}
        self.send_response(200 if "id_token" in content else 400)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def settings(settings: Settings, server: Server) -> Settings:
    named = {"oidc_issuer": server.url, "oidc_audience": "wiretune", "oidc_roles": ROLES}
    return Settings(**named, oidc_project_claim="team")  # type: ignore[arg-type]


@pytest.fixture
def ask(store: Store) -> Callable[[str], Any]:
    api = TestClient(create_app(store))
    return lambda token: api.get("/v1/me", headers={"Authorization": f"Bearer {token}"})


def token(server: Server, key: Any = RSA, algorithm: str = "RS256", **changes: Any) -> str:
    claims = {
        "iss": server.url, "aud": "wiretune", "sub": "anna", "exp": int(time.time()) + 300, "groups": ["staff"],
        "team": "red",
    }  # fmt: skip
    given = {name: value for name, value in (claims | changes).items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": key.kid or "x"}, given, key, algorithms=[algorithm])


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (EC, "ES256")])
def test_a_token_brings_its_subject_with_role_and_project(
    server: Server, ask: Callable[[str], Any], key: Any, algorithm: str
) -> None:
    answer = ask(token(server, key, algorithm, aud=["another", "wiretune"], groups=["guests", "staff", "cooks"]))

    me = answer.json()
    assert me.pop("may") and me.pop("release")
    assert me == {"name": "oidc:anna", "role": "submitter", "project": "red", "key": None}


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "another"},
        {"aud": None},
        {"exp": 1},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": 4_000_000_000},
        {"sub": None},
        {"key": STRANGER},
        {"key": RSA, "algorithm": "RS512"},
        {"key": OctKey.import_key("secret" * 8, {"kid": "rsa"}), "algorithm": "HS256"},
    ],
    ids=lambda claims: "-".join(name if name == "key" else f"{name}={value}" for name, value in claims.items()),
)
def test_a_token_that_is_not_good_here_is_refused(
    server: Server, ask: Callable[[str], Any], changes: dict[str, Any]
) -> None:
    answer = ask(token(server, **changes))

    assert (answer.status_code, answer.json()["type"]) == (401, "/problems/unauthorized")


def test_a_token_without_a_signature_is_refused(server: Server, ask: Callable[[str], Any]) -> None:
    head, claims, _ = token(server).split(".")
    unsigned = "eyJhbGciOiJub25lIn0"  # {"alg":"none"}

    answers = [ask(text) for text in (f"{unsigned}.{claims}.", f"{head}.{claims}.", f"{head}.{claims}", "a.b.c", "x")]

    assert {answer.status_code for answer in answers} == {401}


@pytest.mark.parametrize(
    "head",
    [
        *(b"[" * 60_000, b"[]", b"{}", b"1", b"\xff"),
        b'{"alg": []}',
        b'{"alg": "RS256", "kid": {}}',
        b'{"alg": "RS256", "kid": "ec"}',
        b'{"alg": "RS256", "crit": ["x"]}',
        b'{"alg": "RS256", "b64": false}',
        b'{"alg": "RS256", "jku": "http://127.0.0.1:9/"}',
    ],
    ids=lambda head: str(head[:30]),
)
def test_a_token_whose_head_makes_no_sense_is_refused(server: Server, ask: Callable[[str], Any], head: bytes) -> None:
    _, claims, signature = token(server).split(".")

    answer = ask(f"{base64.urlsafe_b64encode(head).decode().rstrip('=')}.{claims}.{signature}")

    assert answer.status_code == 401, answer.text


@pytest.mark.parametrize("changes", [{"groups": ["cooks"]}, {"groups": None}, {"team": None}, {"team": 7}], ids=str)
def test_a_subject_without_a_role_or_a_project_may_do_nothing(
    server: Server, ask: Callable[[str], Any], changes: dict[str, Any]
) -> None:
    answer = ask(token(server, **changes))

    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden")


@pytest.mark.parametrize("team", ["../../x", "a/b", "red team", "red\n", "r" * 81])
def test_a_project_that_no_key_could_have_is_refused_by_claim_and_value(
    server: Server, ask: Callable[[str], Any], team: str
) -> None:
    answer = ask(token(server, team=team))

    assert answer.status_code == 403
    assert answer.json()["detail"] == f"`team` of this token is {team!r}; a project must match {NAME_PATTERN}"


def test_a_subject_that_is_longer_than_owners_may_be_is_refused(server: Server, ask: Callable[[str], Any]) -> None:
    longest = "s" * (MAX_OWNER_CHARS - len("oidc:"))

    assert ask(token(server, sub=longest)).json()["name"] == f"oidc:{longest}"
    answer = ask(token(server, sub=f"{longest}s"))
    assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden")


def test_keys_of_the_service_are_good_beside_tokens(store: Store, ask: Callable[[str], Any], server: Server) -> None:
    assert ask(store.add_key("test")).json()["name"] == "test"
    assert server.asked == 0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issuer(settings: Settings, clock: Clock) -> Issuer:
    return Issuer(settings, clock=clock)


def test_the_issuer_is_asked_once_for_many_tokens_and_again_after_a_while(
    server: Server, issuer: Issuer, clock: Clock
) -> None:
    for _ in range(20):
        issuer.principal(token(server))
    assert server.asked == 1

    clock.now += REFRESH_S
    issuer.principal(token(server))

    assert server.asked == 2


def test_a_new_key_of_the_issuer_is_fetched_and_a_flood_of_unknown_ones_is_not(
    server: Server, issuer: Issuer, clock: Clock
) -> None:
    issuer.principal(token(server))
    fresh = RSAKey.generate_key(2048, {"kid": "new"})
    server.keys.append(fresh)
    clock.now += MIN_AGE_S
    assert issuer.principal(token(server, fresh)).name == "oidc:anna"

    unknown = RSAKey.generate_key(2048, {"kid": "unknown"})
    for _ in range(20):
        with pytest.raises(Unauthorized):
            issuer.principal(token(server, unknown))

    assert server.asked == 2


def test_an_issuer_that_hangs_keeps_one_caller_waiting_and_no_other(
    server: Server, issuer: Issuer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "_TIMEOUT_S", PATIENCE_S)
    issuer.principal(token(server))
    server.goes_on.clear()
    clock.now += REFRESH_S
    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(issuer.principal, token(server))
        try:
            assert wait_until(lambda: issuer._asked_at == clock.now, timeout_s=PATIENCE_S)
            assert pool.submit(issuer.principal, token(server)).result(PATIENCE_S).name == "oidc:anna"
            assert not asking.done()
            fresh = RSAKey.generate_key(2048, {"kid": "new"})
            with pytest.raises(Unavailable, match="are being fetched"):
                issuer.principal(token(server, fresh))
        finally:
            server.goes_on.set()
        assert asking.result(PATIENCE_S).name == "oidc:anna"


def test_the_keys_outlive_an_outage_of_the_issuer_for_an_hour(server: Server, issuer: Issuer, clock: Clock) -> None:
    issuer.principal(token(server))
    server.says["issuer"] = "https://somebody.else"

    clock.now = MAX_AGE_S - 1
    assert issuer.principal(token(server)).name == "oidc:anna"

    clock.now = MAX_AGE_S + MIN_AGE_S
    with pytest.raises(Unavailable, match="calls itself"):
        issuer.principal(token(server))


@pytest.fixture
def browser(store: Store, settings: Settings) -> TestClient:
    """A browser at a page whose operator has a client at the issuer."""
    named = {"oidc_client_id": "page", "oidc_client_secret": "s:3cret"}
    store.settings = settings.model_copy(update=Settings(**settings.model_dump() | named).model_dump())
    return TestClient(create_app(store), follow_redirects=False)


def begin(browser: TestClient, server: Server, to: str = "/") -> str:
    """Begin a sign-in; return the state that the issuer sends back."""
    asked = urlsplit(browser.get("/v1/sign-in", params={"to": to}).headers["location"])
    server.begun = {name: value for name, (value,) in parse_qs(asked.query).items()}
    return server.begun["state"]


def end(browser: TestClient, state: str, **changes: str) -> Any:
    return browser.get("/v1/sign-in/callback", params={"state": state, "code": "a-code"} | changes)


def test_a_sign_in_at_the_issuer_opens_a_session_of_its_subject(browser: TestClient, server: Server) -> None:
    state = begin(browser, server, to="/?job=job-1")
    answer = end(browser, state, session_state="what-issuers-add")

    assert (answer.status_code, answer.headers["location"]) == (303, "/?job=job-1")
    assert server.begun | {"kind": "page", "client_id": "page", "scope": "openid"} == server.begun
    me = browser.get("/v1/me").json()
    assert (me["name"], me["role"], me["project"], me["key"]) == ("oidc:anna", "submitter", "red", None)
    [sent] = server.exchanged
    assert base64.b64decode(sent["authorization"].split()[1]) == b"page:s%3A3cret"
    kept = [text for name, text in answer.headers.multi_items() if name == "set-cookie" and "sign-in" not in text]
    assert len(kept) == 1 and "HttpOnly" in kept[0] and "SameSite=strict" in kept[0]


def test_an_answer_to_another_browsers_sign_in_is_refused(browser: TestClient, server: Server) -> None:
    state = begin(browser, server)
    for given in ("another", "", "é"):
        assert end(browser, given).status_code == 403
    browser.cookies.clear()

    assert end(browser, state).status_code == 403
    assert server.exchanged == [] and browser.get("/v1/me").status_code == 401


def test_a_sign_in_that_this_service_did_not_begin_reaches_no_issuer(browser: TestClient, server: Server) -> None:
    forged = jwt.encode({"alg": "HS256"}, A_TRY, OctKey.import_key("guess" * 8))
    for cookie in ("x.n.v.%2F", forged, "x", ""):
        browser.cookies.set("wiretune-page-sign-in", cookie, path="/v1/sign-in")
        assert end(browser, A_TRY["state"]).status_code == 403

    assert server.exchanged == []


def test_a_sign_in_ends_after_a_while(browser: TestClient, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.http.code_flow.TRY_S", -1)

    assert end(browser, begin(browser, server)).status_code == 403
    assert server.exchanged == []


def test_a_sign_in_goes_on_at_another_replica_that_has_the_same_secret(
    browser: TestClient, server: Server, store: Store, tmp_path: Path
) -> None:
    state, folder = begin(browser, server), tmp_path / "of-another"
    folder.mkdir()
    shutil.copy(store.settings.state_dir / "secret", folder)
    with closing(Store.open(store.settings.model_copy(update={"state_dir": folder}))) as another:
        replica = TestClient(create_app(another), follow_redirects=False, cookies=browser.cookies)

        assert end(replica, state).status_code == 303


@pytest.mark.parametrize("status", [401, 503])
def test_after_many_failed_sign_ins_from_an_address_the_issuer_is_asked_no_more(
    browser: TestClient, server: Server, status: int
) -> None:
    if status == 503:
        server.says["token_endpoint"] = "http://127.0.0.1:9/token"  # where nothing listens
    state = begin(browser, server)
    answers = [end(browser, state, code="stolen") for _ in range(FAILURES_PER_MINUTE + 1)]

    assert [answer.status_code for answer in answers] == [*[status] * FAILURES_PER_MINUTE, 429]
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert len(server.exchanged) == (FAILURES_PER_MINUTE if status == 401 else 0)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"nonce": "of-another-sign-in"}, 401),
        ({"aud": "wiretune"}, 401),  # made for programs, not for the page
        ({"azp": "another", "aud": ["page", "another"]}, 401),
        ({"exp": 1}, 401),
        ({"key": STRANGER}, 401),
        ({"groups": ["cooks"]}, 403),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else str(value),
)
def test_an_id_token_that_is_not_of_this_sign_in_opens_nothing(
    browser: TestClient, server: Server, changes: dict[str, Any], status: int
) -> None:
    server.claims = changes
    answer = end(browser, begin(browser, server))

    assert answer.status_code == status and "set-cookie" not in answer.headers
    assert browser.get("/v1/me").status_code == 401


def test_a_code_that_the_issuer_does_not_take_opens_nothing(browser: TestClient, server: Server) -> None:
    answer = end(browser, begin(browser, server), code="stolen")

    assert (answer.status_code, "invalid_grant" in answer.json()["detail"]) == (401, True)


def test_what_the_issuer_refuses_is_said(browser: TestClient, server: Server) -> None:
    answer = end(browser, begin(browser, server), error="access_denied")

    assert (answer.status_code, answer.json()["detail"]) == (403, "the issuer did not sign you in: access_denied")


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "/x/../y", "/?a\n"])
def test_a_sign_in_leads_to_no_other_site(browser: TestClient, server: Server, to: str) -> None:
    assert end(browser, begin(browser, server, to=to)).headers["location"] == "/"


def test_the_page_offers_the_issuer_only_where_the_operator_has_a_client(
    browser: TestClient, anonymous: TestClient, store: Store
) -> None:
    assert '<meta name="sign-in" content="/v1/sign-in">' in browser.get("/").text

    store.settings = store.settings.model_copy(update={"oidc_client_id": ""})
    assert '<meta name="sign-in" content="">' in anonymous.get("/").text
    assert anonymous.get("/v1/sign-in").status_code == 404
