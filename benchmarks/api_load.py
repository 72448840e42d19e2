"""What requests cost the service: processor time and the 99th percentile, in one process, request after request.

    python benchmarks/api_load.py                       # SQLite, 100,000 jobs in the list
    python benchmarks/api_load.py --database-url URL    # an empty PostgreSQL database

The application is called without sockets, so that the figures are those of our code and of the database.
"""

import argparse
import asyncio
import itertools
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sqlalchemy import insert

from api.http.app import create_app
from api.http.openapi import EXAMPLE_JOB
from service.control import database
from service.control.models import JobRow, LabelRow, TrialRow
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


def fill(store: Store, url: str, count: int) -> None:
    """Write `count` jobs that are over straight into the tables: two trials each, every fourth of the same team."""
    view, _ = store.add_job(JobSpec.model_validate(EXAMPLE_JOB))
    spec, bill = view.spec.model_dump(mode="json"), Bill().model_dump(mode="json")
    engine = database.connect(url)
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        ids = [f"job-{number:024x}" for number in numbers]
        jobs = [
            {"id": each, "name": f"job {each}", "state": "succeeded", "spec": spec, "created_at": 0.0} for each in ids
        ]
        labels = [
            {"job_id": each, "name": "team", "value": "red" if number % 4 == 0 else "blue"}
            for number, each in zip(numbers, ids, strict=True)
        ]
        trials = [
            {"id": f"{each}.{arm}.0", "job_id": each, "position": 0, "arm": arm, "seed": 0, "bill": bill,
             "validation_loss": 0.5}
            for each in ids for arm in ("tuned", "dense")
        ]  # fmt: skip
        with engine.begin() as connection:
            connection.execute(insert(JobRow), jobs)
            connection.execute(insert(LabelRow), labels)
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


async def run(store: Store, num_calls: int) -> list[tuple[str, float, float]]:
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
        "first 50 jobs with a label": (lambda: caller("GET", "/v1/jobs?label=team=red"), 200),
        "first 50 jobs with a label of nobody": (lambda: caller("GET", "/v1/jobs?label=team=none"), 200),
    }
    return [(name, *await measured(call, status=status, num_calls=num_calls)) for name, (call, status) in calls.items()]


def main() -> None:
    """Fill a database, call, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database-url", default="")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(state_dir=Path(folder), database_url=given.database_url)
        store = Store.open(settings)
        fill(store, settings.resolved_database_url, given.jobs)
        rows = asyncio.run(run(store, given.calls))
        store.close()
    kind = "PostgreSQL" if given.database_url else "SQLite"
    table = Table(title=f"{kind}, {given.jobs:,} jobs; load of the machine {os.getloadavg()[0]:.1f}")
    for column in ("request", "processor, ms", "p99, ms"):
        table.add_column(column, justify="left" if column == "request" else "right")
    for name, processor, p99 in rows:
        table.add_row(name, f"{processor:.2f}", f"{p99:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
