"""Clients and running drivers can read the answers of a newer service, with new fields and words at every depth."""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python
from typer.testing import CliRunner

from api import calls
from api.calls import Call, UnreadableAnswer
from api.cli.job_file import with_schedules
from api.cli.main import app
from api.documents import checked, parse_yaml
from api.http.examples import EXAMPLE_JOB, answers
from search.config import Budget
from search.types import Steer
from service.control.store import Store
from service.job.parts import Arm
from service.job.spec import JobSpec
from service.job.states import Verb
from service.job.vocabulary import Vocabulary
from service.prediction.predict import PredictionRequest
from service.wire.access import NewKey
from service.wire.jobs import JobEdit
from service.wire.records import Acknowledgement, Control
from tests.api.conftest import Reporting
from tests.support import example_jobs
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.spec.link import EmulateLink
from trainers.spec.workloads import DigitsMlp

ASKED: dict[str, tuple[Callable[[str], Call[Any]], Callable[[Store, str], Any]]] = {
    "job": (calls.job, Store.job),
    "jobs": (lambda _: calls.jobs(), lambda store, _: store.jobs()),
    "trials": (calls.trials, Store.trials),
    "stages": (calls.stages, lambda store, job_id: store.stages(job_id, with_posterior=True)),
    "report": (calls.report, Store.report),
    "attempts": (calls.attempts, lambda store, job_id: store.attempts.of_job(job_id)),
    "schedule": (calls.schedule, lambda store, job_id: store.schedules(job_id)[0]),
    "steering": (calls.steering, Store.steering),
    "comparison": (lambda job_id: calls.comparison(job_id), lambda store, job_id: store.comparison([job_id])),
    "metrics": (lambda job_id: calls.metrics(job_id, "loss"), lambda store, job_id: store.series(job_id, "loss")),
}
#: The answers of which the document has examples, and nothing above does.
EXAMPLES: dict[str, Call[Any]] = {
    "Validated": calls.validate({}),
    "Cloned": calls.clone("j", {}),
    "EventPage": calls.events(None, after=None, kinds=()),
    "QueueView": calls.queue(),
    "IssuedKey": calls.rotate_key("k"),
    "KeyView": calls.revoke_key("k"),
    "Me": calls.me(),
    "AuditPage": calls.audit(),
    "CodePage": calls.list_code(),
    "QuotaView": calls.set_quota("owner", "o"),
    "SignInCode": calls.sign_in_code(),
}
MORE = "said_by_a_newer_service"


def grown(value: Any) -> Any:
    """Return `value` as JSON of a service with one more field, one more verb, and other words; a job keeps its own."""
    if isinstance(value, BaseModel) and not isinstance(value, JobSpec):
        fields = {name: grown(getattr(value, name)) for name in type(value).model_fields}
        return {**fields, MORE: {"a": [1]}}
    if isinstance(value, Mapping):
        return {name: grown(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [grown(each) for each in value] + [MORE] * any(isinstance(each, Verb) for each in value)
    if isinstance(value, Vocabulary) and not isinstance(value, Verb):
        return f"{value}, {MORE}"
    return to_jsonable_python(value)


def understood(told: Any) -> Any:
    """Return what of `grown` JSON a reader keeps."""
    if isinstance(told, dict):
        return {name: understood(each) for name, each in told.items() if name != MORE}
    if isinstance(told, list):
        return [understood(each) for each in told if each != MORE]
    return told


@pytest.mark.parametrize("what", ASKED)
def test_a_client_reads_what_a_newer_service_says_more(store: Store, reporting: Reporting, what: str) -> None:
    reporting.run_to_the_end()
    describe, ask = ASKED[what]
    told = json.dumps(grown(ask(store, reporting.job_id)))

    read = describe(reporting.job_id).read(told.encode())

    assert to_jsonable_python(read) == understood(json.loads(told))


@pytest.mark.parametrize("name", EXAMPLES)
def test_so_it_does_in_every_other_answer(name: str) -> None:
    call = EXAMPLES[name]
    told = json.dumps(grown(call.read(json.dumps(answers(EXAMPLE_JOB)[name]).encode())))

    assert to_jsonable_python(call.read(told.encode())) == understood(json.loads(told))


@pytest.mark.parametrize("asked", [(JobEdit, {"priority": MORE}), (NewKey, {"name": "ci", "role": MORE})])
def test_a_service_refuses_words_that_it_does_not_know(asked: tuple[type[BaseModel], dict[str, str]]) -> None:
    model, fields = asked

    with pytest.raises(ValidationError, match="Input should be"):
        model.model_validate(fields)


@pytest.mark.parametrize(("finished_at", "is_over"), [(None, False), ("2026-11-29T10:00:00Z", True)])
def test_a_job_in_a_new_state_is_over_once_it_has_an_end(
    store: Store, reporting: Reporting, finished_at: str | None, is_over: bool
) -> None:
    told = store.job(reporting.job_id).model_dump(mode="json") | {"state": MORE, "finished_at": finished_at}

    read = calls.job(reporting.job_id).read(json.dumps(told).encode())

    assert read.is_over == is_over
    assert pickle.loads(pickle.dumps(read)) == read


def test_a_driver_hears_what_a_newer_service_says_more() -> None:
    steers = (Steer(id=1, by="ci", pin={"density": 0.02}),)
    told = Acknowledgement(sequence=3, control=Control.PAUSE, steers=steers)

    assert Acknowledgement.model_validate_json(json.dumps(grown(told)), extra="ignore") == told


def test_an_answer_that_lacks_what_is_read_names_the_releases_and_the_field() -> None:
    with pytest.raises(UnreadableAnswer, match=r"of another release than this client.*: /name: Field required"):
        calls.me().read(b'{"role": "admin", "project": "p"}')


def test_the_command_line_says_so_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        calls.me().read(b"{}")

    monkeypatch.setattr("api.client.Client.send", refuse)

    result = CliRunner().invoke(app, ["list", "--url", "http://127.0.0.1:9", "--key", "wt_x"])

    assert result.exit_code == 3 and "is of another release" in result.output
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("path", example_jobs.EXAMPLES, ids=lambda path: str(path.stem))
def test_a_job_is_sent_as_it_was_given_without_the_defaults_of_the_clients_release(path: Path) -> None:
    given = with_schedules(parse_yaml(path.read_bytes()), str(path.parents[2]))
    spec = checked(JobSpec, given)

    [sent, checked_by_service] = [json.loads(json.dumps(call(spec).json)) for call in (calls.submit, calls.validate)]

    assert sent == checked_by_service and sent.keys() == given.keys()
    assert JobSpec.model_validate(sent) == spec


def test_a_job_that_was_built_in_python_is_sent_with_the_kind_of_each_part() -> None:
    optimizer, arm = SgdConfig(learning_rate=0.1), Arm(name="sparse", exchange=TopKConfig(density=0.1))
    link = EmulateLink(mbps=100.0)
    spec = JobSpec(workload=DigitsMlp(), optimizer=optimizer, link=link, arms=(arm,), budget=Budget(steps=10))

    sent = calls.submit(spec).json

    exchange = {"kind": "topk", "density": 0.1}
    assert sent == {
        "workload": {"kind": "digits-mlp"},
        "optimizer": {"kind": "sgd", "learning_rate": 0.1},
        "link": {"mode": "emulate", "mbps": 100.0},
        "arms": [{"name": "sparse", "exchange": exchange}],
        "budget": {"steps": 10.0},
    }
    predicted = calls.predict(PredictionRequest(job=spec, compute_ms=5.0, mbps=10.0)).json
    assert predicted == {"job": sent, "compute_ms": 5.0, "mbps": 10.0}
