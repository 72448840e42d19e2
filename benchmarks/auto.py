"""Is `exchange: {kind: auto}` as fast as the best of its options, on any link? docs/auto.md has the rules.

    python benchmarks/auto.py run   [--links unlimited 1000 100 10] [--seeds 0] [--arms auto none ...] [--file FILE]
    python benchmarks/auto.py table [--file FILE]

Two hosts train to a validation loss: once with `auto`, and once with each of its options alone. Either way the same
controller searches the learning rate, on the clock, with the same budget. Each run is a line of FILE; what is in it is
not run again. Needs root and iproute2, else ends with 2.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: workers are forked, which a pool of threads does not survive
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

from contest import auto_table, network, tasks
from contest.book import Book
from contest.hosts import HostGroup
from contest.race import Validation, crossing

from search.acquisition import warm_up
from service.cluster.trial import train
from service.records import AnyRecord, Billed, Control, MetricPoints, StageDecided, TrialFinished, TrialStarted
from service.spec import JobSpec, TrialSpec
from trainers.config import NoneConfig
from trainers.exchange.options import DEFAULT, LOCAL, Option, exchange_of
from trainers.outcome import WorkerFailed, WorkerLost

Json = dict[str, Any]
FILE = Path(__file__).parent / "auto.jsonl"
NUM_HOSTS = 2
#: 0.25 million parameters, so that a dense step sends 1 MB.
TASK = "images"
AUTO = "auto"
ARMS = (AUTO, *(option.name for option in DEFAULT))
#: An option alone is stopped when it has taken so many times as long as the best run on its link.
PATIENCE = 1.25
#: The same for all runs; the rate is a good guess, and the search has what docs/auto.md says to give it.
OPTIMIZER = {"kind": "schedulefree_sgd", "learning_rate": 1.0}
CONTROLLER = {"kind": "bo", "max_search_fraction": 0.2}
#: Validation loss that ends a run.
TARGET = 0.52
#: Seconds by link in Mbit/s, about 1.4 times what the best option needs: a search takes a share of them.
BUDGETS = {"unlimited": 30.0, "1000": 30.0, "100": 35.0, "10": 60.0}


@dataclass(frozen=True)
class Race:
    """What the runs on a link have in common."""

    mbps: float | None  # of every cable, each way; None: no limit
    budget_s: float  # of which searches may take a share
    seed: int
    target: float


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
    """Run what is missing, `auto` first on each link; returns how many runs failed."""
    num_failed = 0
    for seed in given.seeds:
        for link in given.links:
            race = Race(None if link == "unlimited" else float(link), BUDGETS[link], seed, TARGET)
            hosts.limit(race.mbps)
            for arm in given.arms:
                if not book.find(**asdict(race), arm=arm):
                    num_failed += attempt(book, hosts, race, arm)
    return num_failed


def attempt(book: Book, hosts: network.Network, race: Race, arm: str) -> int:
    """Run an arm and note what came of it; returns 1 if it failed: calling this program again makes up for it."""
    reached = [row["seconds"] for row in book.find(**asdict(race)) if row["seconds"] is not None]
    patience_s = race.budget_s if arm == AUTO or not reached else PATIENCE * min(reached)
    try:
        row = measure(hosts, race, arm, patience_s)
    except (WorkerFailed, WorkerLost) as error:
        print(f"{arm}: {error}", file=sys.stderr, flush=True)
        return 1
    book.add("run", [row])
    print(f"{race.mbps or 'unlimited'} Mbit/s, seed {race.seed}, {arm}: {auto_table.told(row)}", flush=True)
    return 0


def measure(hosts: network.Network, race: Race, arm: str, patience_s: float) -> Json:
    """Train to the loss, and return what is recorded of it as JSON."""
    spec, watcher = trial(race, arm), Watcher(race.target, patience_s)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, HostGroup(spec.replica, hosts) as group:
        finished = train(spec, group, watcher, trial_id="run", storage_url=folder)
    return asdict(race) | {"arm": arm} | watcher.told(finished) | {"load": os.getloadavg()[0], "at": int(time.time())}


def trial(race: Race, arm: str) -> TrialSpec:
    """Return the run as a job's trial."""
    job = {
        "workload": tasks.reference(TASK),
        "workers": {"count": NUM_HOSTS},
        "optimizer": OPTIMIZER,
        "controller": CONTROLLER,
        "budget": {"seconds": race.budget_s},
        "checkpoint": {"every_seconds": 3600},
        "seeds": [race.seed],
        **exchange_part(arm),
    }
    return next(JobSpec.model_validate(job).trials())


def exchange_part(arm: str) -> Json:
    """Return the part of a job that makes it train by an option alone, or by all of them."""
    if arm == AUTO:
        return {"exchange": {"kind": AUTO}}
    option = Option.parse(arm)
    part: Json = {"exchange": exchange_of([option], like=NoneConfig())}
    return part | ({"sync": {"kind": LOCAL, "period": int(option.level or 1)}} if option.kind == LOCAL else {})


class Watcher:
    """A trial's sink that stops it at the loss, or after `patience_s` of its clock."""

    def __init__(self, target: float, patience_s: float) -> None:
        self._target, self._patience_s = target, patience_s
        self._looks: list[Validation] = []
        self._decided: list[StageDecided] = []
        self._seconds = self._started = self._before_s = 0.0

    def report(self, *records: AnyRecord) -> None:
        for record in records:
            match record:
                case TrialStarted():
                    self._started = time.monotonic()
                case MetricPoints(name="validation_loss"):
                    self._look(record)
                case StageDecided():
                    self._decided.append(record)
                case Billed():
                    self._seconds = record.bill.seconds_training

    flush = report

    def _look(self, points: MetricPoints) -> None:
        if not self._looks:  # the first is when the clock starts
            self._before_s = time.monotonic() - self._started - points.seconds[0]
        for step, seconds, loss in zip(points.steps, points.seconds, points.values, strict=True):
            loss = float("nan") if loss is None else loss
            self._looks.append(Validation(step, seconds, own=loss, mean=loss))

    def is_clear(self) -> bool:
        return True

    def asked(self) -> Control:
        is_done = any(look.loss <= self._target for look in self._looks) or self._seconds > self._patience_s
        return Control.STOP if is_done else Control.RUN

    def told(self, finished: TrialFinished) -> Json:
        """Return what is recorded: when the loss was reached, and what was tried, sent and chosen on the way."""
        reached, bill = crossing(self._looks, self._target), finished.bill
        return {
            "steps": reached and reached[0],
            "seconds": reached and reached[1],
            "seconds_before": self._before_s,
            "seconds_taken": bill.seconds_training,
            "seconds_search": bill.seconds_search,
            "seconds_evaluation": bill.seconds_evaluation,
            "steps_taken": bill.steps,
            "steps_search": bill.steps_search,
            "bytes_sent": bill.bytes_sent,
            "by_option": {option: took.model_dump() for option, took in bill.by_option.items()},
            "decisions": [[each.learning_rate, each.values.get("option"), each.reason] for each in self._decided],
            "validations": [[look.step, look.seconds, look.loss] for look in self._looks],
        }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--links", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--file", type=Path, default=FILE)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
