"""What does each published method learn, send and cost on a slow link? docs/comparison.md has the rules.

    python benchmarks/methods.py rates [--tasks ...] [--methods ...]
    python benchmarks/methods.py run   [--tasks ...] [--methods ...] [--seeds 0]
    python benchmarks/methods.py table

Four hosts train for 200 steps. `rates` chooses each method's learning rate on each task without a limit, `run` trains
at it on cables of 100 Mbit/s, beside dense training and the controls. Each appends its rows to FILE; what is in it is
not run again. Needs root and iproute2, else ends with 2.
"""

import argparse
import itertools
import math
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: workers are forked, which a pool of threads does not survive
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

from contest import methods_table, network, ours, rates
from contest.book import Book
from contest.methods import ALWAYS, FAMILIES, METHODS
from contest.race import Rules, Runner, race, row
from contest.team import Team, WorkerFailed
from pydantic import ValidationError

Json = dict[str, Any]
FILE = Path(__file__).parent / "methods.jsonl"
#: Of each kind of data one task whose hosts draw from all of it, and one whose hosts differ.
TASKS = ("images", "images-apart", "text", "text-apart")
NUM_HOSTS = 4
MBPS = 100.0
STEPS, BLOCK = 200, 20
FIRST_RATE = 0.04
#: No loss is as low, so every run is as long.
NO_TARGET = 0.0


def main() -> int:
    given = parse()
    book = Book(given.file)
    if given.what == "table":
        methods_table.print_all(book.rows)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the clean-up
    try:
        with network.made(NUM_HOSTS) as hosts:
            return {"rates": choose_rates, "run": run_all}[given.what](book, hosts, given)
    except network.NoNetwork as error:
        print(error, file=sys.stderr)
        return 2


def choose_rates(book: Book, hosts: network.Network, given: argparse.Namespace) -> int:
    """Go downhill on the grid of rates by the loss in the end; returns 1 if a run failed."""
    has_failed = False
    for task, (name, arm) in itertools.product(given.tasks, chosen(given).items()):
        tried = tried_rates(book, task, name)
        try:
            while (rate := rates.next_downhill(tried, start=FIRST_RATE, grid=rates.GRID)) is not None:
                found = train(hosts, rules_of(task, rates.SEEDS[0], None), name, arm, rate)
                book.add("rates", [found])
                tried[rate] = merit(found)
                print(f"{task}, {name}: {methods_table.final_loss(found):.3f} at rate {rate:g}", flush=True)
        except WorkerFailed as error:
            has_failed = True
            print(f"{task}, {name}: {error}", file=sys.stderr, flush=True)
    return int(has_failed)


def train(hosts: network.Network, rules: Rules, name: str, arm: str | Json, rate: float) -> Json:
    """Train one method alone; returns its row."""
    with Team(hosts, arm, task=rules.task, seed=rules.seed) as team:
        team.wait()
        team.begin(rate)
        runner = Runner(team, rate)
        while not runner.is_done(rules):
            runner.advance(rules)
        return row(name, runner, rules, hosts.num_hosts)


def run_all(book: Book, hosts: network.Network, given: argparse.Namespace) -> int:
    """Race each family with dense training and the controls; returns 1 if a race failed."""
    has_failed = False
    for seed, task, family in itertools.product(given.seeds, given.tasks, FAMILIES.values()):
        done = {each["arm"] for each in book.find(kind="run", task=task, seed=seed)}
        missing = {name: arm for name, arm in family.items() if name in given.methods and name not in done}
        arms = {name: arm for name, arm in (ALWAYS | missing).items() if tried_rates(book, task, name)}
        if not set(arms) - set(ALWAYS):
            continue
        try:
            at = {name: best_rate(book, task, name) for name in arms}
            book.add("run", race(hosts, rules_of(task, seed, MBPS), arms, at))
            print(f"{task}, seed {seed}: {', '.join(set(arms) - set(ALWAYS))}", flush=True)
        except WorkerFailed as error:
            has_failed = True
            print(f"{task}, seed {seed}: {error}", file=sys.stderr, flush=True)
    return int(has_failed)


def chosen(given: argparse.Namespace) -> Mapping[str, str | Json]:
    """Return the methods of the command line that this version of the product can run, after those that always run."""
    able = {}
    for name in given.methods:
        try:
            ours.configuration(METHODS[name], given.tasks[0], seed=0)
            able[name] = METHODS[name]
        except ValidationError as error:
            print(f"{name}: {error.errors()[0]['msg']}", file=sys.stderr)
    return ALWAYS | able


def rules_of(task: str, seed: int, mbps: float | None) -> Rules:
    return Rules(task, seed, mbps, block_steps=BLOCK, max_steps=STEPS, target=NO_TARGET)


def tried_rates(book: Book, task: str, name: str) -> dict[float, rates.Merit]:
    return {each["rate"]: merit(each) for each in book.find(kind="rates", task=task, arm=name)}


def best_rate(book: Book, task: str, name: str) -> float:
    tried = tried_rates(book, task, name)
    return min(tried, key=tried.__getitem__)


def merit(found: Json) -> rates.Merit:
    """Return the loss in the end: the lower, the better."""
    return (math.inf, methods_table.final_loss(found))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "run", "table"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--file", type=Path, default=FILE)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
