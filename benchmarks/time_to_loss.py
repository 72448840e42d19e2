"""Race a job with `auto` to a loss, its search charged, against exchanges and rates chosen by hand.

    python benchmarks/time_to_loss.py run   [--tasks ...] [--networks 2x100 2x1000 4x100 4x1000] [--seeds 0 1 2]
    python benchmarks/time_to_loss.py smoke     every arm for some seconds, on one network; records nothing
    python benchmarks/time_to_loss.py table

Hosts are network namespaces with limited cables both ways, and their data differ. All arms are jobs' trials of one
trainer and one machine, one after the other; the order turns with the seed.

A baseline trains at the rate that needs the fewest steps on a network without a limit or, if no rate reaches the loss,
at the one with the lowest loss. The search for it goes downhill on `RATES`, until both neighbours of the best are
worse. It is not charged; the table says what it took. A rate is stopped once it is clearly slower than the arm's best.
If the best rate changes, the arm is raced again. The arm `auto` starts from `FIRST_RATE`, and everything it tries is on
its clock. A ratio compares two runs with the same seed; the table begins with how to read it.

*Alone* is a control that never exchanges: if it reaches the loss, the task needs no network. It is raced with the first
seed only, as is a baseline that did not reach the loss at any rate. Jobs have no Post-local SGD, so local SGD from the
first step replaces it. Needs root and iproute2, else ends with 2. On two idle cores `run` takes hours. Each run is
written to FILE at once. Recorded runs are not repeated.
"""

import argparse
import itertools
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: workers are forked, which a pool of threads does not survive
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

from races import network, rates, tasks, time_table
from races.auto_race import Race, Watcher
from races.book import Book
from races.hosts import HostGroup
from races.race import turned
from races.time_table import AUTO, NETWORKS, SEEDS, TARGETS, best_rate, is_at, tried

from search.surrogate.acquisition import warm_up
from service.cluster.trial import train
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from trainers.training.call_results import WorkerFailed, WorkerLost

Json = dict[str, Any]
FILE = Path(__file__).parent / "time_to_loss.jsonl"
BUDGET_S = 240.0
#: Of AdamW, which all arms train with, half a decade apart.
RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
#: Where each arm begins, `auto` too.
FIRST_RATE = 0.003
GRID_SEED = 100
#: A rate has lost once it has trained for so many times the steps in which another one got to the loss.
CLEARLY_LATER = 1.1
ALONE = "alone"
#: What a job states for each baseline. DiLoCo has its paper's outer optimizer; it averages more often.
BASELINES: dict[str, Json] = {
    "plain": {"exchange": {"kind": "none"}},
    "fp16": {"exchange": {"kind": "fp16"}},
    "powersgd 4": {"exchange": {"kind": "powersgd", "rank": 4}},
    "top-k 1 %": {"exchange": {"kind": "topk", "density": 0.01}},
    "local SGD 8": {"sync": {"kind": "local_sgd", "period": 8}},
    "DiLoCo 20": {"sync": {"kind": "diloco", "period": 20, "outer_learning_rate": 0.7, "outer_momentum": 0.9}},
    ALONE: {"sync": {"kind": "local_sgd", "period": 100_000}},
}
ARMS = (AUTO, *BASELINES)


def trial(race: Race, task: str, num_hosts: int, arm: str, rate: float) -> TrialSpec:
    """Return the run as a job's trial; a baseline holds its rate."""
    stated = {"exchange": {"kind": AUTO}} if arm == AUTO else BASELINES[arm]
    job = {
        "workload": tasks.reference(task),
        "workers": {"count": num_hosts},
        "budget": {"seconds": race.budget_s},
        "checkpoint": {"every_seconds": 3600},
        "seeds": [race.seed],
        **stated,
        "optimizer": {"kind": "adamw", "learning_rate": rate},
        "controller": {"kind": "bo" if arm == AUTO else "fixed"},
    }
    return next(JobSpec.model_validate(job).trials())


# -- running -----------------------------------------------------------------------------------------------


def run_network(book: Book, given: argparse.Namespace, num_hosts: int, rates_mbps: Sequence[float]) -> int:
    """Run what is missing at so many hosts: the grids first, then the races; returns how many runs failed."""
    num_failed = 0
    with network.made(num_hosts) as hosts:
        for task in given.tasks:
            race = Race(None, given.budget, GRID_SEED, TARGETS[task])
            num_failed += sum(run_grid(book, hosts, race, task, arm) for arm in BASELINES if arm != ALONE)
        for seed, mbps, task in itertools.product(given.seeds, rates_mbps, given.tasks):
            race = Race(mbps, given.budget, seed, TARGETS[task])
            arms = ARMS if seed == SEEDS[0] else contenders(book.rows, task, num_hosts)
            for arm in turned(arms, seed, of=len(SEEDS)):
                num_failed += attempt(book, hosts, "race", race, task, arm, rate_of(book.rows, task, num_hosts, arm))
    return num_failed


def run_grid(book: Book, hosts: network.Network, race: Race, task: str, arm: str) -> int:
    """Look for the arm's rate; returns 1 if a run failed, which ends it."""
    while (rate := next_rate(book.rows, task, hosts.num_hosts, arm)) is not None:
        if attempt(book, hosts, "grid", race, task, arm, rate):
            return 1
    return 0


def next_rate(rows: Sequence[Json], task: str, num_hosts: int, arm: str) -> float | None:
    """Return the rate that the arm is to try next; None: both neighbours of its best one are worse."""
    return rates.next_downhill(tried(rows, task, num_hosts, arm), start=FIRST_RATE, grid=RATES)


def patience(rows: Sequence[Json], task: str, num_hosts: int, arm: str) -> float:
    """Return for how many steps the next rate of the grid may train."""
    took = [row["steps"] for row in rows if is_at(row, "grid", task, num_hosts) and row["arm"] == arm]
    return min((CLEARLY_LATER * steps for steps in took if steps is not None), default=math.inf)


def rate_of(rows: Sequence[Json], task: str, num_hosts: int, arm: str) -> float:
    """Return the best rate of the arm's grid; of arms without one, that at which grids begin."""
    return best_rate(tried(rows, task, num_hosts, arm)) or FIRST_RATE


def contenders(rows: Sequence[Json], task: str, num_hosts: int) -> tuple[str, ...]:
    """Return `auto` and the baselines that got to the loss in the grid."""
    there = {row["arm"] for row in rows if is_at(row, "grid", task, num_hosts) and row["steps"] is not None}
    return tuple(arm for arm in ARMS if arm == AUTO or arm in there)


def attempt(book: Book, hosts: network.Network, kind: str, race: Race, task: str, arm: str, rate: float) -> int:
    """Run an arm and note what came of it, unless it has a row; returns 1 if it failed."""
    key = {"task": task, "hosts": hosts.num_hosts, "mbps": race.mbps, "seed": race.seed, "arm": arm}
    if book.find(kind=kind, **key, rate=rate):
        return 0
    hosts.limit(race.mbps)
    patient = patience(book.rows, task, hosts.num_hosts, arm) if kind == "grid" else math.inf
    spec, watcher = trial(race, task, hosts.num_hosts, arm, rate), Watcher(race.target, race.budget_s, patient)
    load = os.getloadavg()[0]
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, HostGroup(spec.replica, hosts) as group:
            finished = train(spec, group, watcher, trial_id="run", storage_url=folder)
    except (WorkerFailed, WorkerLost) as error:
        print(f"{key}: {error}", file=sys.stderr, flush=True)
        return 1
    told = watcher.told(finished)
    book.add(kind, [{**key, "rate": rate, "target": race.target, **told, "load": load, "at": int(time.time())}])
    when = "not reached" if told["seconds"] is None else f"{told['seconds']:.1f} s"
    sent = told["bytes_sent"] / 1e6
    print(f"{kind} {' '.join(map(str, key.values()))}: {when}, {told['steps_taken']} steps, {sent:.1f} MB", flush=True)
    return 0


# -- the command line --------------------------------------------------------------------------------------


def main() -> int:
    given = parse()
    book = Book(given.file)
    if given.what == "table":
        print("\n".join((time_table.LEGEND, *time_table.table(book.rows))))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the clean-up
    warm_up()  # BoTorch loads for seconds
    try:
        if given.what == "smoke":
            return smoke()
        places = [tuple(map(int, place.split("x"))) for place in given.networks]
        hosts = dict.fromkeys(num_hosts for num_hosts, _ in places)
        return int(sum(run_network(book, given, n, [float(mbps) for m, mbps in places if m == n]) for n in hosts) > 0)
    except network.NoNetwork as error:
        print(error, file=sys.stderr)
        return 2


def smoke() -> int:
    """Train every arm for some seconds; returns 1 if one did not."""
    with tempfile.TemporaryDirectory() as folder, network.made(2) as hosts:
        book = Book(Path(folder) / "rows.jsonl")
        race = Race(100.0, 8.0, 0, target=0.0)
        failed = [attempt(book, hosts, "race", race, "text-apart", arm, FIRST_RATE) for arm in ARMS]
        still = [row["arm"] for row in book.rows if row["steps_taken"] == 0]
    print(f"took no step: {', '.join(still)}" if still else "every arm took steps")
    return int(any(failed) or bool(still))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "smoke", "table"))
    parser.add_argument("--tasks", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of a run, after which it has lost")
    parser.add_argument("--file", type=Path, default=FILE)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
