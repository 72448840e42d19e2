"""Requests that follow the OpenAPI document, and some that break it: no 500, no answer that it does not name."""

from collections import Counter
from itertools import product

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings as hypothesis_settings, strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure as CheckFailed, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.http.app import create_app
from api.http.openapi import EXAMPLE_JOB
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import TERMINAL
from tests.api.conftest import Reporting

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
REPORTS = "POST /v1/attempts/{job}/{number}/records"
#: Its body is a zip, which nothing here makes; hostile ones are a table of tests of their own.
UPLOADS = "POST /v1/code"


class Requests:
    """Sends generated requests with a key or a token; many are about jobs that are there."""

    def __init__(self, store: Store, key: str) -> None:
        self.store, self.key, self.seen = store, key, Counter[tuple[str, int]]()
        schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(store))
        found = [found.ok() for found in schema.get_all_operations()]
        # What is reported comes first, so that everything else has it to show.
        known = (operation for operation in found if operation.label != UPLOADS)
        self.operations = sorted(known, key=lambda operation: operation.label != REPORTS)
        self._spec = JobSpec.model_validate(EXAMPLE_JOB)
        over = Reporting(store, self._spec)
        over.run_to_the_end()
        self._jobs = [over.job_id, store.add_job(self._spec)[0].id]
        self._running = self._start()

    def _start(self) -> Reporting:
        running = Reporting(self.store, self._spec)
        for arm in ("tuned", "dense"):
            running.start(arm)
        running.stage("tuned", 0, rate=0.1, density=0.01)
        self._jobs.append(running.job_id)
        return running

    def send(self, case: Case, known: int) -> None:
        """Send `case` and check its answer; `known` says of which job that is there it is, 0: of whatever it names."""
        label, headers = case.operation.label, {"Authorization": f"Bearer {self.key}"}
        if known and "/attempts/" in label:
            headers = self._as_driver(case)
        elif known and "{job}" in label:
            case.path_parameters["job"] = self._jobs[-1 - known % len(self._jobs)]
        if label == "GET /v1/methods":
            case.query.pop("shapes", None)  # whose cost has tests of its own
        answer = case.call(headers=headers)
        self.seen[label, answer.status_code] += 1
        self._running._sequence += (label, answer.status_code) == (REPORTS, 200)
        case.validate_response(answer, checks=CHECKS)

    def _as_driver(self, case: Case) -> dict[str, str]:
        """Have `case` come from a job's own driver, with the batch that is next, of its own trials."""
        if self.store.job(self._running.job_id).state in TERMINAL:
            self._running = self._start()
        running = self._running
        case.path_parameters.update(job=running.job_id, number=running.number)
        if isinstance(case.body, dict) and "stream" in case.body:
            case.body |= {"stream": "driver", "sequence": running._sequence + 1}
            records = case.body.get("records")
            for record in records if isinstance(records, list) else ():
                if isinstance(record, dict) and "trial_id" in record:
                    record["trial_id"] = running.trial("tuned")
        return {"Authorization": f"Bearer {self.store.token(running.job_id, running.number)}"}


def send_all(requests: Requests, num_each: int) -> list[str]:
    """Send requests to every operation, `num_each` that follow the document and as many that break it.

    Return what was wrong with their answers, the first of each operation.
    """
    failures = []
    for operation, mode in product(requests.operations, MODES):

        @hypothesis_settings(
            max_examples=num_each, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
        )  # fmt: skip
        @seed(27)
        @given(case=operation.as_strategy(generation_mode=mode), known=st.integers(0, 5))
        def send(case: Case, known: int) -> None:
            requests.send(case, known)

        try:
            send()
        except Unsatisfiable:  # nothing of it can be broken
            assert operation.label in ("GET /healthz", "GET /readyz")
        except (CheckFailed, FailureGroup) as failure:
            failures.append(f"{operation.label}: {failure}")
    return failures


def test_no_request_breaks_the_service_or_gets_an_answer_that_is_not_documented(store: Store, key: str) -> None:
    requests = Requests(store, key)

    failures = send_all(requests, num_each=7)

    assert not failures, "\n".join(failures)
    assert requests.seen.total() >= 300
    made = [("POST /v1/jobs", 202), ("POST /v1/jobs:validate", 200), ("POST /v1/jobs/{job}:clone", 202), (REPORTS, 200)]
    assert set(made) <= requests.seen.keys()


@pytest.mark.long
def test_ten_thousand_requests_break_nothing(store: Store, key: str) -> None:
    requests = Requests(store, key)

    failures = send_all(requests, num_each=250)

    assert not failures, "\n".join(failures)
    assert requests.seen.total() >= 10_000
