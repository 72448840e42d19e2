"""Records arrive once and in order, whatever the API does; its answer can end the run."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from service.cluster.reporter import MAX_BATCH_POINTS, Door, LeaseKeeper, Reporter, Stopped
from service.control.processes import wait_until
from service.wire.records import Bill, Billed, Checkpointed, Control, MetricPoints, Searched
from tests.support.patience import PATIENCE_S, crowd

STREAM = "job.tuned.0"
PROBLEM = "application/problem+json"


class Api:
    """A real HTTP server that stores batches as the API does, and can be told to fail."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.leases, self.held_s = 0, list[float]()
        self.control = Control.RUN
        self.more: dict[str, Any] = {}  # of each answer
        self.lose_answers = 0  # of this many requests: taken, but the caller hears nothing
        self.refuse = 0  # answer this many requests with `refusal`, its status and media type
        self.refusal = (503, "text/html")
        self.refusal_body = '{"detail": "no"}'
        self.goes_on = threading.Event()  # no answer before this is set
        self.goes_on.set()
        self.num_requests = 0
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api.answer(self, body)

            def log_message(self, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self.num_requests += 1
        self.goes_on.wait(PATIENCE_S)
        if self.refuse:
            self.refuse -= 1
            self.send(handler, *self.refusal, self.refusal_body)
            return
        if handler.path.endswith("/lease"):
            self.held_s.append(body["held_s"])
            self.leases += 1
        elif body["sequence"] == len(self.batches) + 1:  # what was stored already counts once
            self.batches.append(body)
        if self.lose_answers:
            self.lose_answers -= 1
            handler.connection.close()
            return
        told = {"sequence": body.get("sequence", 0), "control": self.control, **self.more}
        self.send(handler, 200, "application/json", json.dumps(told))

    def send(self, handler: BaseHTTPRequestHandler, status: int, media_type: str, body: str) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", media_type)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())

    def refuse_for_good(self) -> None:
        self.refuse, self.refusal = 10**6, (409, PROBLEM)

    @property
    def records(self) -> list[dict[str, Any]]:
        return [record for batch in self.batches for record in batch["records"]]

    @property
    def steps(self) -> list[int]:
        return [step for record in self.records for step in record["steps"]]


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.server.shutdown()
    api.server.server_close()
    api.thread.join()


@pytest.fixture
def door(api: Api) -> Iterator[Door]:
    door = Door(api_url=f"http://127.0.0.1:{api.server.server_port}", job_id="job", attempt=1, token="secret")
    yield door
    door.close()


@pytest.fixture
def start(door: Door) -> Iterator[Callable[..., Reporter]]:
    started: list[Reporter] = []

    def start(max_silence_s: float = PATIENCE_S) -> Reporter:
        started.append(Reporter(door, STREAM, max_silence_s=max_silence_s))
        return started[-1]

    yield start
    for reporter in started:
        reporter.close()


def _point(step: int) -> MetricPoints:
    return MetricPoints(trial_id=STREAM, name="loss", steps=(step,), seconds=(0.1,), values=(1.0,))


def test_what_gathered_while_the_api_was_away_goes_in_batches_that_it_takes(
    api: Api, start: Callable[..., Reporter]
) -> None:
    api.goes_on.clear()
    reporter, long = start(), tuple(range(MAX_BATCH_POINTS // 2))
    series = [
        MetricPoints(trial_id=STREAM, name="loss", steps=long, seconds=(0.1,) * len(long), values=(1.0,) * len(long))
        for _ in range(7)
    ]

    reporter.report(*series)
    api.goes_on.set()
    reporter.flush()

    assert api.steps == 7 * list(long)
    assert max(sum(len(each["steps"]) for each in batch["records"]) for batch in api.batches) <= MAX_BATCH_POINTS


def test_a_running_driver_reads_the_answers_of_a_newer_service(api: Api, start: Callable[..., Reporter]) -> None:
    steer = {"id": 1, "by": "ci", "pin": {"density": 0.02}, "since": "unknown here"}
    api.more, reporter = {"steers": [steer], "quota": {"left": 1}}, start()

    reporter.flush(_point(0))

    assert [each.pin for each in reporter.steers()] == [{"density": 0.02}]


def test_a_driver_goes_on_where_a_newer_service_asks_for_what_it_does_not_know(
    api: Api, start: Callable[..., Reporter]
) -> None:
    reporter = start(max_silence_s=1.0)
    api.more = {"control": "hibernate"}

    reporter.flush(_point(0))

    assert reporter.asked() is Control.RUN


@pytest.fixture
def busy(api: Api, start: Callable[..., Reporter]) -> Iterator[Reporter]:
    """A reporter whose first record is on its way to an API that answers nobody yet."""
    api.goes_on.clear()
    reporter = start()
    reporter.report(_point(0))
    assert wait_until(lambda: api.num_requests, timeout_s=PATIENCE_S, every_s=0.001)
    yield reporter
    api.goes_on.set()


def test_points_that_wait_do_not_hold_up_a_checkpoint(api: Api, busy: Reporter) -> None:
    assert busy.is_clear() and not api.batches


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (Checkpointed(trial_id=STREAM, stage=0, step=10, bill=Bill(), resume={}), "checkpoint"),
        (Searched(trial_id=STREAM, stage=0, step=10, probes=(), bill=Bill(), resume={}), "searched"),
    ],
    ids=["checkpoint", "search"],
)
def test_what_a_later_attempt_resumes_from_holds_up_the_next_checkpoint_until_it_is_stored_whatever_follows_it(
    api: Api, busy: Reporter, record: Checkpointed | Searched, kind: str
) -> None:
    busy.report(record)
    assert not busy.is_clear()

    busy.report(_point(1))
    assert not busy.is_clear()
    api.goes_on.set()

    assert wait_until(busy.is_clear, timeout_s=PATIENCE_S)
    assert [record["kind"] for record in api.records][:2] == ["metrics", kind]


def test_of_the_searches_that_wait_the_newest_is_sent_and_nothing_else_is_lost(api: Api, busy: Reporter) -> None:
    for number in (1, 2, 3):
        probes = tuple(f"0-{each}" for each in range(number))
        searched = Searched(trial_id=STREAM, stage=0, step=0, probes=probes, bill=Bill(steps=number), resume={})
        busy.report(Billed(trial_id=STREAM, bill=Bill(steps=number)), searched)
    api.goes_on.set()
    busy.flush()

    bills = [(record["kind"], record["bill"]["steps"]) for record in api.records if "bill" in record]
    assert bills == [("billed", 1), ("billed", 2), ("billed", 3), ("searched", 3)]


def test_a_driver_reaches_the_api_past_the_proxy_of_its_node(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # where nobody listens
    door = Door(api_url=f"http://127.0.0.1:{api.server.server_port}", job_id="job", attempt=1, token="secret")

    door.renew(held_s=1.0, timeout_s=PATIENCE_S)
    door.close()

    assert api.leases == 1


def test_records_arrive_in_order(api: Api, start: Callable[..., Reporter]) -> None:
    reporter = start()

    for step in range(500):
        reporter.report(_point(step))
    reporter.flush()

    assert api.steps == list(range(500))
    assert [batch["sequence"] for batch in api.batches] == list(range(1, len(api.batches) + 1))


@pytest.mark.parametrize("fault", ["lose_answers", "refuse"])
def test_records_arrive_once_when_the_api_fails(api: Api, start: Callable[..., Reporter], fault: str) -> None:
    setattr(api, fault, 2)
    reporter = start()

    for step in range(20):
        reporter.flush(_point(step))

    assert api.steps == list(range(20))


def test_a_stream_in_which_another_process_has_got_further_stops(api: Api, start: Callable[..., Reporter]) -> None:
    api.more = {"sequence": 5}  # this batch 1 was taken for the other's, and is not stored

    with pytest.raises(Stopped, match=r"batch 5 .* came from another process") as stopped:
        start().flush(_point(0))

    assert stopped.value.control is Control.FENCED


def test_a_cancel_ends_the_run_at_its_next_report(api: Api, start: Callable[..., Reporter]) -> None:
    reporter = start()
    api.control = Control.CANCEL

    with pytest.raises(Stopped) as stopped:
        reporter.flush(_point(0))
    with pytest.raises(Stopped):
        reporter.report()

    assert stopped.value.control is Control.CANCEL


def test_a_stop_stays_where_the_next_answer_says_to_run(api: Api, start: Callable[..., Reporter]) -> None:
    reporter = start()
    for step, control in enumerate((Control.STOP, Control.RUN)):
        api.control = control
        reporter.flush(_point(step))

    assert reporter.asked() is Control.STOP


@pytest.mark.parametrize("control", [Control.PAUSE, Control.STOP])
def test_a_pause_or_a_stop_is_heard_and_leaves_time_to_report(
    api: Api, start: Callable[..., Reporter], control: Control
) -> None:
    reporter = start()
    api.control = control

    reporter.flush(_point(0))
    assert reporter.asked() is control
    reporter.flush(_point(1))

    assert api.steps == [0, 1]


@pytest.mark.parametrize(("body", "said"), [('{"detail": "no"}', "no"), ("[]", "HTTP 409"), ("<p>", "HTTP 409")])
def test_a_fenced_writer_stops(api: Api, start: Callable[..., Reporter], body: str, said: str) -> None:
    api.refuse_for_good()
    api.refusal_body = body

    with pytest.raises(Stopped, match=f"refuses this attempt: {said}$") as stopped:
        start().flush(_point(0))

    assert stopped.value.control is Control.FENCED


@pytest.mark.parametrize(
    "refusal",
    [(404, "text/html"), (401, "application/json"), (408, PROBLEM), (429, PROBLEM), (200, "text/html")],
    ids=["not_found", "of_a_proxy", "too_slow", "too_many", "a_page_of_a_proxy"],
)
def test_a_refusal_that_passes_is_outlived(api: Api, start: Callable[..., Reporter], refusal: tuple[int, str]) -> None:
    api.refuse, api.refusal = 1, refusal

    start().flush(_point(0))

    assert api.steps == [0]


def test_an_api_that_stays_silent_ends_the_run(api: Api, start: Callable[..., Reporter]) -> None:
    api.refuse = 10**6

    with pytest.raises(Stopped, match="has not answered for"):
        start(max_silence_s=0.5).flush(_point(0))


def test_the_lease_is_renewed_and_its_loss_is_told_once(api: Api, door: Door) -> None:
    lost: list[Stopped] = []
    is_lost = threading.Event()

    def on_loss(stopped: Stopped) -> None:
        lost.append(stopped)
        is_lost.set()

    keeper = LeaseKeeper(door, renew_s=0.01, max_silence_s=PATIENCE_S, on_loss=on_loss)
    while api.leases < 3:
        assert not is_lost.wait(0.01)
    api.refuse_for_good()

    assert is_lost.wait(PATIENCE_S)
    keeper.close()
    assert len(lost) == 1


@pytest.fixture
def keeper(door: Door) -> Iterator[LeaseKeeper]:
    """Renews twenty times a second, and gives up after 30 s."""

    def on_loss(stopped: Stopped) -> None:
        raise AssertionError(stopped.reason)

    keeper = LeaseKeeper(door, renew_s=0.05, max_silence_s=PATIENCE_S, on_loss=on_loss)
    yield keeper
    keeper.close()


@pytest.mark.usefixtures("keeper")
def test_each_renewal_says_for_how_long_its_process_has_lived(api: Api) -> None:
    assert wait_until(lambda: api.leases > 2, timeout_s=PATIENCE_S)

    first, second, third = api.held_s[:3]
    assert 0 < first < second < third < PATIENCE_S


@pytest.mark.usefixtures("keeper")
def test_the_lease_is_renewed_as_often_while_the_api_is_away_so_that_it_is_back_before_the_lease_is(api: Api) -> None:
    api.refuse = 20

    assert wait_until(lambda: api.leases > 0, timeout_s=5 * crowd())  # records are sent every 5 s by then


@pytest.mark.usefixtures("keeper")
def test_the_lease_is_renewed_after_an_answer_that_is_not_the_api_s(api: Api) -> None:
    api.refuse, api.refusal = 1, (200, "text/html")

    assert wait_until(lambda: api.leases > 0, timeout_s=PATIENCE_S)


@pytest.mark.usefixtures("keeper")
def test_a_renewal_that_hangs_is_not_waited_for(api: Api) -> None:
    api.goes_on.clear()

    try:
        assert wait_until(lambda: api.num_requests > 2, timeout_s=PATIENCE_S)
    finally:
        api.goes_on.set()


def test_a_lease_that_nobody_renews_for_too_long_ends_the_attempt(api: Api, door: Door) -> None:
    api.refuse = 10**6
    lost: list[Stopped] = []
    keeper = LeaseKeeper(door, renew_s=0.01, max_silence_s=0.1, on_loss=lost.append)

    assert wait_until(lambda: bool(lost), timeout_s=PATIENCE_S)
    keeper.close()
    assert [stopped.control for stopped in lost] == [Control.FENCED] and "has not answered for" in lost[0].reason
