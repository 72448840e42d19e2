"""Take machines, cables, the head and the API away from a job on several machines, and check that it goes on.

    python benchmarks/nodes.py --nodes 2 --rounds 20 [--kinds node partition head api] [--mbps 100] [--json FILE]

A session is one cluster of network namespaces, each with its own address, on cables of 100 Mbit/s: a head without
cores, its Redis, the API, and `--nodes` Ray nodes of one core. One job has a rank on each node. A round does one thing:

- `node` kills a node with all its processes. The job goes on with the other nodes, and takes the node back when it
  returns.
- `partition` unplugs a node's cable for 30 s.
- `head` kills Ray's head, which restarts from the state in Redis.
- `api` kills the API, which restarts.

At the end the job is stopped, and audited: every step has one loss. Needs root, iproute2 and redis-server.

`--shell` runs no rounds: it opens a shell on the cluster's first machine, where `wiretune` talks to its service.
"""

import argparse
import csv
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from faults.live import insist
from faults.machines import Machines, NotReady, await_that, running
from races.network import NoNetwork
from rows import append

from service.job.states import TERMINAL

Json = dict[str, Any]
KINDS = ("node", "partition", "head", "api")
#: Longest that a job may take to train on after anything was taken away or given back.
PATIENCE_S = 600.0
PARTITION_S = 30.0
#: Steps that no report can still bring that left before the fault.
CLEARLY_FURTHER = 60


def job_of(num_nodes: int) -> Json:
    """Return a job with a rank on each node, which never ends by itself."""
    return {
        "name": f"{num_nodes} nodes",
        "workload": {"kind": "digits-mlp"},
        "workers": {"count": num_nodes, "min": 1, "placement": "spread", "patience_s": 5, "timeout_s": 15},
        "exchange": {"kind": "threshold", "density": 0.05},
        "controller": {"kind": "fixed"},
        "optimizer": {"kind": "schedulefree_sgd", "learning_rate": 0.05},
        "budget": {"steps": 10_000_000},
        "checkpoint": {"every_seconds": 5},
    }


class Position(NamedTuple):
    """The progress of the job, and its number of workers."""

    state: str
    attempt: int
    step: int
    workers: int


class Session:
    """A cluster and its job."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        with machines.client() as client:
            self.job = client.submit(job_of(machines.num_nodes)).id

    def position(self) -> Position:
        with self.machines.client() as client:
            view = insist(lambda: client.job(self.job).view)
            (trial,) = insist(lambda: client.trials(self.job))
            lives = insist(lambda: client.attempts(self.job))
        workers = lives[-1].workers or 0 if lives else 0
        return Position(view.state, view.attempt, trial.step, workers)

    def wait_for_training(self, since: Position | None, workers: Callable[[int], bool], what: str) -> float:
        """Return the seconds until the job has clearly trained since, with as many workers as asked for."""
        start = since or Position("", 0, 0, 0)

        def is_so() -> bool:
            nonlocal start
            now = self.position()
            if now.state in TERMINAL:
                raise NotReady(f"{what}: the job has ended as {now.state}")
            if now.attempt > start.attempt:
                start = now  # it has gone back to its last checkpoint
            return now.state == "running" and now.step > start.step + CLEARLY_FURTHER and workers(now.workers)

        return await_that(what, is_so, within_s=PATIENCE_S, every_s=0.5)

    def all_there(self) -> float:
        num = self.machines.num_nodes
        return self.wait_for_training(None, lambda workers: workers == num, "all workers")

    # -- the rounds --------------------------------------------------------------------------------------------

    def node(self, number: int) -> Json:
        node, before = 1 + number % self.machines.num_nodes, self.position()
        self.machines.kill(f"node{node}")
        gone_s = self.wait_for_training(before, lambda workers: workers > 0, f"training without node {node}")
        left = self.position().workers
        self.machines.start_node(node)
        back_s = self.wait_for_training(
            self.position(), lambda workers: workers == self.machines.num_nodes, f"training with node {node} again"
        )
        return {"node": node, "goes_on_s": gone_s, "went_on_with": left, "taken_back_s": back_s}

    def partition(self, number: int) -> Json:
        node = 1 + number % self.machines.num_nodes
        self.machines.plug(node, is_in=False)
        time.sleep(PARTITION_S)
        during = self.position()
        self.machines.plug(node, is_in=True)
        on_s = self.wait_for_training(during, lambda workers: workers > 0, "training after a partition")
        all_s = self.all_there()
        return {"node": node, "state_during": during.state, "goes_on_s": on_s, "taken_back_s": on_s + all_s}

    def head(self, _: int) -> Json:
        before = self.position()
        self.machines.kill("head")
        self.machines.start_head()
        return {"goes_on_s": self.wait_for_training(before, lambda workers: workers > 0, "training under a new head")}

    def api(self, _: int) -> Json:
        before = self.position()
        self.machines.kill("api")
        self.machines.start_api()
        after = self.position()
        on_s = self.wait_for_training(after, lambda workers: workers > 0, "training under a new API")
        return {"goes_on_s": on_s, "same_attempt": after.attempt == before.attempt}

    def audit(self) -> Json:
        """Stop the job; return how it ended, and how many of its steps have no loss, or several."""
        with self.machines.client() as client:
            insist(lambda: client.stop(self.job))
            await_that("the job's end", lambda: insist(lambda: client.job(self.job).view).state in TERMINAL,
                       within_s=PATIENCE_S)  # fmt: skip
            view, (trial,) = client.job(self.job).view, client.trials(self.job)
            table = io.BytesIO()
            client.save_metrics(self.job, table)
        steps = [int(row["step"]) for row in csv.DictReader(io.StringIO(table.getvalue().decode()))
                 if row["name"] == "loss"]  # fmt: skip
        return {
            "state": view.state,
            "attempts": view.attempt,
            "steps": trial.step,
            "points_lost": trial.bill.steps - len(set(steps)),
            "points_doubled": len(steps) - len(set(steps)),
            "steps_by_workers": trial.bill.steps_by_workers,
        }


def main() -> int:
    given = parse()
    rows: list[Json] = []
    folder = Path(tempfile.mkdtemp(prefix="wt-nodes-"))

    def tell(row: Json) -> None:
        told = {"nodes": given.nodes, "mbps": given.mbps, **row}
        told |= {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", "load": round(os.getloadavg()[0], 1)}
        rows.append(told)
        print(json.dumps(told), flush=True)
        if given.json is not None:
            append(given.json, told)

    try:
        with running(folder, given.nodes, cpus=1, mbps=given.mbps) as machines:
            if given.shell:
                return machines.shell()
            session = Session(machines)
            tell({"kind": "start", "all_there_s": session.all_there(), "workers": dict(machines.workers())})
            for number in range(given.rounds):
                kind = given.kinds[number % len(given.kinds)]
                row = getattr(session, kind)(number // len(given.kinds))
                tell({"kind": kind, "round": number} | row | {"back_s": session.all_there()})
            tell({"kind": "audit"} | session.audit())
    except NoNetwork as error:
        print(error, file=sys.stderr)
        return 2
    except NotReady as error:
        tell({"kind": "failed", "why": str(error), "logs": folder.name})
    print(table(rows))
    return int(any(row["kind"] == "failed" for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2, help="Ray nodes with cores")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="in turn")
    parser.add_argument("--shell", action="store_true", help="try the cluster by hand, until the shell ends")
    parser.add_argument("--mbps", type=float, default=100.0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="lines are appended")
    return parser.parse_args()


def table(rows: list[Json]) -> str:
    """Return the counts and times of all rounds."""
    counts = Counter(row["kind"] for row in rows)
    lines = [", ".join(f"{counts[kind]} {kind}" for kind in (*KINDS, "failed"))]
    for kind in KINDS:
        for name in ("goes_on_s", "taken_back_s"):
            if seconds := [row[name] for row in rows if row["kind"] == kind and name in row]:
                middle, most = statistics.median(seconds), max(seconds)
                lines.append(f"{kind}: {name} p50 {middle:.1f} s, max {most:.1f} s of {len(seconds)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
