"""Compare `exchange: {kind: auto}` with the best of its options, on several links. benchmarks/auto.md has the rules.

    python benchmarks/auto.py run   [--links unlimited 1000 100 10] [--seeds 0 1 2] [--arms auto none ...] [--file FILE]
    python benchmarks/auto.py table [--file FILE]

Two hosts train to a validation loss: once with `auto`, and once with each of its options alone, or with those of
`--arms`, in an order that turns with the seed. In all of them the same controller searches the learning rate, on the
clock, with the same budget. Each run is a line of FILE. Recorded runs are not repeated, unless they were disturbed.
Needs root and iproute2, else ends with 2.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: workers are forked, which a pool of threads does not survive
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

from races import auto_table, network, tasks
from races.auto_race import ARMS, AUTO, NUM_HOSTS, TASK, Race, Watcher, trial
from races.book import Book
from races.hosts import HostGroup
from races.race import turned

from search.surrogate.acquisition import warm_up
from service.cluster.trial import train
from trainers.training.call_results import WorkerFailed, WorkerLost

Json = dict[str, Any]
FILE = Path(__file__).parent / "auto.jsonl"
#: An option alone is stopped when it has taken so many times as long as the best run with its link and seed, or when
#: its speed is such that this share of the fewest steps with which any run got there takes longer.
PATIENCE, LEAST_STEPS = 1.15, 0.9
#: Validation loss that ends a run.
TARGET = 2.15
SEEDS = (0, 1, 2)
#: Seconds by link in Mbit/s, somewhat more than the best option needs: a search takes a share of them.
BUDGETS = {"unlimited": 115.0, "1000": 125.0, "100": 125.0, "10": 190.0}


def main() -> int:
    given = parse()
    book = Book(given.file)
    if given.what == "table":
        auto_table.print_all(book.rows)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the clean-up
    tasks.build(TASK)  # here, so that it is loaded once
    warm_up()  # BoTorch loads for seconds
    try:
        with network.made(NUM_HOSTS) as hosts:
            return run_all(book, hosts, given)
    except network.NoNetwork as error:
        print(error, file=sys.stderr)
        return 2


def run_all(book: Book, hosts: network.Network, given: argparse.Namespace) -> int:
    """Run what is missing, all arms of a link one after the other; returns how many runs failed.

    An option that did not get there with a seed before is left out: it is not the best.
    """
    num_failed = 0
    for seed in given.seeds:
        for link in given.links:
            race = Race(None if link == "unlimited" else float(link), BUDGETS[link], seed, TARGET)
            hosts.limit(race.mbps)
            for arm in turned(given.arms, seed, of=len(SEEDS)):
                calm = [row for row in book.find(mbps=race.mbps, arm=arm) if not auto_table.is_disturbed(row)]
                is_slow = any(row["seed"] < seed and row["seconds"] is None for row in calm)
                if not is_slow and all(row["seed"] != seed for row in calm):
                    num_failed += attempt(book, hosts, race, arm)
    return num_failed


def attempt(book: Book, hosts: network.Network, race: Race, arm: str) -> int:
    """Run an arm and note what came of it; returns 1 if it failed: calling this program again makes up for it."""
    reached = [row["seconds"] for row in book.find(**asdict(race)) if row["seconds"] is not None]
    patience_s = race.budget_s if arm == AUTO or not reached else PATIENCE * min(reached)
    fewest = min([row["steps"] for row in book.rows if row["steps"] is not None], default=0.0)
    watcher = Watcher(race.target, patience_s, least_steps=0.0 if arm == AUTO else LEAST_STEPS * fewest)
    try:
        row = measure(hosts, race, arm, watcher)
    except (WorkerFailed, WorkerLost) as error:
        print(f"{arm}: {error}", file=sys.stderr, flush=True)
        return 1
    book.add("run", [row])
    print(f"{race.mbps or 'unlimited'} Mbit/s, seed {race.seed}, {arm}: {auto_table.told(row)}", flush=True)
    return 0


def measure(hosts: network.Network, race: Race, arm: str, watcher: Watcher) -> Json:
    """Train to the loss, and return what is recorded of it as JSON."""
    spec = trial(race, arm)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, HostGroup(spec.replica, hosts) as group:
        finished = train(spec, group, watcher, trial_id="run", storage_url=folder)
    return asdict(race) | {"arm": arm} | watcher.told(finished) | {"load": os.getloadavg()[0], "at": int(time.time())}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--links", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--file", type=Path, default=FILE)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
