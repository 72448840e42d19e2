"""Measure the cost of requests to the service, and how many it answers.

    python benchmarks/api_load.py calls                        # SQLite, 100,000 jobs in the list
    python benchmarks/api_load.py served --database-url URL    # an empty PostgreSQL database

`calls` prints processor time and the 99th percentile of single requests. It calls the application without sockets, so
the figures show our code and the database. `served` sends many requests at a time over HTTP to a process of the
service on the same cores:

- submissions with key, idempotency key and validation, 16 at a time, and lists of 100,000 jobs, 4 at a time;
- points of two attempts' series, in batches, for a minute;
- `/readyz` during a large download that 50 readers do not read, and `/healthz` during bodies made to be costly.
"""

import argparse
import asyncio
import itertools
import json
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from replicas import Replica, load, running
from rich.console import Console
from rich.table import Table
from sqlalchemy import insert

from api.http.app import create_app
from api.http.examples import EXAMPLE_JOB
from service.control.database.engine import connect
from service.control.models import JobRow, JobTextRow, LabelRow, TrialRow
from service.control.store import Store
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.records import Bill

BATCH = 5_000
#: Status, headers and body.
Answer = tuple[int, dict[str, str], bytes]


class Caller:
    """Calls the application as a server does, with a key; each call gives status, headers and body."""

    def __init__(self, store: Store) -> None:
        self._app, self._key = create_app(store), store.add_key("load")

    async def __call__(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Return the answer to one request."""
        plain, _, query = path.partition("?")
        named = {"authorization": f"Bearer {self._key}", "content-type": "application/json"} | dict(headers or {})
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": plain, "raw_path": plain.encode(),
            "query_string": query.encode(), "headers": [(name.encode(), text.encode()) for name, text in named.items()],
            "root_path": "", "scheme": "http", "server": ("127.0.0.1", 8470), "client": ("127.0.0.1", 1),
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._app(scope, receive, send)  # type: ignore[arg-type]
        start, *parts = sent
        answered = {name.decode(): text.decode() for name, text in start["headers"]}
        return start["status"], answered, b"".join(part.get("body", b"") for part in parts)


def fill(url: str, count: int) -> None:
    """Write `count` jobs that are over straight into the tables: two trials each, every fourth of the same team."""
    spec, bill = JobSpec.model_validate(EXAMPLE_JOB).model_dump(mode="json"), Bill().model_dump(mode="json")
    engine = connect(url)
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        ids = [f"job-{number:024x}" for number in numbers]
        jobs = [
            {"id": each, "name": f"job {each}", "state": "succeeded", "spec": spec, "created_at": 0.0,
             "finished_at": float(number)}
            for number, each in zip(numbers, ids, strict=True)
        ]  # fmt: skip
        labels = [
            {"job_id": each, "name": "team", "value": "red" if number % 4 == 0 else "blue"}
            for number, each in zip(numbers, ids, strict=True)
        ]
        texts = [
            {"job_id": label["job_id"], "text": f"job {label['job_id']}\nteam\n{label['value']}"} for label in labels
        ]
        trials = [
            {"id": f"{each}.{arm}.0", "job_id": each, "position": 0, "arm": arm, "seed": 0, "bill": bill,
             "validation_loss": 0.5}
            for each in ids for arm in ("tuned", "dense")
        ]  # fmt: skip
        with engine.begin() as connection:
            connection.execute(insert(JobRow), jobs)
            connection.execute(insert(LabelRow), labels)
            connection.execute(insert(JobTextRow), texts)
            connection.execute(insert(TrialRow), trials)
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    engine.dispose()


async def measured(call: Callable[[], Awaitable[Answer]], *, status: int, num_calls: int) -> tuple[float, float]:
    """Return the milliseconds of processor that a call takes, and the 99th percentile of its elapsed ones."""
    elapsed, before = [], 0.0
    for number in range(-20, num_calls):
        if number == 0:
            before = time.process_time()
        began = time.perf_counter()
        answered, _, body = await call()
        assert answered == status, body
        elapsed.append(time.perf_counter() - began)
    spent = time.process_time() - before
    return 1e3 * spent / num_calls, 1e3 * float(np.percentile(elapsed[20:], 99))


async def call_all(store: Store, num_calls: int) -> list[tuple[str, float, float]]:
    """Return each call's name, milliseconds of processor and 99th percentile."""
    caller, body, unique = Caller(store), json.dumps(EXAMPLE_JOB).encode(), itertools.count()
    _, headers, _ = await caller("POST", "/v1/jobs", body=body)
    job = headers["location"]
    _, headers, _ = await caller("GET", job)
    known = {"if-none-match": headers["etag"]}

    async def submit() -> Answer:
        return await caller("POST", "/v1/jobs", body=body, headers={"idempotency-key": f"once-{next(unique)}"})

    calls: dict[str, tuple[Callable[[], Awaitable[Answer]], int]] = {
        "submit a job (key, idempotency, validation)": (submit, 202),
        "validate a job": (lambda: caller("POST", "/v1/jobs:validate", body=body), 200),
        "one job": (lambda: caller("GET", job), 200),
        "one job, unchanged": (lambda: caller("GET", job, headers=known), 304),
        "first 50 jobs": (lambda: caller("GET", "/v1/jobs"), 200),
        "first 50 jobs with their progress": (lambda: caller("GET", "/v1/jobs?progress=true"), 200),
        "first 50 jobs with a label": (lambda: caller("GET", "/v1/jobs?label=team=red"), 200),
        "first 50 jobs with a label of nobody": (lambda: caller("GET", "/v1/jobs?label=team=none"), 200),
        "first 50 jobs to end": (lambda: caller("GET", "/v1/jobs?order_by=finished"), 200),
        "last 50 jobs to end": (lambda: caller("GET", "/v1/jobs?order_by=-finished"), 200),
        "first 50 jobs with a word of all": (lambda: caller("GET", "/v1/jobs?text=job"), 200),
        "jobs with a word of nobody": (lambda: caller("GET", "/v1/jobs?text=nobody"), 200),
    }
    return [(name, *await measured(call, status=status, num_calls=num_calls)) for name, (call, status) in calls.items()]


class Line:
    """One kept connection, which sends a request once it has the last one's answer."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self._key = replica, replica.reached["key"]

    async def open(self) -> "Line":
        """Connect."""
        address = urlsplit(self._replica.reached["url"])
        self._reader, self._writer = await asyncio.open_connection(address.hostname, address.port)
        return self

    def send(self, method: str, path: str, body: bytes = b"", *, key: str = "", **headers: str) -> None:
        """Send a request, and wait for nothing."""
        told = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {key or self._key}\r\n{told}"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )

    async def answer(self) -> int:
        """Read an answer to its end, and return its status."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        await self._reader.readexactly(int(length[1]) if length else 0)
        return int(head[9:12])

    def close(self) -> None:
        """Let go of the connection."""
        self._writer.close()


#: Sends the next request on a connection.
Ask = Callable[[Line], None]


async def load_with(replica: Replica, ask: Ask, *, status: int, lines: int, seconds: float) -> list[float]:
    """Ask on so many connections, each anew once it has its answer, and return the seconds of each answer."""
    opened = [await Line(replica).open() for _ in range(lines)]
    until, elapsed = time.perf_counter() + seconds, []

    async def ask_on(line: Line) -> None:
        while (began := time.perf_counter()) < until:
            ask(line)
            answered = await line.answer()
            assert answered == status, answered
            elapsed.append(time.perf_counter() - began)
        line.close()

    await asyncio.gather(*(ask_on(line) for line in opened))
    return elapsed


def points_of(replica: Replica, stream: str, *, num_points: int) -> Ask:
    """Return what sends the next batch of a loss curve of its own."""
    sequences = itertools.count(1)

    def ask(line: Line) -> None:
        sequence = next(sequences)
        steps = range((sequence - 1) * num_points, sequence * num_points)
        losses = [2.3 / (1 + step / 1e4) ** 0.5 for step in steps]
        record = {
            "kind": "metrics", "trial_id": replica.reached["trial"], "name": f"loss_{stream}"[:64],
            "steps": [*steps], "seconds": [0.02 * step for step in steps], "values": losses,
        }  # fmt: skip
        batch = {"stream": stream, "sequence": sequence, "records": [record]}
        line.send(
            "POST", replica.records_path, json.dumps(batch).encode(), key=replica.reached["token"],
            content_type="application/json",
        )  # fmt: skip

    return ask


@asynccontextmanager
async def stalled(replica: Replica, *, readers: int) -> AsyncIterator[None]:
    """Have readers that ask for all points as CSV, and take nothing of it."""
    lines = [await Line(replica).open() for _ in range(readers)]
    for line in lines:
        line.send("GET", f"/v1/jobs/{replica.reached['job']}/metrics.csv")
    await asyncio.sleep(1)
    yield
    for line in lines:
        line.close()


@asynccontextmanager
async def hostile(replica: Replica) -> AsyncIterator[None]:
    """Have a client that sends one costly body after another."""
    bodies = [(b"[" * 2**20, "json"), (b"{a: " * 2**18, "yaml"), (b'{"seeds": [' + b"1," * 5 * 10**5 + b"1]}", "json")]

    async def send_on() -> None:
        line = await Line(replica).open()
        for body, kind in itertools.cycle(bodies):
            line.send("POST", "/v1/jobs", body, content_type=f"application/{kind}")
            assert 400 <= await line.answer() < 500

    sending = asyncio.create_task(send_on())
    await asyncio.sleep(1)
    yield
    assert not sending.done(), sending.exception()
    sending.cancel()


async def serve_all(replica: Replica, seconds: float) -> list[tuple[str, str, list[float]]]:
    """Return what was asked for, how much of it came in a second, and the seconds of each answer."""
    body, unique = json.dumps(EXAMPLE_JOB).encode(), itertools.count()

    def submit(line: Line) -> None:
        line.send("POST", "/v1/jobs", body, content_type="application/json", idempotency_key=f"once-{next(unique)}")

    def get(path: str) -> Ask:
        return lambda line: line.send("GET", path)

    rows = []
    for name, ask, status, lines in (
        ("submissions, 16 at a time", submit, 202, 16),
        ("first 50 jobs, 4 at a time", get("/v1/jobs"), 200, 4),
        ("first 50 jobs with a label, 4 at a time", get("/v1/jobs?label=team=red"), 200, 4),
    ):
        elapsed = await load_with(replica, ask, status=status, lines=lines, seconds=seconds)
        rows.append((name, f"{len(elapsed) / seconds:,.0f}", elapsed))
    num_points, ingest_s = 2000, 6 * seconds
    asks = [points_of(replica, stream, num_points=num_points) for stream in ("driver", replica.reached["trial"])]
    batches = await asyncio.gather(*(load_with(replica, ask, status=200, lines=1, seconds=ingest_s) for ask in asks))
    elapsed = [each for one in batches for each in one]
    rows.append(
        ("batches of 2,000 points, of two drivers", f"{len(elapsed) * num_points / ingest_s:,.0f} points", elapsed)
    )
    async with stalled(replica, readers=50):
        elapsed = await load_with(replica, get("/readyz"), status=200, lines=1, seconds=seconds)
    rows.append(("readyz beside 50 stalled readers", f"{len(elapsed) / seconds:,.0f}", elapsed))
    async with hostile(replica):
        elapsed = await load_with(replica, get("/healthz"), status=200, lines=1, seconds=seconds)
    rows.append(("healthz beside hostile bodies", f"{len(elapsed) / seconds:,.0f}", elapsed))
    return rows


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of a name and figures."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)


def called(database_url: str, jobs: int, num_calls: int) -> None:
    """Call the application in this process."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(state_dir=Path(folder), database_url=database_url)
        store = Store.open(settings)
        fill(settings.resolved_database_url, jobs)
        busy = load()
        rows = asyncio.run(call_all(store, num_calls))
        store.close()
    figures = [(name, f"{processor:.2f}", f"{p99:.1f}") for name, processor, p99 in rows]
    print_table(
        f"{_kind(database_url)}, {jobs:,} jobs; {busy} before", ["request", "processor, ms", "p99, ms"], figures
    )


def served(database_url: str, jobs: int, seconds: float) -> None:
    """Ask a process of the service over HTTP."""
    with running(database_url=database_url) as (replica,):
        fill(replica.reached["database"], jobs)
        busy = load()
        rows = asyncio.run(serve_all(replica, seconds))
    figures = [
        (name, rate, *(f"{1e3 * float(np.percentile(elapsed, each)):.1f}" for each in (50, 99)))
        for name, rate, elapsed in rows
    ]
    title = f"{_kind(database_url)}, {jobs:,} jobs; {busy} before, {load()} after"
    print_table(title, ["request", "a second", "p50, ms", "p99, ms"], figures)


def _kind(database_url: str) -> str:
    return "PostgreSQL" if database_url else "SQLite"


def main() -> None:
    """Fill a database, call or ask, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["calls", "served"])
    parser.add_argument("--database-url", default="")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load; points take six times as long")
    given = parser.parse_args()
    if given.part == "calls":
        called(given.database_url, given.jobs, given.calls)
    else:
        served(given.database_url, given.jobs, given.seconds)


if __name__ == "__main__":
    main()
