"""Webhooks for a job's end: signed, at least once despite restarts, and never to a private address."""

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import ValidationError

from service.control import webhooks as webhooks_module
from service.control.access.rules import Principal
from service.control.messages import BACK_OFF_S, MAX_TRIES
from service.control.models import MessageRow
from service.control.processes import wait_until
from service.control.reconciling.assembly import assemble
from service.control.store import Store
from service.control.webhooks import Webhooks, conflicts
from service.job.spec import JobSpec
from service.settings import Settings, refusals_of
from service.wire.access import Role
from service.wire.events import EventKind
from service.wire.jobs import JobEdit
from tests.support.fake_ray import FakeCluster, FakeRay
from tests.support.patience import PATIENCE_S
from trainers.addresses import is_public

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Target:
    """A server that notes what it is sent, and answers with the statuses it is told, then 204."""

    def __init__(self):
        self.statuses, self.got = [], []
        self.goes_on = threading.Event()  # no answer before this is set
        self.goes_on.set()
        target = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                target.got.append((self.path, dict(self.headers), body))
                target.goes_on.wait(PATIENCE_S)
                self.send_response(target.statuses.pop(0) if target.statuses else 204)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?a=b"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def target():
    with closing(Target()) as target:
        yield target


@pytest.fixture
def slow_target():
    with closing(Target()) as target:
        target.goes_on.clear()
        yield target
        target.goes_on.set()


@pytest.fixture
def settings(tmp_path):
    return Settings(state_dir=tmp_path, webhook_secret=SECRET, webhook_private=True)


def spec_for(url):
    return JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}, "webhook": {"url": url}})


def told(target):
    return [json.loads(body) for _, _, body in target.got]


def test_a_message_has_a_text_as_chats_require(store, settings, target):
    spec = spec_for(target.url).model_copy(update={"name": "digits"})
    store.cancel(store.add_job(spec)[0].id)

    Webhooks(store, settings).send_due(0)

    assert [message["text"] for message in told(target)] == ["job digits was cancelled: cancelled by first"]


def test_a_jobs_name_neither_calls_a_chats_channel_nor_hides_a_link_there(store, settings, target):
    spec = spec_for(target.url).model_copy(update={"name": "<!channel> <https://evil.example|R&D>"})
    store.cancel(store.add_job(spec)[0].id)

    Webhooks(store, settings).send_due(0)

    [message] = told(target)
    assert "&lt;!channel&gt; &lt;https://evil.example|R&amp;D&gt;" in message["text"] and "<" not in message["text"]
    assert message["data"]["name"] == spec.name


def test_a_webhook_that_a_running_job_is_given_is_told_of_its_end_and_one_that_is_taken_away_is_not(
    store, settings, target
):
    spec = spec_for("https://a.example/mistyped")
    corrected, silenced = (store.add_job(spec)[0].id for _ in range(2))
    store.edit(corrected, JobEdit(webhook={"url": target.url}))
    store.edit(silenced, JobEdit(webhook=None))

    for job_id in (corrected, silenced):
        store.cancel(job_id)
    Webhooks(store, settings).send_due(0)

    assert [message["data"]["job_id"] for message in told(target)] == [corrected]
    assert store.outbox.due() == []


def test_a_webhook_is_told_of_what_it_asked_for_and_of_nothing_else(store, settings, target):
    on = {"webhook": {"url": target.url, "on": ["failed", "attempt_lost"]}, "name": "digits"}
    spec = JobSpec.model_validate(spec_for(target.url).model_dump() | on)
    store.cancel(store.add_job(spec)[0].id)
    job_id = store.add_job(spec)[0].id
    for number in range(1, settings.max_attempts + 1):
        store.attempts.begin(job_id)
        store.attempts.lose(job_id, number, reason="its node is gone")

    Webhooks(store, settings).send_due(0)

    lost = [f"job digits lost attempt {number}: its node is gone" for number in range(1, settings.max_attempts + 1)]
    assert sorted(message["text"] for message in told(target)) == ["job digits failed: its node is gone", *lost]
    kinds = [message["type"] for message in told(target)]
    assert kinds.count("job.attempt_lost") == settings.max_attempts and kinds.count("job.failed") == 1
    assert {message["data"].get("attempt") for message in told(target)} == {None, 1, 2, 3}


def test_the_operators_webhook_is_told_of_jobs_without_one_unsigned_and_where_it_is_private(tmp_path, target, clock):
    settings = Settings(state_dir=tmp_path / "chat", webhook_url=target.url)
    with closing(Store.open(settings, clock=clock)) as store:
        spec = spec_for(target.url).model_copy(update={"webhook": None, "name": "digits"})
        store.cancel(store.add_job(spec)[0].id)
        assert "127.0.0.1" not in str(store.outbox.due())  # the address is in the settings alone
        clock.now += BACK_OFF_S
        Webhooks(store, settings).send_due(0)

        [(path, headers, body)] = target.got
        assert (path, json.loads(body)["data"]["state"]) == ("/hook?a=b", "cancelled")
        assert "webhook-signature" not in headers
        assert outcomes(store) == []  # no user of the job set it up


def test_the_operators_webhook_may_be_told_of_failures_alone(tmp_path, target, clock):
    settings = Settings(state_dir=tmp_path / "chat", webhook_url=target.url, webhook_on=["failed"])
    with closing(Store.open(settings, clock=clock)) as store:
        spec = spec_for(target.url).model_copy(update={"webhook": None})
        store.cancel(store.add_job(spec)[0].id)

        assert store.outbox.due() == []


def outcomes(store):
    return [event.data for event in store.events(0, kinds=[EventKind.WEBHOOK]).events]


def test_the_message_is_what_the_standard_says_and_its_signature_holds(store, settings, target):
    job = store.add_job(spec_for(target.url))[0]
    webhooks = Webhooks(store, settings)
    webhooks.send_due(0)
    assert target.got == []  # the job is not over
    store.cancel(job.id)
    webhooks.send_due(0)
    webhooks.send_due(0)

    [(path, headers, body)] = target.got
    assert path == "/hook?a=b"
    assert headers["Host"] == target.url.split("/")[2]
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 300
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body.decode()}".encode()
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    message = json.loads(body)
    assert (message["type"], message["data"]["job_id"], message["data"]["state"]) == (
        "job.cancelled",
        job.id,
        "cancelled",
    )
    assert outcomes(store) == [{"outcome": "delivered", "tries": 1, "reason": ""}]


def test_a_message_outlives_a_restart_between_the_end_and_its_delivery(store, settings, clock, target):
    store.cancel(store.add_job(spec_for(target.url))[0].id)
    store.close()

    again = Store.open(settings, clock=clock)
    for _ in range(3):
        Webhooks(again, settings).send_due(0)
        clock.now += 10 * BACK_OFF_S

    assert len(target.got) == 1
    again.close()


def test_many_messages_to_one_host_leave_room_for_the_others(store, clock):
    for number in range(30):
        store.cancel(store.add_job(spec_for(f"http://dead.example/{number}"))[0].id)
        clock.now += 1.0
    for number in range(2):
        store.cancel(store.add_job(spec_for(f"http://alive-{number}.example/"))[0].id)

    first = {message.url for message in store.outbox.due()}
    left = len(store.outbox.due())

    assert first >= {f"http://alive-{number}.example/" for number in range(2)}
    assert first >= {f"http://dead.example/{number}" for number in range(18)}  # what the others leave, the oldest first
    assert (len(first), left, store.outbox.due()) == (20, 12, [])  # all have had their turn


def test_an_owner_with_messages_to_many_hosts_keeps_no_other_owner_waiting(store, clock):
    for number in range(30):
        store.cancel(store.add_job(spec_for(f"http://{number}.dead.example/"))[0].id)
        clock.now += 1.0
    other = Principal(name="olga", role=Role.SUBMITTER, project="another")
    store.cancel(store.add_job(spec_for("http://alive.example/"), by=other)[0].id)

    assert "http://alive.example/" in {message.url for message in store.outbox.due()}


def test_a_delivered_message_is_noted_while_another_waits_for_its_answer(store, settings, target, slow_target):
    for url in (slow_target.url, target.url):
        store.cancel(store.add_job(spec_for(url))[0].id)

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(Webhooks(store, settings).send_due, 0)

        assert wait_until(lambda: outcomes(store), timeout_s=PATIENCE_S, every_s=0.01)
        assert not sent.done()
        slow_target.goes_on.set()


@pytest.fixture
def stuck(monkeypatch):
    """Have lookups of names that begin with `stuck` hang until the event is set. A try waits for 0.05 s."""
    goes_on, resolve = threading.Event(), socket.getaddrinfo

    def look_up(host, *args, **options):
        if not host.startswith("stuck"):
            return resolve(host, *args, **options)
        goes_on.wait(PATIENCE_S)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(webhooks_module, "_TIMEOUT_S", 0.05)
    yield goes_on
    goes_on.set()


def test_names_whose_lookups_hang_hold_up_no_round(store, settings, stuck):
    for number in range(3):
        store.cancel(store.add_job(spec_for(f"http://stuck-{number}.example/"))[0].id)
    webhooks = Webhooks(store, settings)

    webhooks.send_due(0)

    assert not stuck.is_set() and len(webhooks._lookups) == 3


@pytest.mark.parametrize("num_threads", [64, 4])
def test_an_owner_whose_lookups_hang_waits_for_them_and_no_other_owner_does(
    store, settings, target, clock, stuck, monkeypatch, num_threads
):
    monkeypatch.setattr(webhooks_module, "_NUM_LOOKUPS", num_threads)
    webhooks = Webhooks(store, settings)
    for number in range(3):
        store.cancel(store.add_job(spec_for(f"http://stuck-{number}.example/"))[0].id)
    webhooks.send_due(0)
    monkeypatch.setattr(webhooks_module, "_TIMEOUT_S", PATIENCE_S)
    clock.now += BACK_OFF_S
    other = Principal(name="olga", role=Role.SUBMITTER, project="another")
    store.cancel(store.add_job(spec_for(f"{target.url}&own"))[0].id)
    store.cancel(store.add_job(spec_for(target.url), by=other)[0].id)

    webhooks.send_due(0)
    sent = [path for path, _, _ in target.got]
    stuck.set()

    assert sent == ["/hook?a=b"]
    assert wait_until(lambda: webhooks.send_due(0) or len(target.got) == 2, timeout_s=PATIENCE_S, every_s=0.01)
    assert [each["tries"] for each in outcomes(store)] == [1, 1]


def test_a_message_for_whose_lookup_no_thread_is_free_is_not_tried(store, settings, target, stuck, monkeypatch):
    monkeypatch.setattr(webhooks_module, "_NUM_LOOKUPS", 1)
    webhooks = Webhooks(store, settings)
    store.cancel(store.add_job(spec_for("http://stuck.example/"))[0].id)
    webhooks.send_due(0)
    other = Principal(name="olga", role=Role.SUBMITTER, project="another")
    store.cancel(store.add_job(spec_for(target.url), by=other)[0].id)

    webhooks.send_due(0)

    assert [message.url for message in store.outbox.due()] == [target.url]


def test_a_host_with_more_messages_than_any_round_sees_keeps_no_other_waiting(store, clock):
    job_id = store.add_job(spec_for("http://dead.example/"))[0].id
    store.cancel(job_id)
    rows = [
        MessageRow(id=f"msg_{number}", job_id=job_id, url="http://dead.example/", body="", next_at=clock.now - 1.0)
        for number in range(1000)
    ]
    store._db.write(lambda session: session.add_all(rows))
    store.cancel(store.add_job(spec_for("http://alive.example/"))[0].id)

    assert "http://alive.example/" in {message.url for message in store.outbox.due()}


def test_a_try_that_nobody_noted_is_made_again_as_the_same_message(store, settings, clock, target):
    store.cancel(store.add_job(spec_for(target.url))[0].id)
    [lost] = store.outbox.due()  # whoever took it was killed
    webhooks = Webhooks(store, settings)

    webhooks.send_due(0)
    assert target.got == []
    clock.now += BACK_OFF_S
    webhooks.send_due(0)

    assert [headers["webhook-id"] for _, headers, _ in target.got] == [lost.id]


@pytest.mark.parametrize("num_tried", [0, 1])
def test_a_clock_that_is_set_back_holds_up_no_message(store, clock, num_tried):
    store.cancel(store.add_job(spec_for("http://slow.example/"))[0].id)
    for _ in range(num_tried):
        [tried] = store.outbox.due()
        store.outbox.note(tried.id, fault="no answer", is_final=False)

    clock.now -= 3600.0

    assert len(store.outbox.due()) == 1


def test_a_target_that_fails_is_tried_again_and_given_up_at_last(store, settings, clock, target):
    target.statuses = [500] * 99
    store.cancel(store.add_job(spec_for(target.url))[0].id)
    webhooks = Webhooks(store, settings)

    for _ in range(MAX_TRIES + 3):
        webhooks.send_due(0)
        clock.now += BACK_OFF_S * 4**MAX_TRIES

    assert len(target.got) == MAX_TRIES
    assert outcomes(store) == [{"outcome": "failed", "tries": MAX_TRIES, "reason": "127.0.0.1 answered 500"}]


def test_a_redirect_is_not_followed(store, settings, target):
    target.statuses = [307]
    store.cancel(store.add_job(spec_for(target.url))[0].id)

    Webhooks(store, settings).send_due(0)

    assert [path for path, _, _ in target.got] == ["/hook?a=b"]


def test_a_target_that_is_gone_is_not_asked_again(store, settings, clock, target):
    target.statuses = [410]
    store.cancel(store.add_job(spec_for(target.url))[0].id)
    webhooks = Webhooks(store, settings)

    for _ in range(2):
        webhooks.send_due(0)
        clock.now += 10 * BACK_OFF_S

    assert len(target.got) == 1
    assert [each["outcome"] for each in outcomes(store)] == ["failed"]


def test_a_name_that_leads_to_a_private_address_at_delivery_is_refused(store, settings, target, monkeypatch):
    """As a name does that was public when the job was submitted."""
    port = target.url.split(":")[2].partition("/")[0]
    store.cancel(store.add_job(spec_for(f"http://public.example:{port}/"))[0].id)
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)

    Webhooks(store, settings.model_copy(update={"webhook_private": False})).send_due(0)

    assert target.got == []
    [said] = outcomes(store)
    assert (said["outcome"], said["reason"]) == ("failed", "public.example leads to an address that is not public")


def test_a_name_is_resolved_once(store, settings, target, monkeypatch):
    port = target.url.split(":")[2].partition("/")[0]
    store.cancel(store.add_job(spec_for(f"http://once.example:{port}/"))[0].id)
    asked, resolve = [], socket.getaddrinfo

    def once(host, *args, **options):
        asked.append(host)
        return resolve("127.0.0.1" if host == "once.example" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", once)
    Webhooks(store, settings).send_due(0)

    assert [headers["Host"] for _, headers, _ in target.got] == [f"once.example:{port}"]
    assert asked.count("once.example") == 1


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.1",
            "172.16.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("::1", "fe80::1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1", "::", "ff02::1"),
    ],
)
def test_an_address_that_is_not_of_the_internet_is_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_an_address_of_the_internet_is_public(address):
    assert is_public(address)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://example.com/", "https"),
        ("https://127.0.0.1/", "not public"),
        ("https://[::ffff:127.0.0.1]:8080/", "not public"),
        ("https://localhost/", "not public"),
        ("https://169.254.169.254/latest/meta-data", "not public"),
    ],
)
def test_a_target_that_is_refused_at_submission_says_what_is_allowed(url, word):
    [problem] = conflicts(spec_for(url).webhook, Settings(webhook_secret=SECRET))

    assert (problem.pointer, problem.value) == ("/webhook/url", url)
    assert word in problem.message and "WIRETUNE_WEBHOOK_PRIVATE" in problem.message
    assert conflicts(spec_for(url).webhook, Settings(webhook_secret=SECRET, webhook_private=True)) == []


def test_an_address_that_is_none_is_refused():
    assert "999.1.1.1" in conflicts(spec_for("https://999.1.1.1/").webhook, Settings(webhook_secret=SECRET))[0].message


def test_a_service_without_a_secret_takes_no_webhook_and_one_with_a_secret_does():
    webhook = spec_for("https://example.com/hook").webhook

    assert "WIRETUNE_WEBHOOK_SECRET" in conflicts(webhook, Settings())[0].message
    assert conflicts(webhook, Settings(webhook_secret=SECRET)) == []


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.com/", "https://user:word@example.com/", "https://", "https://a b/", "https://ü.example/"),
        *("https://example.com:99999/", "https://example.com\\@10.0.0.1/", "//example.com/", "https://a/\x00"),
    ],
)
def test_what_is_no_plain_url_is_refused_with_what_is_allowed(url):
    with pytest.raises(ValidationError, match="https://HOST"):
        spec_for(url)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_AAAA", "hunter2", f"whsec_{'A' * 120}", "whsec_%%%"])
def test_a_bad_secret_is_refused_and_never_shown(secret, monkeypatch):
    monkeypatch.setenv("WIRETUNE_WEBHOOK_SECRET", secret)

    with pytest.raises(ValidationError) as refused:
        Settings()

    [line] = refusals_of(refused.value)
    assert "WIRETUNE_WEBHOOK_SECRET" in line and "24 to 64" in line
    assert secret.removeprefix("whsec_") == "" or secret not in line + str(refused.value)
    assert SECRET not in repr(Settings(webhook_secret=SECRET))


def test_the_service_sends_what_is_due_and_deletes_old_events_by_itself(store, settings, clock, target):
    store.cancel(store.add_job(spec_for(target.url))[0].id)
    removed = threading.Event()
    store.expiry.remove_expired = lambda _now, *, is_clock_steady: is_clock_steady or removed.set()  # it has just begun
    assembly = assemble(store, settings, api_url="", cluster=FakeCluster(FakeRay()), clock=clock)

    assembly.start(interval_s=0.01)

    assert wait_until(lambda: outcomes(store) and removed.is_set(), timeout_s=PATIENCE_S, every_s=0.01)
    assembly.stop()
    assert len(target.got) == 1


def test_a_message_of_a_job_is_claimed_by_one_of_two_callers(store, target):
    store.cancel(store.add_job(spec_for(target.url))[0].id)

    assert [len(store.outbox.due()), len(store.outbox.due())] == [1, 0]
