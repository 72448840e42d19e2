"""Compare what published methods learn, send and cost on a slow link. benchmarks/comparison.md has the rules.

    python benchmarks/methods.py rates [--tasks ...] [--methods ...]
    python benchmarks/methods.py run   [--tasks ...] [--methods ...] [--seeds 0]
    python benchmarks/methods.py pace  [--tasks ...] [--methods ...] [--seeds 0]
    python benchmarks/methods.py table

Four hosts train for 200 steps. `rates` chooses each method's learning rate on each task, without a link limit. `run`
trains at that rate on cables of 100 Mbit/s, and records losses and bytes, which other work on the machine does not
affect. `pace` times steps on such cables: the methods of a family take turns with dense training and the controls. Each
appends its rows to FILE. Recorded runs are not repeated, unless a better rate was found. Cables need root and iproute2;
without these, or with --emulate, the product emulates the links.
"""

import argparse
import contextlib
import itertools
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: workers are forked, which a pool of threads does not survive
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

from pydantic import ValidationError
from races import methods_table, network, ours, rates
from races.book import Book
from races.cables import Cables
from races.emulated import Emulated
from races.methods import ALWAYS, FAMILIES, METHODS
from races.race import Rules, race
from races.team import Team, WorkerFailed

Json = dict[str, Any]
#: By whether cables are emulated.
FILES = {False: Path(__file__).parent / "methods.jsonl", True: Path(__file__).parent / "methods-emulated.jsonl"}
#: Of each kind of data one task whose hosts draw from all of it, and one whose hosts differ.
TASKS = ("images", "images-apart", "text", "text-apart")
NUM_HOSTS = 4
MBPS = 100.0
STEPS, BLOCK = 200, 20
#: Of a method's steps that are timed; whole periods of those that average every so many steps.
TIMED_STEPS, TURN = 80, 16
#: For dense training; the others begin where it ended.
FIRST_RATE = 0.04
#: No loss is as low, so every run is as long.
NO_TARGET = 0.0


def main() -> int:
    given = parse()
    is_emulated = given.emulate or (given.what != "table" and not can_make_cables())
    book = Book(given.file or FILES[is_emulated])
    if given.what == "table":
        methods_table.print_all(book.rows)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the clean-up
    made = contextlib.nullcontext(Emulated(NUM_HOSTS)) if is_emulated else network.made(NUM_HOSTS)
    with made as hosts:
        kinds = {"rates": choose_rates, "run": run_all, "pace": pace_all}
        return int(kinds[given.what](book, hosts, given) > 0)


def can_make_cables() -> bool:
    """Return whether this machine lets us limit real cables; if not, says why."""
    try:
        network.check()
    except network.NoNetwork as error:
        print(f"{error}; until then the product emulates the cables of its methods", file=sys.stderr)
        return False
    return True


def choose_rates(book: Book, hosts: Cables, given: argparse.Namespace) -> int:
    """Choose the rate of each method on each task; returns how many searches failed."""
    pairs = itertools.product(given.tasks, chosen(given).items())
    return sum(attempt(choose_rate, book, hosts, task, name, arm) for task, (name, arm) in pairs)


def choose_rate(book: Book, hosts: Cables, task: str, name: str, arm: str | Json) -> None:
    """Try rates of the grid without a limit, until none is to be tried."""
    if next_rate(book, task, name) is None:
        return
    rules = rules_of(task, rates.SEEDS[0], None)
    with started(hosts, rules, arm) as team:
        while (rate := next_rate(book, task, name)) is not None:
            found = rates.run_one(hosts, team, rules, name, rate)
            book.add("rates", [found])
            print(f"{task}, {name}: {methods_table.final_loss(found):.3f} at rate {rate:g}", flush=True)


def next_rate(book: Book, task: str, name: str) -> float | None:
    """Go downhill by the loss in the end; a method that is worse than no exchange at all has the whole grid."""
    tried, dense, alone = (tried_rates(book, task, each) for each in (name, "dense", "nosync"))
    start = min(dense, key=dense.__getitem__, default=FIRST_RATE)
    downhill = rates.next_downhill(tried, start=start, grid=rates.GRID)
    if downhill is not None or not alone or min(tried.values()) <= min(alone.values()):
        return downhill
    return next((rate for rate in rates.GRID if rate not in tried), None)


def run_all(book: Book, hosts: Cables, given: argparse.Namespace) -> int:
    """Train with each method at its rate; returns how many failed."""
    hosts.limit(MBPS)
    num_failed = 0
    for seed, task, (name, arm) in itertools.product(given.seeds, given.tasks, chosen(given).items()):
        if not tried_rates(book, task, name):
            continue
        if not book.find(kind="run", task=task, arm=name, seed=seed, rate=best_rate(book, task, name)):
            num_failed += attempt(run, book, hosts, rules_of(task, seed, MBPS), name, arm)
    return num_failed


def run(book: Book, hosts: Cables, rules: Rules, name: str, arm: str | Json) -> None:
    with started(hosts, rules, arm) as team:
        found = rates.run_one(hosts, team, rules, name, best_rate(book, rules.task, name))
    book.add("run", [found])
    print(f"{rules.task}, seed {rules.seed}, {name}: {methods_table.final_loss(found):.3f}", flush=True)


def pace_all(book: Book, hosts: Cables, given: argparse.Namespace) -> int:
    """Time each family beside dense training and the controls; returns how many races failed."""
    num_failed = 0
    able = chosen(given)
    for seed, task, family in itertools.product(given.seeds, given.tasks, FAMILIES.values()):
        done = {each["arm"] for each in book.find(kind="pace", task=task, seed=seed)}
        missing = {name: arm for name, arm in family.items() if name in able and name not in done}
        arms = {name: arm for name, arm in (ALWAYS | missing).items() if tried_rates(book, task, name)}
        if set(arms) - set(ALWAYS):
            rules = Rules(task, seed, MBPS, block_steps=TURN, max_steps=TIMED_STEPS)
            num_failed += attempt(pace, book, hosts, rules, arms)
    return num_failed


def pace(book: Book, hosts: Cables, rules: Rules, arms: Mapping[str, str | Json]) -> None:
    at = {name: best_rate(book, rules.task, name) for name in arms}
    book.add("pace", race(hosts, rules, arms, at))
    print(f"{rules.task}, seed {rules.seed}: {', '.join(set(arms) - set(ALWAYS))}", flush=True)


def started(hosts: Cables, rules: Rules, arm: str | Json) -> Team:
    team = Team(hosts, arm, task=rules.task, seed=rules.seed)
    team.wait()
    return team


def attempt(act: Callable[..., None], *args: Any) -> int:
    """Return 1 if `act` failed, else 0: the others go on, and calling this program again makes up for it."""
    try:
        act(*args)
    except WorkerFailed as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


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
    parser.add_argument("what", choices=("rates", "run", "pace", "table"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--emulate", action="store_true", help="even where cables can be limited")
    parser.add_argument("--file", type=Path, help="default: beside this program, one for real cables, one for emulated")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
