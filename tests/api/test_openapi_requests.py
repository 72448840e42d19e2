"""Requests that follow the OpenAPI document, and some that break it: no 500, no answer that it does not name.

All phases of schemathesis: the document's examples, its coverage of every bound, random values, and chains of calls.
"""

import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import strategies as st
from schemathesis import Case, HookContext, Response
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from schemathesis.hooks import GLOBAL_HOOK_DISPATCHER
from starlette.types import Receive, Scope, Send

from api.http.app import create_app
from api.http.examples import EXAMPLE_JOB
from service.control.access.rules import LOCAL
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import TERMINAL
from service.wire.access import NewKey
from tests.api.conftest import Reporting

PHASES = ("examples", "coverage", "fuzzing", "stateful")
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
REPORTS = "POST /v1/attempts/{job}/{number}/records"
#: The bounds in a whole job, or in a driver's records, make tens of thousands of requests: minutes.
LARGE = ("createJob", "validateJob", "predict", "addRecords")


def zipped(text: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("train.py", text)
    return out.getvalue()


schemathesis.openapi.media_type(
    "application/zip", st.sampled_from([zipped("x = 1"), zipped("y = 2"), zipped("z = 3")[:-5]]) | st.binary()
)


class Requests:
    """Makes requests of the app's document, most of them by who may and about what is there, and counts answers."""

    def __init__(self, store: Store, key: str, app: FastAPI) -> None:
        self.store, self.key, self.app, self.seen = store, key, app, Counter[tuple[str, int]]()
        self.failures: list[str] = []
        self._spec = JobSpec.model_validate(EXAMPLE_JOB)
        over = Reporting(store, self._spec)
        over.run_to_the_end()
        self._jobs = [over.job_id, store.add_job(self._spec)[0].id]
        self._running = self._start()
        self._own = store.keyring.holder(key).key_id
        self._another = store.keyring.create(NewKey(name="other"), by=LOCAL).key.id
        self._num = 0

    def _start(self) -> Reporting:
        running = Reporting(self.store, self._spec)
        for arm in ("tuned", "dense"):
            running.start(arm)
        running.stage("tuned", 0, rate=0.1, density=0.01)
        self._jobs.append(running.job_id)
        return running

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(Exception):  # answered by then: as the server does, not as a client in the same process
            await self.app(scope, receive, send)

    def send(self, phases: tuple[str, ...], num_each: int, **chosen: Any) -> None:
        """Send the requests of `phases`, `num_each` random ones to each operation, and keep what was wrong."""
        config = SchemathesisConfig.from_dict(
            {
                "seed": 27,
                "continue-on-failure": True,
                "generation": {
                    "max-examples": num_each, "no-shrink": True, "database": "none", "with-security-parameters": False,
                },
                "phases": {phase: {"enabled": phase in phases} for phase in PHASES},
                "checks": {"enabled": False} | {check: {"enabled": True} for check in CHECKS},
            }
        )  # fmt: skip
        schema = schemathesis.openapi.from_asgi("/openapi.json", self._answer, config=config)
        with self._hooked():
            for event in from_schema(schema.include(**chosen) if chosen else schema).execute():
                self.failures += _failures(event)

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        hooks = {"before_call": self._prepare, "after_call": self._count}
        for name, hook in hooks.items():
            GLOBAL_HOOK_DISPATCHER.register_hook_with_name(hook, name)
        try:
            yield
        finally:
            for hook in hooks.values():
                GLOBAL_HOOK_DISPATCHER.unregister(hook)

    def _prepare(self, context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
        """Have `case` come from who may send it; of six, let five be about a job, or a key, that is there."""
        label, places = case.operation.label, case.path_parameters
        case.headers.update({"Authorization": f"Bearer {self.key}", "Sec-Fetch-Site": "same-origin"})
        self._num += 1
        is_known = self._num % 6 > 0
        if "/attempts/" in label and is_known:
            self._come_from_the_driver(case)
        elif "{job}" in label and is_known:
            places["job"] = self._jobs[-1 - self._num % len(self._jobs)]
        elif "{key}" in label and (is_known or places["key"] == self._own):
            places["key"] = self._another  # without our own nothing would be let in any more

    def _come_from_the_driver(self, case: Case) -> None:
        """Have `case` come from a job's own driver, with the batch that is next, of its own trials."""
        if self.store.job(self._running.job_id).state in TERMINAL:
            self._running = self._start()
        running = self._running
        case.path_parameters.update(job=running.job_id, number=running.number)
        case.headers["Authorization"] = f"Bearer {self.store.attempts.token(running.job_id, running.number)}"
        if isinstance(case.body, dict) and "stream" in case.body:
            case.body |= {"stream": "driver", "sequence": running._sequence + 1}
            records = case.body.get("records")
            for record in records if isinstance(records, list) else ():
                if isinstance(record, dict) and "trial_id" in record:
                    record["trial_id"] = running.trial("tuned")

    def _count(self, context: HookContext, case: Case, response: Response) -> None:
        self.seen[case.operation.label, response.status_code] += 1
        self._running._sequence += (case.operation.label, response.status_code) == (REPORTS, 200)


def _failures(event: events.EngineEvent) -> Iterator[str]:
    if isinstance(event, events.NonFatalError):
        yield f"{event.label}: {event.value}"
    if isinstance(event, events.FatalError):
        yield str(event.exception)
    if isinstance(event, events.ScenarioFinished):
        for case_id, checks in event.recorder.checks.items():
            label = event.recorder.cases[case_id].value.operation.label
            yield from (
                f"{label}: {check.failure_info.failure}\n{check.failure_info.code_sample}"
                for check in checks
                if check.failure_info is not None
            )


@pytest.fixture
def requests(store: Store, key: str) -> Requests:
    return Requests(store, key, create_app(store, user_code=True))


def require_answers(requests: Requests, num: int) -> None:
    assert not requests.failures, "\n".join(requests.failures[:10])
    assert requests.seen.total() >= num
    made = {("POST /v1/jobs", 202), ("POST /v1/jobs:validate", 200), (REPORTS, 200), ("POST /v1/code", 201)}
    assert made <= requests.seen.keys()
    assert {("POST /v1/jobs/{job}:clone", 200), ("POST /v1/jobs/{job}:clone", 202)} & requests.seen.keys()
    operations = {label for label, status in requests.seen if status < 500}
    assert len(operations) == sum(len(each) for each in requests.app.openapi()["paths"].values())


def test_no_request_breaks_the_service_or_gets_an_answer_that_is_not_documented(requests: Requests) -> None:
    requests.send(("examples", "fuzzing", "stateful"), num_each=3)

    require_answers(requests, 200)


def test_no_bound_of_a_small_request_breaks_the_service(requests: Requests) -> None:
    paths = requests.app.openapi()["paths"].values()
    small = {operation["operationId"] for each in paths for operation in each.values()} - {*LARGE}
    requests.send(("coverage",), num_each=1, operation_id=sorted(small))

    assert not requests.failures, "\n".join(requests.failures[:10])
    assert requests.seen.total() >= 500


def test_a_route_that_fails_at_the_end_of_a_range_alone_is_found(
    requests: Requests, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.series

    def series(job: str, name: str, *, trial_id: str | None, max_points: int, **more: Any) -> Any:
        if max_points >= 9_999:  # of the requests with either, one in six is about a job that is not there
            raise ZeroDivisionError("seeded")
        return real(job, name, trial_id=trial_id, max_points=max_points, **more)

    monkeypatch.setattr(store, "series", series)

    requests.send(("coverage",), num_each=1, operation_id="getMetric")

    found = [failure for failure in requests.failures if failure.startswith("GET /v1/jobs/{job}/metrics/{name}: ")]
    assert found and found == requests.failures
    assert all("max_points=10000" in failure or "max_points=9999" in failure for failure in found)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_tens_of_thousands_of_requests_in_all_phases_to_all_operations_break_nothing(requests: Requests) -> None:
    requests.send(PHASES, num_each=100)

    print(f"{requests.seen.total()} requests")
    require_answers(requests, 10_000)
