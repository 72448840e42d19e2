"""Measure how many workers, jobs and drivers of a simulated cluster one API and one PostgreSQL can carry.

    make bench-scale                                                        # 1,000 workers, 10,000 jobs, 100 drivers
    PYTHONPATH=. python benchmarks/scale.py --minutes 1 --jobs 400 --drivers 20 --workers 200                # a look

The service with its reconciler, the database, and all HTTP traffic are real: submissions, Ray's Jobs API, and each
driver's brief, leases and records, by the classes that drivers use. Ray and training are simulated: Ray only keeps a
list of submissions, and a driver reports a second's points every second and ends after `--job-seconds`.

A line of JSON each half minute shows the progress and what waits; the last line is about the whole run. They are
appended to the file of `--json`. `over` names a missed goal: a lease that took longer than it lasts, a lost attempt, or
a round of the reconciler above 5 s.
"""

import argparse
import json
import queue
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from replicas import load
from rows import append

from api.cli.local import start_server, stop_server
from api.client import Client
from api.local_service import Server
from service.cluster.reporter import Door, LeaseKeeper, Reporter, Stopped
from service.control.processes import wait_until
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.records import (
    DRIVER_STREAM,
    Acknowledgement,
    AttemptFinished,
    Batch,
    Bill,
    Billed,
    MetricPoints,
    TrialFinished,
    TrialStarted,
)
from tests.support import postgres_server

STEPS_PER_SECOND = 10
SUBMITTERS = 8
REPORT_EVERY_S = 30.0
ROUND_GOAL_S = 5.0
NODE_CPUS = 10


class Watch:
    """The waits of drivers and users. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, list[float]] = {}
        self.counts: Counter[str] = Counter()

    def note(self, what: str, seconds: float) -> None:
        """Add one wait."""
        with self._lock:
            self._seconds.setdefault(what, []).append(seconds)

    def count(self, what: str) -> None:
        """Add one event."""
        with self._lock:
            self.counts[what] += 1

    def figures(self) -> dict[str, Any]:
        """Return each wait's number, median, 99th percentile and largest, in ms, and all counts."""
        with self._lock:
            waits = {what: np.array(seconds) * 1000 for what, seconds in self._seconds.items()}
            counts = dict(self.counts)
        shown = {
            what: [len(ms), *(round(float(np.percentile(ms, share)), 1) for share in (50, 99, 100))]
            for what, ms in waits.items()
        }
        return {"waits_ms": shown, **counts}


class TimedDoor(Door):
    """A driver's HTTP calls, timed."""

    watch: Watch

    def post(self, batch: Batch) -> Acknowledgement:
        """Send records."""
        began = time.perf_counter()
        answer = super().post(batch)
        self.watch.note("records", time.perf_counter() - began)
        return answer

    def renew(self, *, timeout_s: float) -> Acknowledgement:
        """Renew the lease."""
        began = time.perf_counter()
        try:
            return super().renew(timeout_s=timeout_s)
        finally:
            self.watch.note("lease", time.perf_counter() - began)


class SimulatedRay:
    """Ray's Jobs API over a list of submissions; `drivers` threads take one after the other."""

    def __init__(self, watch: Watch, *, workers: int, drivers: int, job_s: float) -> None:
        self.watch, self.num_nodes, self.job_s = watch, workers // NODE_CPUS, job_s
        self.status: dict[str, str] = {}
        self.todo: queue.SimpleQueue[tuple[str, dict[str, str]]] = queue.SimpleQueue()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.request_queue_size = 128
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        for number in range(drivers):
            threading.Thread(target=self._drive_all, name=f"driver-{number}", daemon=True).start()

    @property
    def url(self) -> str:
        """Return the address that the service is given."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def submit(self, body: dict[str, Any]) -> None:
        """Take a submission; one that is known already counts once."""
        submission_id = body["submission_id"]
        if submission_id not in self.status:
            self.status[submission_id] = "PENDING"
            self.todo.put((submission_id, body["runtime_env"]["env_vars"]))

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return what Ray would answer."""
        if path == "/api/version":
            return 200, {"ray_version": "2.60.0"}
        if path.startswith("/api/v0/nodes"):
            return 200, {"data": {"result": {"result": [self._node(number) for number in range(self.num_nodes)]}}}
        if path.startswith("/api/v0/actors"):
            return 200, {"data": {"result": {"result": []}}}
        if path == "/api/jobs/" and method == "POST":
            self.submit(body)
            return 200, {"submission_id": body["submission_id"]}
        if path == "/api/jobs/":
            return 200, [{"submission_id": each, "status": status} for each, status in list(self.status.items())]
        name, _, rest = path.removeprefix("/api/jobs/").partition("/")
        if name not in self.status:
            return 404, {}
        if rest == "stop":
            self.status[name] = "STOPPED"
        return 200, {"logs": ""} if rest == "logs" else {"status": self.status[name]}

    def _node(self, number: int) -> dict[str, Any]:
        total = {"CPU": float(NODE_CPUS)}
        name = f"node-{number}"
        return {"node_id": name, "node_ip": name, "state": "ALIVE", "is_head_node": False, "resources_total": total}

    def _handler(outer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, content = outer.answer(self.command, self.path, json.loads(body or b"{}"))
                answer = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = _do

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def _drive_all(self) -> None:
        while True:
            submission_id, environment = self.todo.get()
            self.status[submission_id] = "RUNNING"
            try:
                self._drive(environment)
                self.status[submission_id] = "SUCCEEDED"
                self.watch.count("jobs_done")
            except (Stopped, httpx2.HTTPError) as error:
                self.status[submission_id] = "FAILED"
                self.watch.count(f"driver_stopped: {error}"[:80])

    def _drive(self, environment: dict[str, str]) -> None:
        """Do what the program of a Ray Job does, without training."""
        door = TimedDoor(
            api_url=environment["WIRETUNE_API_URL"],
            job_id=environment["WIRETUNE_JOB"],
            attempt=int(environment["WIRETUNE_ATTEMPT"]),
            token=environment["WIRETUNE_TOKEN"],
        )
        door.watch = self.watch
        with closing(door):
            brief = door.brief()
            lease = LeaseKeeper(door, renew_s=brief.renew_s, max_silence_s=brief.max_silence_s, on_loss=lambda _: None)
            stream = Reporter(door, DRIVER_STREAM, max_silence_s=brief.max_silence_s)
            trial = Reporter(door, brief.trials[0].trial_id, max_silence_s=brief.max_silence_s)
            with closing(lease), closing(stream), closing(trial):
                self._train(trial, brief.trials[0].trial_id)
                stream.flush(AttemptFinished(outcome="succeeded"))

    def _train(self, reporter: Reporter, trial_id: str) -> None:
        reporter.report(TrialStarted(trial_id=trial_id, arm="default", seed=0, backend="gloo", device="cpu"))
        began = time.monotonic()
        for second in range(max(1, int(self.job_s))):
            steps = tuple(range(second * STEPS_PER_SECOND, (second + 1) * STEPS_PER_SECOND))
            seconds = tuple(step / STEPS_PER_SECOND for step in steps)
            losses = tuple(1 / (1 + step) for step in steps)
            points = MetricPoints(trial_id=trial_id, name="loss", steps=steps, seconds=seconds, values=losses)
            bill = Billed(trial_id=trial_id, bill=Bill(steps=steps[-1] + 1))
            reporter.report(points, bill)
            time.sleep(max(0.0, began + second + 1 - time.monotonic()))
        ended = TrialFinished(
            trial_id=trial_id, outcome="completed", validation_loss=0.1, schedule=(), bill=Bill(), weights_url=None
        )
        reporter.flush(ended)


@contextmanager
def served(settings: Settings) -> Iterator[Server]:
    """Run the service with its reconciler as a process."""
    try:
        yield start_server(settings)
    finally:
        stop_server(settings)


def submit(server: Server, watch: Watch, num_jobs: int, stop: threading.Event) -> None:
    """Submit jobs as several users do at once, each after the answer to the last."""
    spec = JobSpec.model_validate(
        {"workload": {"kind": "digits-mlp"}, "workers": {"count": NODE_CPUS}, "budget": {"steps": 1000}}
    )
    numbers = iter(range(num_jobs))
    lock = threading.Lock()

    def one_after_the_other(_: int) -> None:
        with Client(server.url, server.key) as client:
            while not stop.is_set():
                with lock:
                    if next(numbers, None) is None:
                        return
                began = time.perf_counter()
                client.submit(spec)
                watch.note("submit", time.perf_counter() - began)

    with ThreadPoolExecutor(SUBMITTERS) as users:
        list(users.map(one_after_the_other, range(SUBMITTERS)))


def read(server: Server, watch: Watch, stop: threading.Event) -> None:
    """Look at the newest jobs and at the queue, as a person with the page does."""
    with Client(server.url, server.key) as client:
        while not stop.wait(1.0):
            for what, call in (("list", client.jobs), ("queue", client.queue)):
                began = time.perf_counter()
                call()
                watch.note(what, time.perf_counter() - began)


def standing(server: Server, settings: Settings) -> dict[str, Any]:
    """Return what `/metrics` says of jobs, attempts, rounds and writes, and the memory of the service."""
    text = httpx2.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.key}"}, timeout=60).text
    values = {
        name: float(value) for name, value in re.findall(r"^(wiretune_\S+|process_\S+) (\S+)$", text, re.MULTILINE)
    }
    rounds = values.get('wiretune_round_seconds_count{loop="reconciler"}', 0.0)
    states = {state: int(values[f'wiretune_jobs{{state="{state}"}}']) for state in ("queued", "running", "succeeded")}
    return {
        "states": states,
        "attempts_failed": int(values.get('wiretune_attempts{outcome="failed"}', 0)),
        "lease_left_s": round(values.get("wiretune_lease_left_seconds", settings.lease_s), 1),
        "round_mean_s": round(values.get('wiretune_round_seconds_sum{loop="reconciler"}', 0.0) / max(rounds, 1), 3),
        "writes_waiting": values.get("wiretune_writes_waiting"),
        "requests": int(sum(v for name, v in values.items() if name.startswith("wiretune_http_requests_total"))),
        "rss_mb": round(values.get("process_resident_memory_bytes", 0.0) / 1e6),
        "processor_s": round(values.get("process_cpu_seconds_total", 0.0), 1),
    }


def goals_missed(figures: dict[str, Any], settings: Settings) -> list[str]:
    """Return the goals that these figures miss, the gravest first."""
    slowest_ms = figures["waits_ms"].get("lease", [0, 0, 0, 0])[3]
    missed = {
        "an attempt was lost": figures["attempts_failed"] > 0,
        f"a renewal took longer than a lease, {settings.lease_s:g} s": slowest_ms > settings.lease_s * 1000,
        f"a round of the reconciler took over {ROUND_GOAL_S:g} s": figures["round_mean_s"] > ROUND_GOAL_S,
    }
    return [goal for goal, is_missed in missed.items() if is_missed]


def simulate(given: argparse.Namespace, database_url: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Run the simulation, and yield figures each half minute and at the end."""
    watch, stop = Watch(), threading.Event()
    ray = SimulatedRay(watch, workers=given.workers, drivers=given.drivers, job_s=given.job_seconds)
    settings = Settings(state_dir=folder, database_url=database_url, ray_address=ray.url, port=0)
    with served(settings) as server:
        began = time.monotonic()
        users = [
            threading.Thread(target=submit, args=(server, watch, given.jobs, stop), daemon=True),
            threading.Thread(target=read, args=(server, watch, stop), daemon=True),
        ]
        for user in users:
            user.start()
        while (elapsed := time.monotonic() - began) < given.minutes * 60 and watch.counts["jobs_done"] < given.jobs:
            wait_until(
                lambda: watch.counts["jobs_done"] >= given.jobs,
                timeout_s=min(REPORT_EVERY_S, given.minutes * 60 - elapsed),
            )
            figures = {"seconds": round(time.monotonic() - began), "load": load(), **watch.figures()}
            figures |= standing(server, settings)
            yield figures | {"over": goals_missed(figures, settings)}
        stop.set()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000, help="of the cluster, ten on a node; a job has ten")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--drivers", type=int, default=100, help="that run at a time")
    parser.add_argument("--job-seconds", type=float, default=6.0)
    parser.add_argument("--minutes", type=float, default=10.0, help="after which it ends, done or not")
    parser.add_argument("--database-url", default="", help="an empty PostgreSQL database; else one is started")
    parser.add_argument("--json", type=Path, help="a file to add the lines to")
    given = parser.parse_args()
    own = None
    if not given.database_url:
        programs = postgres_server.find_programs()
        if programs is None:
            raise SystemExit(postgres_server.HOW_TO_GET_ONE)
        own = postgres_server.Server(programs)
    try:
        url = given.database_url
        if own is not None:
            databases = postgres_server.Databases(own.url)
            url = databases.create()
        of_run = {name: getattr(given, name) for name in ("workers", "jobs", "drivers", "job_seconds")}
        with tempfile.TemporaryDirectory() as place:
            for line in simulate(given, url, Path(place) / "state"):
                row = of_run | line
                print(json.dumps(row), flush=True)
                if given.json:
                    append(given.json, row)
    finally:
        if own is not None:
            databases.close()
            own.stop()
