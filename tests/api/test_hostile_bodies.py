"""Hostile bodies cost little time and memory, get a short refusal, and delay nobody."""

import gc
import re
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from api.documents import checked, parse_json, parse_yaml
from api.http import bodies
from api.http.bodies import MAX_BATCH_BYTES, MAX_BATCH_VALUES
from service.errors import InvalidJob
from service.job.spec import JobSpec
from service.wire.records import MAX_RECORDS, Batch
from tests.api.conftest import Reporting
from tests.support.patience import PATIENCE_S
from trainers.spec.refusals import MAX_TOLD

MIB = 2**20
#: What a body may cost, processor seconds and bytes. The former is six times the goal: processors differ.
MAX_S, MAX_BYTES = 1.2, 20e6
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
JOB = '"workload": {"kind": "digits-mlp"}, "budget": {"steps": 9}'

FIELDS = "".join(f', "u{n}": 1' for n in range(600))


def _filled(start: str, part: str, end: str = "") -> str:
    return start + part * ((MIB - len(start) - len(end)) // len(part)) + end


def _numbered(start: str, part: str, end: str) -> str:
    return start + "".join(part % number for number in range((MIB - len(start) - len(end)) // len(part % 10**5))) + end


JSON = {
    "unknown fields": _numbered("{" + JOB, ', "u%d": 1', "}"),
    "as many unknown fields as may be": "{" + JOB + "".join(f', "u{n}": 1' for n in range(19_900)) + "}",
    "as many wrong labels as may be": '{"labels": {'
    + ", ".join(f'"u{n}": []' for n in range(6_000))
    + "},"
    + JOB
    + "}",
    "as many arms as may be": '{"arms": ['
    + ", ".join('{"name": "a", "x": 1}' for n in range(6_000))
    + "],"
    + JOB
    + "}",
    "as many seeds as may be": '{"seeds": [' + ", ".join(str(n) for n in range(16_000)) + "]," + JOB + "}",
    "wrong densities": '{"exchange": {"kind": "topk", "density": [' + '"x",' * 19_000 + '"x"]},' + JOB + "}",
    "unknown fields in all arms": '{"arms": ['
    + ",".join(f'{{"name": "a{arm}"{FIELDS}}}' for arm in range(32))
    + f"],{JOB}}}",
    "as many trials as may be": '{"arms": ['
    + ",".join(f'{{"name": "a{arm}"}}' for arm in range(32))
    + f'],"seeds": {list(range(100))},{JOB}}}',
    "empty lists": _filled('{"name": [', "[],", "[]]}"),
    "empty objects": _filled('{"name": [', "{},", "{}]}"),
    "numbers": _filled('{"seeds": [', "1,", "1]}"),
    "deep lists": _filled("", "["),
    "deep objects": _filled("", '{"a":'),
    "a long name": '{"' + "x" * (MIB - 10) + '": 1}',
    "a long word": '{"workload": {"kind": "' + "x" * (MIB - 60) + '"}, "budget": {"steps": 9}}',
    "a long text": '{"name": "' + "x" * (MIB - 100) + '",' + JOB + "}",
    "a long number": '{"seeds": [' + "9" * (MIB - 100) + "]}",
    "escapes": '{"name": "' + "\\u1234" * (MIB // 6 - 20) + '",' + JOB + "}",
}
YAML = {
    "aliases": LAUGHS,
    "an alias of what it is in": "name: &a [*a]",
    "deep lists": "[" * 3000,
    "a megabyte of deep lists": _filled("", "["),
    "deep objects": _filled("", "{a: "),
    "deep sequences": _filled("", "- "),
    "deep questions": _filled("", "? "),
    "indents": "".join(" " * n + "a:\n" for n in range(1400)),
    "unknown fields": _numbered("", "u%d: 1\n", ""),
    "a long list": _filled("seeds: [", "1,", "1]"),
    "documents": _filled("", "---\n"),
    "tag directives": _numbered("", "%%TAG !a%d! b\n", "---\na: 1"),
    "a long tag": "!<" + "a" * (MIB - 10) + "> b",
    "a long key": "x" * (MIB - 10) + ": 1",
    "a folded text": _filled("name: >\n", " x\n\n"),
    "a long hexadecimal number": "seeds: [0x" + "f" * (MIB - 20) + "]",
    "comments": _filled("", "#\n"),
    "twice the same name": "".join(f"u{n}: 1\n" for n in range(9_000)) + "u8999: 1\n",
}
BODIES = [
    *(pytest.param(parse_json, text, id=f"JSON, {name}") for name, text in JSON.items()),
    *(pytest.param(parse_yaml, text, id=f"YAML, {name}") for name, text in YAML.items()),
]


#: As those of bodies: the most that a batch of a driver may cost, which is larger.
MAX_BATCH_S, MAX_BATCH_MEMORY = 1.5, 60e6
BATCH = '{"stream": "driver", "sequence": 1, "records": ['
SERIES = '{"kind": "metrics", "trial_id": "t", "name": "n", "steps": [], "seconds": [], "values": []}'
BILLED = '{"kind": "billed", "trial_id": "t", "bill": {'


def _most(start: str, part: str, end: str) -> str:
    """Return a batch with as many values as may be, all of them like `part`."""
    return start + part * ((MAX_BATCH_VALUES - 30) // sum(map(part.count, ",[{"))) + end


def _overlong(start: str, part: str, end: str) -> str:
    return start + part * ((MAX_BATCH_BYTES - len(start) - len(end)) // len(part)) + end


BATCHES = {
    "8 MiB of empty lists": _overlong(BATCH, "[],", "[]]}"),
    "8 MiB of empty objects": _overlong(BATCH, "{},", "{}]}"),
    "8 MiB of numbers": _overlong(BATCH, "1,", "1]}"),
    "8 MiB of text": _overlong(BATCH + SERIES[:-1] + ', "x": "', "x", '"}]}'),
    "empty lists": _most(BATCH, "[],", "[]]}"),
    "empty objects": _most(BATCH, "{},", "{}]}"),
    "wrong steps": _most(BATCH + SERIES.replace('"steps": []', '"steps": [')[: SERIES.index("[") + 1], "[],", "1]}]}"),
    "diverged values": _most(BATCH + SERIES[:-2], "null,", "null]}]}"),
    "series without a point": _most(BATCH, SERIES + ",", SERIES + "]}"),
    "what a controller remembers": _most(
        BATCH + BILLED.replace("billed", "checkpoint") + '}, "stage": 0, "step": 1, "resume": {"a": [', "[],", "[]]}}]}"
    ),
    "unknown fields": BATCH + BILLED + "".join(f'"u{n}": 1,' for n in range(MAX_BATCH_VALUES - 30)) + '"z": 1}}]}',
    "options with unknown fields": BATCH
    + BILLED
    + '"by_option": {'
    + ",".join(f'"o{n}": {{' + ",".join(f'"u{i}": 1' for i in range(60)) + "}" for n in range(MAX_BATCH_VALUES // 63))
    + "}}}]}",
}


@pytest.mark.parametrize("text", BATCHES.values(), ids=BATCHES)
def test_a_hostile_batch_of_records_costs_little(text: str) -> None:
    body = text.encode()
    assert len(body) <= MAX_BATCH_BYTES

    spent_s, peak = _cost(lambda: checked(Batch, bodies.parse_batch(body)))

    assert spent_s < MAX_BATCH_S
    assert peak < MAX_BATCH_MEMORY


def test_a_batch_has_so_many_records(http: TestClient, reporting: Reporting) -> None:
    token = reporting.store.attempts.token(reporting.job_id, reporting.number)
    started = reporting.trial("tuned")
    reporting.start("tuned")
    text = BATCH.replace('"sequence": 1', '"sequence": 2') + ",".join([SERIES.replace('"t"', f'"{started}"')] * 1001)

    answer = http.post(
        f"/v1/attempts/{reporting.job_id}/{reporting.number}/records",
        content=text + "]}",
        headers={"Authorization": f"Bearer {token}"},
    )

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/records")
    assert str(MAX_RECORDS) in answer.json()["detail"]


def _cost(read: Callable[[], object]) -> tuple[float, int]:
    """Return the processor seconds of `read`, which may refuse, and the most bytes that it held at a time."""
    gc.freeze()  # as the service does: collections pass over all that other tests have left
    started = time.thread_time()
    with suppress(InvalidJob):
        read()
    spent_s = time.thread_time() - started
    gc.unfreeze()
    tracemalloc.start()
    with suppress(InvalidJob):
        read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return spent_s, peak


@pytest.mark.parametrize(("parse", "text"), BODIES)
def test_a_hostile_body_costs_little(parse: Callable[[bytes], Any], text: str) -> None:
    body = text.encode()
    assert len(body) <= MIB

    spent_s, peak = _cost(lambda: checked(JobSpec, parse(body)))

    assert spent_s < MAX_S
    assert peak < MAX_BYTES


def test_while_a_hostile_body_is_read_others_are_answered(
    live_url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read, is_answered = threading.Event(), threading.Event()

    def held(*args: Any, **options: Any) -> Any:
        is_read.set()
        assert is_answered.wait(PATIENCE_S), "nobody was answered until a body was read"
        return checked(*args, **options)

    monkeypatch.setattr(bodies, "checked", held)
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(_validate, live_url, key, JSON["as many unknown fields as may be"], "json")
        assert is_read.wait(PATIENCE_S)
        assert httpx2.get(f"{live_url}/healthz", timeout=PATIENCE_S, trust_env=False).is_success
        is_answered.set()

    assert answer.result().status_code == 422


def test_hostile_bodies_that_come_together_are_each_refused_in_few_words(live_url: str, key: str) -> None:
    sent = [(text, kind) for kind, texts in (("json", JSON), ("yaml", YAML)) for text in texts.values()]

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda body: _validate(live_url, key, *body), sent))

    assert {answer.status_code for answer in answers} <= {200, 422}
    assert max(len(answer.content) for answer in answers) < 50_000


def _validate(live_url: str, key: str, text: str, kind: str) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": f"application/{kind}"}
    return httpx2.post(
        f"{live_url}/v1/jobs:validate", content=text, headers=headers, timeout=PATIENCE_S, trust_env=False
    )


@pytest.mark.parametrize("text", ["budget: &b {seconds: 9}", LAUGHS, "name: &a [*a]", "name: *nobody"])
@pytest.mark.parametrize("door", ["/v1/jobs", "/v1/jobs/{job}:clone"])
def test_anchors_and_aliases_are_refused_with_their_place(
    http: TestClient, reporting: Reporting, door: str, text: str
) -> None:
    path, headers = door.format(job=reporting.job_id), {"Content-Type": "application/yaml"}

    answer = http.post(path, content=text, headers=headers)

    assert answer.status_code == 422
    assert re.search(r"anchors and aliases .* are not allowed.*line 1", answer.json()["detail"])


def test_of_many_faults_the_first_are_told_and_the_rest_are_counted(http: TestClient) -> None:
    answer = http.post("/v1/jobs", content=JSON["as many unknown fields as may be"])

    told = answer.json()["errors"]
    assert len(told) == MAX_TOLD + 1
    assert told[0]["pointer"] == "/u0"
    assert told[-1]["message"].startswith(f"and {19_900 - MAX_TOLD} more faults")
