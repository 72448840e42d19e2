"""Kill parts of the service at random, and count what is lost. Goal: nothing.

    python benchmarks/chaos.py --rounds 200 [--json FILE] [--seed 0] [--kill KIND] [--session 50]

Each round kills one thing with SIGKILL, drawn by the seed. Five rounds of ten kill the API's process (`api`). One each
kills a job's driver (`driver`), Tune's process of a trial (`trial`), one of two workers (`worker`), a part of the local
Ray (`head`), and all processes of the service at once (`tree`). Meanwhile jobs run, and clients submit more and retry.

A session is one live service for `--session` rounds. Then all jobs must come to their ends, and the session is audited.
Its lines go to FILE: first the rounds, then the audit. A rerun repeats a session that was cut off, and goes on with the
next. The last output is the table of counts.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from faults import audit
from faults.clients import Clients
from faults.live import LiveService, Victim, adopt_orphans, insist, kill
from rows import append, read

from api.client import Client
from service.control import processes
from service.job.states import TERMINAL, JobState

KINDS = ("api", "driver", "trial", "worker", "head", "tree")
DECK = ("api",) * 5 + KINDS[1:]
#: What must be 0.
WRONG = (
    "lost", "duplicates", "points_lost", "points_doubled", "points_differ", "weights_differ", "wedged", "failed",
    "orphans", "folders", "damaged",
)  # fmt: skip
NUM_RUNNING = 2
#: Longest that a job may take to train its next step after a kill, or to end after the last one.
PATIENCE_S = 300.0
#: Share of the rounds of a kind that wait until training goes on; the kill of a driver is timed.
PATIENT = {"api": 0.0, "driver": 0.9, "trial": 0.3, "worker": 0.3, "head": 0.3, "tree": 0.3}
#: Steps that no report can still bring that left before the kill.
CLEARLY_FURTHER = 40
Json = dict[str, Any]


def main() -> int:
    given = parse()
    rows = read(given.json) if given.json is not None else []
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the clean-up
    while (done := num_rounds(rows)) < given.rounds:
        first, last = done, min(given.rounds, done + given.session)
        kinds = [given.kill or kind_of(number, given.seed) for number in range(first, last)]
        new = session(kinds, seed=given.seed, first=first)
        if given.json is not None:
            append(given.json, *new)
        rows += new
    print(table(rows))
    return int(any(sum(row[name] for row in rows if row["kind"] == "audit") for name in WRONG))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, required=True, help="in all, with those that are in FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="lines are appended; what is in it is not repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill", choices=KINDS, help="this kind alone")
    parser.add_argument("--session", type=int, default=50, help="rounds of one live service")
    return parser.parse_args()


def num_rounds(rows: list[Json]) -> int:
    return sum(row["kind"] != "audit" for row in rows)


def kind_of(number: int, seed: int) -> str:
    """Return what round `number` kills: every ten rounds are a shuffled deck."""
    deck = list(DECK)
    random.Random(f"{seed}/{number // len(DECK)}").shuffle(deck)
    return deck[number % len(DECK)]


# -- a session --------------------------------------------------------------------------------------------


def session(kinds: list[str], *, seed: int, first: int) -> list[Json]:
    """Run one service under the kills of `kinds`; return a line for each, and the audit's."""
    draw = random.Random(f"{seed}/{first}")
    with tempfile.TemporaryDirectory(prefix="wt-chaos-") as folder:
        service = LiveService(Path(folder), num_cpus=2 * NUM_RUNNING, max_attempts=100)
        try:
            clients = Clients(service, num_running=NUM_RUNNING, seed=draw.randrange(2**31))
            clients.run_undisturbed(timeout_s=PATIENCE_S)
            clients.start()
            rows = [told(one_round(service, kind, draw), first + number) for number, kind in enumerate(kinds)]
            clients.stop()
            clients.wait_for_all(timeout_s=PATIENCE_S)
            with service.client() as client:
                found = insist(lambda: audit.of_jobs(client, clients.book))
            found |= audit.of_leftovers(service, clients.book)
        finally:
            kill(Victim(os.getpid(), "tree"))
    return [*rows, told({"kind": "audit"} | found, first + len(kinds))]


def told(row: Json, number: int) -> Json:
    """Return `row` with what every line says, and print it."""
    row = {"round": number, **row, "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", "load": os.getloadavg()[0]}
    print(json.dumps(row), flush=True)
    return row


def one_round(service: LiveService, kind: str, draw: random.Random) -> Json:
    """Kill something of `kind`, have it come back, and return how long that took.

    A patient round kills while a job trains, and waits until it trains again. The others kill at any moment, and so
    meet starts and recoveries.
    """
    is_patient = draw.random() < PATIENT[kind]
    before = wait_for_training(service) if is_patient else {}
    victim = service.victim(kind, jobs=before, draw=draw)
    time.sleep(draw.uniform(0.2, 1.5))
    before = {job: position for job, position in positions(service).items() if job in before}
    kill(victim)
    killed = time.monotonic()
    row: Json = {"kind": kind, "victim": victim.name}
    if kind in ("api", "tree"):
        service.restart_api()
        row["api_s"] = time.monotonic() - killed
    if before:
        disturbed = {job: at for job, at in before.items() if victim.job_id in (None, job)}
        row["stuck"] = wait_for_steps(service, disturbed)
        row["step_s"] = time.monotonic() - killed
    return row


class Position(NamedTuple):
    """A job's progress: its attempt, and its committed steps."""

    attempt: int
    step: int


def positions(service: LiveService) -> dict[str, Position]:
    """Return how far the running jobs are."""
    with service.client() as client:
        jobs = insist(lambda: client.jobs(state=JobState.RUNNING)).jobs
        return {job.id: position(client, job.id) for job in jobs}


def wait_for_training(service: LiveService) -> dict[str, Position]:
    """Return how far jobs are, once there is one that has trained steps in this attempt."""
    found: dict[str, Position] = {}

    def is_so() -> bool:
        found.update({job: at for job, at in positions(service).items() if at.step > 0})
        return bool(found)

    processes.wait_until(is_so, timeout_s=PATIENCE_S, every_s=0.2)
    return found


def position(client: Client, job_id: str) -> Position:
    view, (trial,) = insist(lambda: client.job(job_id).view), insist(lambda: client.trials(job_id))
    return Position(sys.maxsize if view.state in TERMINAL else view.attempt, trial.step)


def wait_for_steps(service: LiveService, before: dict[str, Position]) -> int:
    """Wait until each job has trained a step since `before`; return how many have not within `PATIENCE_S`."""
    start, waiting = dict(before), set(before)
    deadline = time.monotonic() + PATIENCE_S
    with service.client() as client:
        while waiting and time.monotonic() < deadline:
            for job in sorted(waiting):
                now = position(client, job)
                if start[job] == before[job] and now.attempt > before[job].attempt:
                    start[job] = now  # it has gone back to its last checkpoint
                if has_trained(start[job], now, is_new=start[job].attempt > before[job].attempt):
                    waiting.remove(job)
            time.sleep(0.1)
    return len(waiting)


def has_trained(start: Position, now: Position, *, is_new: bool) -> bool:
    """Return whether a job at `now` has trained since `start`, which is an attempt's beginning if `is_new`."""
    return now.attempt == sys.maxsize or now.step > start.step + (0 if is_new else CLEARLY_FURTHER)


# -- the table --------------------------------------------------------------------------------------------


def table(rows: list[Json]) -> str:
    """Return the counts of all that is recorded."""
    kills = Counter(row["kind"] for row in rows if row["kind"] != "audit")
    audits = [row for row in rows if row["kind"] == "audit"]
    total = {name: sum(row[name] for row in audits) for name in ("submitted", "acknowledged", "runs", *WRONG)}
    api = [row["api_s"] for row in rows if row["kind"] == "api"]
    step = [row["step_s"] for row in rows if row["kind"] == "driver" and "step_s" in row]
    loads = [row["load"] for row in rows]
    lines = [
        f"{sum(kills.values())} kills: " + ", ".join(f"{kills[kind]} {kind}" for kind in KINDS),
        f"{total['submitted']} submissions, {total['acknowledged']} acknowledged; {total['runs']} jobs trained",
        f"load {min(loads):.1f} to {max(loads):.1f}",
        timing("API back and serving", api, goal_s=10),
        timing("first step after the kill of a driver", step, goal_s=30),
        "; ".join(f"{name.replace('_', ' ')} {total[name]}" for name in WRONG),
    ]
    return "\n".join(lines)


def timing(what: str, seconds: list[float], *, goal_s: float) -> str:
    if not seconds:
        return f"{what}: not measured"
    return (
        f"{what}: p50 {statistics.median(seconds):.1f} s, max {max(seconds):.1f} s of {len(seconds)} (goal {goal_s} s)"
    )


if __name__ == "__main__":
    sys.exit(main())
