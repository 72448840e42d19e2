"""Traces are off by default; with them, each job has one trace over all its processes."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from service import tracing
from tests.support.otlp_receiver import Receiver, receiving
from tests.support.patience import PATIENCE_S

SUBMIT = """
import sys
from pathlib import Path
from service import tracing
from tests.support.otlp_receiver import Receiver, receiving
tracing.configure("wiretune-api")
from fastapi.testclient import TestClient
from api.http.app import create_app
from service.control.reconciling.assembly import assemble
from service.control.store import Store
from service.settings import Settings
from tests.support.fake_ray import FakeCluster, FakeRay
store = Store.open(Settings(state_dir=Path(sys.argv[1])))
http = TestClient(create_app(store), headers={"Authorization": "Bearer " + store.add_key("test")})
job = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 10}, "workers": {"count": 1}}
made = http.post("/v1/jobs", json=job, headers={"traceparent": "00-%032x-%016x-01" % (7, 7)}).json()["id"]
ray = FakeRay()
assemble(store, store.settings, api_url="http://api", cluster=FakeCluster(ray)).reconciler.tick(1e9)
[environment] = ray.environments.values()
store.close()
tracing.flush()
print(made, environment["TRACEPARENT"], environment["OTEL_EXPORTER_OTLP_ENDPOINT"])
print([name for name in environment if "HEADERS" in name])
"""
TRAIN = """
import threading
from service import tracing
from tests.support.otlp_receiver import Receiver, receiving
tracing.configure("wiretune-driver")
with tracing.span("attempt", attempt=1):
    carried = tracing.carrier()
stage = tracing.traced("stage")(lambda: None)
with tracing.span("trial", parent=carried):
    stage()
thread = threading.Thread(target=stage); thread.start(); thread.join()
"""

JOBS = """
from service import tracing
tracing.configure("wiretune-api")
for job in map(str, range(20)):
    tracing.begin_job(job)
    with tracing.span("submit attempt", job=job):
        pass
tracing.flush()
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def run(program: str, *arguments: str, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"NO_PROXY": "127.0.0.1"} | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    ).stdout


def test_a_jobs_spans_of_api_reconciler_and_driver_are_one_trace(receiver: Receiver, tmp_path) -> None:
    to = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_EXPORTER_OTLP_HEADERS": "api-key=secret"}
    told, withheld = run(SUBMIT, str(tmp_path), **to).splitlines()
    job_id, parent, endpoint = told.split()
    run(TRAIN, TRACEPARENT=parent, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)

    job, request = receiver.only("job"), receiver.only("POST /v1/jobs")
    submit, attempt, trial = map(receiver.only, ("submit attempt", "attempt", "trial"))
    trace_id, span_id = tracing.ids_of(job_id)
    assert job.trace_id == trace_id.to_bytes(16, "big") and job.span_id == span_id.to_bytes(8, "big")
    assert {each.trace_id for each in (submit, attempt, trial)} == {job.trace_id}
    parents = (submit.parent_span_id, attempt.parent_span_id, trial.parent_span_id)
    assert parents == (job.span_id, submit.span_id, attempt.span_id)
    (in_trial, _), (in_thread, _) = [(span.parent_span_id, span) for _, span in receiver.spans["stage"]]
    assert (in_trial, in_thread) == (trial.span_id, submit.span_id)
    # the caller's own trace goes on into the request, and the job's links to it
    assert request.trace_id == (7).to_bytes(16, "big") and job.links[0].span_id == request.span_id
    assert {service for spans in receiver.spans.values() for service, _ in spans} == {"wiretune-api", "wiretune-driver"}
    assert withheld == "[]"  # users' code runs in drivers: the collector's key stays with the service


@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_a_sampler_keeps_or_leaves_out_the_whole_trace_of_a_job(receiver: Receiver, sampler: str) -> None:
    thinned = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": "0.5"}

    run(JOBS, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **thinned)

    begun, submitted = ({span.trace_id for _, span in receiver.spans[name]} for name in ("job", "submit attempt"))
    assert begun == submitted and 0 < len(begun) < 20


def test_without_an_endpoint_no_part_of_the_sdk_is_imported() -> None:
    said = run(
        "import sys; from service import tracing; tracing.configure('x');"
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk.trace')], tracing.environment())",
        OTEL_EXPORTER_OTLP_ENDPOINT="",
    )

    assert said.split() == ["[]", "{}"]


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_standard_variables_turn_traces_on_and_off(variables, wanted, monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert tracing.is_wanted() is wanted


def test_a_span_that_nobody_wants_gives_nothing_to_record(monkeypatch) -> None:
    with tracing.span("stage", attempt=1) as span:
        assert not span.is_recording()
    assert tracing.carrier() == {} and tracing.ids() == {}
