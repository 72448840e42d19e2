"""Race exchanges to a loss on real, limited links. benchmarks/links.md has the rules.

    python benchmarks/links.py rates [--tasks ...] [--hosts 2 4] [--arms ...]
    python benchmarks/links.py reach [--tasks ...] [--networks 2x100 2x1000 4x100] [--seeds 0 1 2] [--arms ...]
    python benchmarks/links.py pace  [--tasks ...] [--networks 2x100 2x1000 4x100 2xunlimited]
    python benchmarks/links.py bytes [--tasks ...] [--networks 2xunlimited 4xunlimited 8xunlimited]
    python benchmarks/links.py table

`rates` chooses each arm's learning rate, `reach` races to a loss, `pace` compares step times with plain DDP's, and
`bytes` counts bytes. Each appends its rows to FILE. Recorded runs are not repeated. Needs root and iproute2, else ends
with 2.
"""

import argparse
import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: workers are forked, which a pool of threads does not survive
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

from races import arms, links_table, network, rates, tasks
from races.book import Book
from races.race import Rules, race
from races.team import WorkerFailed

FILE = Path(__file__).parent / "links.jsonl"
#: Where a kind of run takes place if nothing else is asked for, as HOSTSxMBPS.
NETWORKS = {
    "reach": ("2x100", "2x1000", "4x100"),
    "pace": ("2x100", "2x1000", "4x100", "2xunlimited"),
    "bytes": ("2xunlimited", "4xunlimited", "8xunlimited"),
}
SEEDS = {"reach": (0, 1, 2), "pace": (0,), "bytes": (0,)}
#: Dense steps that are timed on a link; the other ones take as long.
TIMED_STEPS = {"plain": 50, "none": 50}
Json = dict[str, Any]


class RateMissing(Exception):
    """An arm has no learning rate yet."""


class Record(Book):
    """A book that knows which learning rate each arm is to have."""

    def tried(self, task: str, hosts: int, arm: str) -> rates.Tried:
        """Return how good each rate was that the arm has tried on the way to the task's loss."""
        tried: rates.Tried = {}
        for row in self.find(kind="rates", task=task, hosts=hosts, arm=arm, target=tasks.GOALS[task].loss):
            tried.setdefault(row["rate"], {})[row["seed"]] = rates.merit(row)
        return tried

    def next_rate(self, task: str, hosts: int, arm: str, seed: int) -> float | None:
        """Return the rate that the arm is to try next with `seed`, if any."""
        return rates.next_rate(self.tried(task, hosts, arm), seed, start=tasks.GOALS[task].first_rate)

    def rate(self, task: str, hosts: int, arm: str) -> float:
        """Return the rate that was chosen; raises RateMissing if the search for it has not ended."""
        if any(self.next_rate(task, hosts, arm, seed) is not None for seed in rates.SEEDS):
            raise RateMissing(f"no rate was chosen for {arm} on {task} with {hosts} hosts: run `rates` first")
        return rates.best_rate(self.tried(task, hosts, arm))


def main() -> int:
    given = parse()
    book = Record(given.file)
    if given.what == "table":
        links_table.print_all(book.rows)
        return 0
    refused = [arms.refusal(name, task) for task in given.tasks for name in given.arms or arms.OURS]
    print("\n".join(filter(None, refused)), file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the clean-up
    try:
        network.check()
        kinds = {"rates": run_rates, "reach": run_reach, "pace": run_pace, "bytes": run_bytes}
        return int(kinds[given.what](book, given) > 0)
    except network.NoNetwork as error:
        print(error, file=sys.stderr)
        return 2


# -- the four kinds of run --------------------------------------------------------------------------------


def run_rates(book: Record, given: argparse.Namespace) -> int:
    """Choose the rate of each arm, on a network without a limit; returns how many runs failed."""
    num_failed = 0
    for num_hosts in given.hosts or (2, 4):
        with network.made(num_hosts) as hosts:
            for task in given.tasks:
                for arm in able(given.arms or arms.RACING, task):
                    num_failed += attempt(choose_rate, book, hosts, task, arm)
    return num_failed


def choose_rate(book: Record, hosts: network.Network, task: str, arm: str) -> None:
    """Try rates until one is chosen, with one seed after the other."""
    for seed in rates.SEEDS:
        if book.next_rate(task, hosts.num_hosts, arm, seed) is None:
            continue
        with rates.started(hosts, arm, task, seed) as team:
            while (rate := book.next_rate(task, hosts.num_hosts, arm, seed)) is not None:
                row = rates.run_one(hosts, team, rules_to_loss(task, None, seed), arm, rate)
                book.add("rates", [row])
                print(f"{task}, {hosts.num_hosts} hosts, {arm}, seed {seed}: {told(row)}", flush=True)


def rules_to_loss(task: str, mbps: float | None, seed: int) -> Rules:
    goal = tasks.GOALS[task]
    return Rules(task, seed, mbps, goal.block_steps, goal.max_steps, target=goal.loss)


def run_reach(book: Record, given: argparse.Namespace) -> int:
    """Race to the task's loss."""

    def rules_of(task: str, mbps: float | None, seed: int) -> Rules:
        return replace(rules_to_loss(task, mbps, seed), timed_steps=TIMED_STEPS)

    anchors = (arms.NOSYNC, arms.PLAIN, arms.RIVAL)
    return run_races(book, given, rules_of, entrants=arms.RACING, anchors=anchors)


def run_pace(book: Record, given: argparse.Namespace) -> int:
    """Take steps in short turns, with plain DDP among the arms; returns how many races failed."""

    def rules_of(task: str, mbps: float | None, seed: int) -> Rules:
        return Rules(task, seed, mbps, block_steps=5, max_steps=100)

    return run_races(book, given, rules_of, entrants=arms.PACED, anchors=(arms.NOSYNC, arms.PLAIN))


def run_bytes(book: Record, given: argparse.Namespace) -> int:
    """Count what each step sends, one step at a time, and its density; returns how many races failed."""

    def rules_of(task: str, mbps: float | None, seed: int) -> Rules:
        return Rules(task, seed, mbps, block_steps=1, max_steps=50)

    return run_races(book, given, rules_of, entrants=arms.COUNTED, anchors=())


def run_races(
    book: Record,
    given: argparse.Namespace,
    rules_of: Callable[[str, float | None, int], Rules],
    *,
    entrants: Sequence[str],
    anchors: Sequence[str],
) -> int:
    """Run each race that has an entrant without a row, with all `anchors`; returns how many failed."""
    num_failed = 0
    for seed, task, place in itertools.product(
        given.seeds or SEEDS[given.what], given.tasks, given.networks or NETWORKS[given.what]
    ):
        num_hosts, mbps = parsed(place)
        rules = rules_of(task, mbps, seed)
        done = book.find(kind=given.what, task=task, hosts=num_hosts, mbps=mbps, seed=seed, target=rules.target)
        missing = set(able(given.arms or entrants, task)) - {row["arm"] for row in done}
        if missing:
            racing = [arm for arm in arms.ARMS if arm in missing or arm in anchors]
            num_failed += attempt(run_race, book, given.what, rules, num_hosts, racing)
    return num_failed


def run_race(book: Record, kind: str, rules: Rules, num_hosts: int, racing: Sequence[str]) -> None:
    """Run a race and note it; where no loss is to be reached, one rate is as good as another."""
    first_rate = tasks.GOALS[rules.task].first_rate
    is_to_a_loss = rules.target is not None
    chosen = {arm: book.rate(rules.task, num_hosts, arm) if is_to_a_loss else first_rate for arm in racing}
    with network.made(num_hosts) as hosts:
        rows = race(hosts, rules, {arm: arms.ARMS[arm] for arm in racing}, chosen)
    book.add(kind, rows)
    print(f"{kind}: {links_table.title(rows[0])}, seed {rules.seed}")
    for row in rows:
        print(f"  {row['arm']:<24} {told(row)}", flush=True)


def able(names: Sequence[str], task: str) -> list[str]:
    """Return the arms that this version of the product can run."""
    return [name for name in names if arms.refusal(name, task) is None]


def attempt(act: Callable[..., None], *args: object) -> int:
    """Return 1 if `act` failed, else 0: the other runs go on, and calling this program again makes up for it."""
    try:
        act(*args)
    except (WorkerFailed, RateMissing) as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


def told(row: Json) -> str:
    step_ms = 1e3 * sum(row["block_seconds"]) / len(row["block_seconds"]) / row["block_steps"]
    words = f"{step_ms:.0f} ms and {row['wire_bytes'] / 1e6:.3f} MB a step at rate {row['rate']:g}"
    if row["target"] is None:
        return words
    reached = "not reached" if row["steps"] is None else f"{row['steps']:.0f} steps, {row['seconds']:.1f} s"
    return f"{reached}; {words}"


# -- the command line -------------------------------------------------------------------------------------


def parsed(place: str) -> tuple[int, float | None]:
    """Return hosts and Mbit/s of e.g. `2x100` or `2xunlimited`; raises ValueError."""
    hosts, separator, mbps = place.partition("x")
    if not (separator and hosts.isdigit() and int(hosts) >= 2):
        raise ValueError(f"a network is HOSTSxMBPS with at least 2 hosts, such as 2x100 or 2xunlimited, got {place!r}")
    return int(hosts), None if mbps == "unlimited" else float(mbps)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "reach", "pace", "bytes", "table"))
    parser.add_argument("--tasks", nargs="+", choices=tasks.GOALS, default=list(tasks.GOALS))
    parser.add_argument("--arms", nargs="+", choices=arms.ARMS)
    parser.add_argument("--hosts", nargs="+", type=int)
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--file", type=Path, default=FILE)
    given = parser.parse_args()
    try:
        for place in given.networks or ():
            parsed(place)
    except ValueError as error:
        parser.error(str(error))
    return given


if __name__ == "__main__":
    sys.exit(main())
