"""Compare `exchange: {kind: auto}` with the best of its options, on several links. benchmarks/auto.md has the rules.

    python benchmarks/auto.py run   [--links unlimited 1000 100 10] [--seeds 0 1 2] [--arms auto none ...] [--file FILE]
    python benchmarks/auto.py table [--file FILE]

Two hosts train to a validation loss: once with `auto`, and once with each of its options alone, or with those of
`--arms`. In all of them the same controller searches the learning rate, on the clock, with the same budget. The runs on
a link with a seed take turns, a second at a time. Each is a line of FILE. A race is not repeated, unless it was
disturbed. Needs root and iproute2, else ends with 2.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: workers are forked, which a pool of threads does not survive
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

from races import auto_table, network, tasks
from races.auto_race import ARMS, AUTO, NUM_HOSTS, TASK, Race, Watcher, trial
from races.auto_table import told
from races.book import Book
from races.hosts import HostGroup
from races.turns import Turns

from search.surrogate.acquisition import warm_up
from service.cluster.trial import train

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
    """Run the races that are missing; returns how many runs failed."""
    num_failed = 0
    for seed in given.seeds:
        for link in given.links:
            race = Race(None if link == "unlimited" else float(link), BUDGETS[link], seed, TARGET)
            if all(map(auto_table.is_disturbed, book.find(**asdict(race)))):
                hosts.limit(race.mbps)
                num_failed += run_race(book, hosts, race, contenders(book, race, given.arms))
    return num_failed


def contenders(book: Book, race: Race, arms: Sequence[str]) -> list[str]:
    """Return the `arms` without options that did not get there with a seed before: none of them is the best."""
    calm = [row for row in book.find(mbps=race.mbps) if not auto_table.is_disturbed(row) and row["seed"] < race.seed]
    slow = [row["arm"] for row in calm if row["seconds"] is None and row["arm"] != AUTO]
    return [arm for arm in arms if arm not in slow]


def run_race(book: Book, hosts: network.Network, race: Race, arms: Sequence[str]) -> int:
    """Run the arms, which take turns, and note what came of them; returns how many failed."""
    turns, rows, num_failed = Turns(arms), list[Json](), 0
    least_steps = LEAST_STEPS * min((row["steps"] for row in book.rows if row["steps"] is not None), default=0.0)
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        pool = opened.enter_context(ThreadPoolExecutor(len(arms)))
        runs = [
            opened.enter_context(closing(Run(race, arm, hosts, turns, number=number, least_steps=least_steps)))
            for number, arm in enumerate(arms)
        ]
        for ended in as_completed([pool.submit(run.train, f"{folder}/{number}") for number, run in enumerate(runs)]):
            if (error := ended.exception()) is not None:
                num_failed += 1
                print(f"{race}: {error!r}", file=sys.stderr, flush=True)
                continue
            rows.append(row := asdict(race) | ended.result())
            print(f"{auto_table.link_name(race.mbps)}, seed {race.seed}, {row['arm']}: {told(row)}", flush=True)
            for run in runs:
                run.be_patient(rows)
    if not num_failed:  # calling this program again makes up for it
        book.add("run", rows)
    return num_failed


class Run:
    """A run that takes turns with the others of its race."""

    def __init__(
        self, race: Race, arm: str, hosts: network.Network, turns: Turns, *, number: int, least_steps: float
    ) -> None:
        self.arm, self._turns, self._spec = arm, turns, trial(race, arm)
        least = 0.0 if arm == AUTO else least_steps
        self._watcher = Watcher(race.target, race.budget_s, least_steps=least, now=partial(turns.seconds, arm))
        self._group = HostGroup(self._spec.replica, hosts, number=number, wait=partial(turns.wait, arm))

    def close(self) -> None:
        self._group.close()

    def train(self, folder: str) -> Json:
        """Train to the loss, and return what is recorded of it as JSON."""
        self._turns.wait(self.arm)
        try:
            finished = train(self._spec, self._group, self._watcher, trial_id="run", storage_url=folder)
        finally:
            self._turns.leave(self.arm)
        seen = self._watcher.told(finished)
        return {"arm": self.arm} | seen | {"load": os.getloadavg()[0], "at": int(time.time())}

    def be_patient(self, rows: Sequence[Json]) -> None:
        """Go on for as long as an option that may still be the best, beside the `rows` of runs that have ended."""
        reached = [row["seconds"] for row in rows if row["seconds"] is not None]
        if reached and self.arm != AUTO:
            self._watcher.patience_s = PATIENCE * min(reached)


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
