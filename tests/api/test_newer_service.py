"""Answers of a newer service: what it says more is left out at every depth, by clients and by running drivers."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from typer.testing import CliRunner

from api import calls
from api.calls import Call, UnreadableAnswer
from api.cli.main import app
from api.http.examples import answers
from api.http.openapi import EXAMPLE_JOB
from search.types import Steer
from service.control.store import Store
from service.job.spec import JobSpec
from service.wire.records import Acknowledgement, Control
from tests.api.conftest import Reporting

ASKED: dict[str, tuple[Callable[[str], Call[Any]], Callable[[Store, str], Any]]] = {
    "job": (calls.job, Store.job),
    "jobs": (lambda _: calls.jobs(), lambda store, _: store.jobs()),
    "trials": (calls.trials, Store.trials),
    "stages": (calls.stages, lambda store, job_id: store.stages(job_id, with_posterior=True)),
    "report": (calls.report, Store.report),
    "attempts": (calls.attempts, Store.attempts),
    "schedule": (calls.schedule, lambda store, job_id: store.schedules(job_id)[0]),
    "steering": (calls.steering, Store.steering),
    "comparison": (lambda job_id: calls.comparison(job_id), lambda store, job_id: store.comparison([job_id])),
    "metrics": (lambda job_id: calls.metrics(job_id, "loss"), lambda store, job_id: store.series(job_id, "loss")),
}
#: The answers of which the document has examples, and nothing above does.
EXAMPLES: dict[str, Call[Any]] = {
    "Validated": calls.validate({}),
    "Cloned": calls.clone("j", {}),
    "QueueView": calls.queue(),
    "IssuedKey": calls.rotate_key("k"),
    "KeyView": calls.revoke_key("k"),
    "Me": calls.me(),
    "AuditPage": calls.audit(),
    "CodePage": calls.list_code(),
    "QuotaView": calls.set_quota("owner", "o"),
    "SignInCode": calls.sign_in_code(),
}


def grown(value: Any) -> Any:
    """Return `value` as JSON of a service whose models have one field more; a job keeps its fields."""
    if isinstance(value, BaseModel) and not isinstance(value, JobSpec):
        fields = {name: grown(getattr(value, name)) for name in type(value).model_fields}
        return {**fields, "said_by_a_newer_service": {"a": [1]}}
    if isinstance(value, Mapping):
        return {name: grown(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [grown(each) for each in value]
    return to_jsonable_python(value)


@pytest.mark.parametrize("what", ASKED)
def test_a_client_reads_what_a_newer_service_says_more(store: Store, reporting: Reporting, what: str) -> None:
    reporting.run_to_the_end()
    describe, ask = ASKED[what]
    answer = ask(store, reporting.job_id)

    read = describe(reporting.job_id).read(json.dumps(grown(answer)).encode())

    assert to_jsonable_python(read) == to_jsonable_python(answer)


@pytest.mark.parametrize("name", EXAMPLES)
def test_so_it_does_in_every_other_answer(name: str) -> None:
    call = EXAMPLES[name]
    plain = call.read(json.dumps(answers(EXAMPLE_JOB)[name]).encode())

    assert call.read(json.dumps(grown(plain)).encode()) == plain


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

    assert result.exit_code == 1 and "is of another release" in result.output
    assert isinstance(result.exception, SystemExit)
