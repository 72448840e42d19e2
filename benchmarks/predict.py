"""Compare the step times that `wiretune predict` predicts with measured ones, in known and in new places.

    python benchmarks/predict.py check [--networks ...]       # steps on limited links, to be predicted
    python benchmarks/predict.py evidence                     # write what the predictor knows, from recorded rows
    python benchmarks/predict.py table                        # predicted and measured, and the two errors

`check` times some methods with 2, 4 and 8 hosts, and with two workers on each of four hosts (`4x2x100`), and appends
rows to FILE. Recorded runs are not repeated, so an interrupted run can be continued. The arms of a race take turns on
the same hosts. The fastest turn of each counts, since other work on the machine delayed it least. The compute time of a
step is that of `nosync` in the same race. Needs root and iproute2, else ends with 2. Cables have no latency.

`evidence` fits each method's compute time to the rows of links.jsonl and methods.jsonl, never to those of FILE. That
fit has all methods of FILE, and both models. It has three of FILE's ten places (model, hosts, rate), with rows of other
races; `table` prints these as known, and the others as new.
"""

import argparse
import itertools
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: workers are forked, which a pool of threads does not survive
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

from pydantic import ValidationError
from races import evidence, network, ours, tasks
from races.book import Book
from races.cables import Cables
from races.methods import ALWAYS, METHODS
from races.race import Rules, race
from races.shared_hosts import SharedHosts
from races.team import WorkerFailed

FILE = Path(__file__).parent / "predict.jsonl"
EVIDENCE = Path(__file__).parents[1] / "service" / "prediction" / "evidence.json"
Json = dict[str, Any]
Arms = Mapping[str, str | Json]
CHECKED = ("text", "one-large-layer")
NETWORKS = ("2x100", "2x300", "4x100", "4x300", "8x100", "4x2x100")
#: More than one host for each core, with millions of parameters to send, takes minutes a method.
SMALL_ONLY = 8
#: Whole periods of local updates.
TURN, STEPS = 8, 24
#: No run goes on to a loss, so one rate is as good as another.
RATE = 0.005
#: One of each way to send less.
SOME = ("fp16", "signsgd, EF", "topk 1 %", "threshold 1 %", "powersgd 4", "local_sgd 8", "cocod_sgd 8")


class Place(NamedTuple):
    """Hosts, workers on each of them, and the rate of their cables."""

    hosts: int
    per_host: int
    mbps: float | None

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Return what `4x100`, `4x2x100` or `2xunlimited` says; raises ValueError."""
        hosts, *per_host, mbps = text.split("x")
        rate = None if mbps == "unlimited" else float(mbps)
        return cls(int(hosts), int(per_host[0]) if per_host else 1, rate)

    @property
    def workers(self) -> int:
        return self.hosts * self.per_host


def main() -> int:
    given = parse()
    book = Book(given.file)
    if given.what == "evidence":
        EVIDENCE.write_text(written())
        return 0
    if given.what == "table":
        print_table(book)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through the clean-up
    try:
        network.check()
        return int(check(book, given) > 0)
    except network.NoNetwork as error:
        print(error, file=sys.stderr)
        return 2


def written() -> str:
    """Return the predictor's file, from the rows that are recorded."""
    links, methods = (Book(FILE.with_name(name)).rows for name in ("links.jsonl", "methods.jsonl"))
    return evidence.recorded(links, methods).model_dump_json(indent=1) + "\n"


def print_table(book: Book) -> None:
    """Print predicted and measured steps, of recorded rows by the rows of all other places, and of FILE's by those."""
    known = [
        each
        for name in ("links.jsonl", "methods.jsonl")
        for each in evidence.timed(evidence.races_of(Book(FILE.with_name(name)).rows), evidence.median_step)
    ]
    checked = list(evidence.timed(evidence.races_of(book.rows), evidence.fastest_step))
    own, known_places = evidence.fit(known), {each.place for each in known}
    print_errors("recorded rows, each place predicted from the others", evidence.left_out(known))
    for is_known, workers in sorted({(each.place in known_places, each.place[1]) for each in checked}):
        chosen = [each for each in checked if (each.place in known_places, each.place[1]) == (is_known, workers)]
        title = f"{FILE.name}, {'known' if is_known else 'new'} places, {workers} workers"
        print_errors(title, [(each, each.predicted(own)) for each in chosen])
    for each in checked:
        print(f"| {each.place} | {each.method} | {1e3 * each.seconds:.0f} | {1e3 * each.predicted(own):.0f} |")


def print_errors(title: str, pairs: Sequence[tuple[evidence.Timed, float]]) -> None:
    found, (total, right) = evidence.errors(pairs), evidence.ranked(pairs)
    if found:
        share = f"{right / total:.0%} of {total} pairs in order" if total else "no two are apart"
        print(f"{title}: {len(found)} steps, median error {found[len(found) // 2]:.1%}, {share}")


def check(book: Book, given: argparse.Namespace) -> int:
    """Time some methods on limited links; returns how many races failed."""
    places = [Place.parse(text) for text in given.networks or NETWORKS]
    races = itertools.product(places, given.tasks or CHECKED)
    some = {name: METHODS[name] for name in SOME if name in METHODS}
    return sum(
        run(book, "check", task, place, some)
        for place, task in races
        if place.workers < SMALL_ONLY or task in ("text", "images")
    )


def run(book: Book, kind: str, task: str, place: Place, family: Arms) -> int:
    """Race the arms without a row, beside dense training and the controls; returns 1 if that failed."""
    done = book.find(kind=kind, task=task, hosts=place.workers, per_host=place.per_host, mbps=place.mbps)
    missing = {name: arm for name, arm in family.items() if name not in {row["arm"] for row in done}}
    arms = {name: sharing(arm, place.per_host) for name, arm in (ALWAYS | able(missing, task)).items()}
    if len(arms) == len(ALWAYS):
        return 0
    rules = Rules(task, 0, place.mbps, block_steps=TURN, max_steps=STEPS)
    try:
        with network.made(place.hosts) as hosts:
            shared: Cables = hosts if place.per_host == 1 else SharedHosts(hosts, place.per_host)
            rows = race(shared, rules, arms, dict.fromkeys(arms, RATE))
    except WorkerFailed as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    book.add(kind, [row | {"per_host": place.per_host} for row in rows])
    print(f"{kind}: {task}, {place}: {', '.join(missing)}", flush=True)
    return 0


def sharing(arm: str | Json, per_host: int) -> str | Json:
    """Return the arm with its workers exchanging as one on each host."""
    return arm if isinstance(arm, str) or per_host == 1 else arm | {"workers_per_node": per_host}


def able(arms: Arms, task: str) -> Arms:
    """Return the arms that this version of the product can run."""
    found = dict(arms)
    for name, arm in arms.items():
        try:
            ours.configuration(arm, task, seed=0) if not isinstance(arm, str) else None
        except ValidationError as error:
            print(f"{name}: {error.errors()[0]['msg']}", file=sys.stderr)
            del found[name]
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "evidence", "table"))
    parser.add_argument("--tasks", nargs="+", choices=tasks.BUILDERS)
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--file", type=Path, default=FILE)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
