"""Compare final validation losses at an equal budget, search charged, with the best schedules of a grid.

    python benchmarks/search_pays.py run [--tasks fashion lm] [--arms "bo, events"] [--seeds 10 11] [--file FILE]
    python benchmarks/search_pays.py table [--file FILE]

A run has two workers of one core, and sends 1 % of the gradient. The budget is 2,000 steps, search included, so other
work on the machine changes nothing. The seconds of searching are recorded too. Each run is one line of FILE. Recorded
runs are not repeated. Two runs go on at a time.

The rates of the grid and of Schedule-Free are tuned on the same seed without being charged: those rows show what is
possible for somebody who has trained the task before. The others start from a guess 10x too low, right, or 10x too
high.
"""

import argparse
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rows import append, read

from search.config import Budget, ControllerConfig
from service.cluster.sink import UnaskedSink
from service.cluster.trial import train
from service.job.parts import Checkpointing, Objective, TrialSpec, Workers
from service.wire.records import AnyRecord, MetricPoints, StageDecided, TrialFinished
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import OptimizerConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import WorkloadConfig
from trainers.training.process_group import ProcessGroup

HERE = Path(__file__).parent
FILE = HERE / "search_pays.jsonl"
NUM_STEPS = 2000
NUM_LOSSES = 100  # committed training losses whose median is recorded
DENSITY = 0.01
STARTS = {"10x low": 0.1, "right": 1.0, "10x high": 10.0}
Json = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A workload, its plain optimizer and the Schedule-Free one, and the rates tried with each."""

    workload: Json
    plain: str
    free: str
    rates: tuple[float, ...]
    free_rates: tuple[float, ...]
    guess: float  # the best of `rates` with a cool-down, on seeds that are not reported
    free_guess: float  # the best of `free_rates`, on the same seeds
    weight_decay: float  # of all arms
    decades: tuple[float, ...] = ()  # further starts of `PLAIN`


TASKS = {
    "fashion": Task(
        {"kind": "fashion-conv", "batch_size": 16},
        "sgd",
        "schedulefree_sgd",
        (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
        (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
        0.03,
        1.0,
        0.0,
    ),
    "lm": Task(
        {"kind": "stdlib-lm", "context": 32},
        "adamw",
        "schedulefree_adamw",
        (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1),
        (3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3),
        0.001,
        0.01,
        0.01,
    ),
    "digits": Task(
        {"kind": "digits-mlp"},
        "sgd",
        "schedulefree_sgd",
        (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
        (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
        0.3,
        3.0,
        0.001,  # without it 2,000 steps overfit: the better a rate trains, the worse it validates
        decades=(1e-4, 1e-3, 0.01, 0.1, 1.0),
    ),
}

#: The search with a plain optimizer, which cools down at the end.
PLAIN = "bo, events, plain"

#: Arms by name: the controller, and whether the optimizer is the Schedule-Free one.
SCHEDULES: dict[str, tuple[Json, bool]] = {
    "constant": ({"kind": "fixed"}, False),
    "cosine": ({"kind": "cosine"}, False),
    "linear": ({"kind": "linear"}, False),
    "cool-down": ({"kind": "off"}, False),
    "Schedule-Free": ({"kind": "off"}, True),
}
SEARCHES: dict[str, tuple[Json, bool]] = {
    "bo, events": ({"kind": "bo", "revisit": "events"}, True),
    "bo, stages": ({"kind": "bo", "revisit": "stages"}, True),
    PLAIN: ({"kind": "bo", "revisit": "events"}, False),
    "local": ({"kind": "local"}, True),
    "sobol": ({"kind": "sobol"}, True),
    "autolrs": ({"kind": "autolrs"}, False),
}
PRODIGY: dict[str, Json] = {"Prodigy": {"kind": "fixed"}, "Prodigy, cosine": {"kind": "cosine"}}
ARMS = SCHEDULES | SEARCHES | PRODIGY


@dataclass(frozen=True)
class Run:
    """One training run; `learning_rate` is the grid's rate, or the guess that a search starts from."""

    task: str
    arm: str
    learning_rate: float
    seed: int

    def spec(self) -> TrialSpec:
        """Return the run as a job's trial."""
        task = TASKS[self.task]
        controller, is_free = (SCHEDULES | SEARCHES).get(self.arm) or (PRODIGY[self.arm], False)
        kind = task.free if is_free else task.plain
        workload = task.workload
        optimizer = {"kind": kind, "learning_rate": self.learning_rate, "weight_decay": task.weight_decay}
        if self.arm in PRODIGY:
            workload = {
                "factory": "prodigy:workload",
                "path": str(HERE),
                "params": {"task": task.workload, "decay": task.weight_decay},
            }
            optimizer = {"kind": "own", "learning_rate": self.learning_rate}
        return TrialSpec(
            arm=self.arm,
            seed=self.seed,
            controller=TypeAdapter(ControllerConfig).validate_python(controller),
            replica=ReplicaConfig(
                workload=TypeAdapter(WorkloadConfig).validate_python(workload),
                optimizer=TypeAdapter(OptimizerConfig).validate_python(optimizer),
                exchange=ThresholdConfig(density=DENSITY),
                seed=self.seed,
            ),
            workers=Workers(count=2),
            budget=Budget(steps=NUM_STEPS),
            objective=Objective(every=NUM_STEPS // 4),
            checkpoint=Checkpointing(every_seconds=3600),
        )


# -- running ---------------------------------------------------------------------------------------


def runs_of(name: str, arm: str, seed: int, reach: int) -> Iterator[Run]:
    """Yield an arm's runs: a schedule's at the rates of its grid, a search's from every start.

    `reach` is how many steps of the grid to go from its best rate, either way.
    """
    task = TASKS[name]
    if arm in SCHEDULES:
        rates, best = (task.free_rates, task.free_guess) if SCHEDULES[arm][1] else (task.rates, task.guess)
        place = rates.index(best)
        for rate in rates[max(0, place - reach) : place + reach + 1]:
            yield Run(name, arm, rate, seed)
    elif arm in PRODIGY:
        yield Run(name, arm, 1.0, seed)
    else:
        for factor in STARTS.values():
            yield Run(name, arm, task.guess * factor, seed)
        for rate in task.decades if arm == PLAIN else ():
            yield Run(name, arm, rate, seed)


class Notes(UnaskedSink):
    """A trial's sink that keeps the decisions and the last training losses."""

    def __init__(self) -> None:
        self.decisions: list[StageDecided] = []
        self.losses: list[float | None] = []

    def report(self, *records: AnyRecord) -> None:
        for record in records:
            if isinstance(record, StageDecided):
                self.decisions.append(record)
            elif isinstance(record, MetricPoints) and record.name == "loss":
                self.losses = [*self.losses, *record.values][-NUM_LOSSES:]


def measure(run: Run) -> Json:
    """Train the run, and return what came of it as JSON-compatible data."""
    spec, notes = run.spec(), Notes()
    with tempfile.TemporaryDirectory() as folder, ProcessGroup(spec.replica, 2, device="cpu") as group:
        finished = train(spec, group, notes, trial_id="run", storage_url=folder)
    return asdict(run) | outcome(finished, notes) | {"load": os.getloadavg()[0], "at": int(time.time())}


def outcome(finished: TrialFinished, notes: Notes) -> Json:
    losses = [loss for loss in notes.losses if loss is not None]
    return {
        "outcome": finished.outcome,
        "validation_loss": finished.validation_loss,
        "metrics": finished.validation_metrics,
        "training_loss": statistics.median(losses) if losses else None,
        "steps": finished.bill.steps,
        "steps_search": finished.bill.steps_search,
        "seconds": finished.bill.seconds_training,
        "seconds_search": finished.bill.seconds_search,
        "bytes_sent": finished.bill.bytes_sent,
        "decisions": [[decided.learning_rate, decided.reason] for decided in notes.decisions],
    }


def run_all(runs: Sequence[Run], file: Path) -> None:
    """Run what `file` does not hold yet, two at a time, and append each when it ends."""
    done = {(row["task"], row["arm"], row["learning_rate"], row["seed"]) for row in read(file)}
    open_runs = [run for run in dict.fromkeys(runs) if (run.task, run.arm, run.learning_rate, run.seed) not in done]
    lock = threading.Lock()

    def one(run: Run) -> None:
        row = measure(run)
        with lock:
            append(file, row)
            print(
                f"{run.task:8} {run.arm:18} {run.learning_rate:<8g} seed {run.seed:<3} "
                f"loss {row['validation_loss'] or float('nan'):.4f}  {row['seconds']:.0f} s, "
                f"{row['steps_search']} steps searched",
                flush=True,
            )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, open_runs))


# -- the table -------------------------------------------------------------------------------------


def print_table(rows: list[Json]) -> None:
    """Print one table per task, and the mean over tasks, as markdown: losses above the seed's best schedule."""
    excess_of: dict[str, list[float]] = {}
    for name, task in TASKS.items():
        known = [row for row in rows if row["task"] == name]
        best = best_schedules(known)
        if not best:
            continue
        print(f"\n### {name}: the best schedule was {', '.join(map(told, best.values()))}\n")
        print("| arm | mean | worst | 10x low | right | 10x high | runs | search |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for arm in ("cool-down", "Schedule-Free", *PRODIGY, *SEARCHES, *INSURED):
            by_start = excess_by_start(known, arm, task, best)
            everything = [excess for found in by_start.values() for excess in found]
            if not everything:
                continue
            excess_of.setdefault(arm, []).append(statistics.fmean(everything))
            starts = " | ".join(
                percent(statistics.fmean(by_start[start])) if by_start[start] else "" for start in STARTS
            )
            print(
                f"| {arm} | {percent(excess_of[arm][-1])} | {percent(max(everything))} | {starts} | {len(everything)} "
                f"| {percent(share(known, INSURED.get(arm, arm)), sign='')} |"
            )
    print_decades(rows)
    print("\n| arm | mean over tasks |\n| --- | --- |")
    for arm, excess in excess_of.items():
        print(f"| {arm} | {percent(statistics.fmean(excess))} of {len(excess)} |")


def print_decades(rows: Sequence[Json]) -> None:
    """Print how `PLAIN` ended from every decade, above the seed's best schedule."""
    for name, task in TASKS.items():
        best = best_schedules([row for row in rows if row["task"] == name])
        for row in rows:
            if (row["task"], row["arm"]) == (name, PLAIN) and row["learning_rate"] in task.decades:
                excess = percent(loss_of(row) / loss_of(best[row["seed"]]) - 1)
                print(f"\n{name}, {PLAIN}, from {row['learning_rate']:g} with seed {row['seed']}: {excess}")


#: A searching line beside the guess with a cool-down, on twice the workers; the better one is kept.
INSURED = {f"{arm}, insured": arm for arm in ("bo, events", PLAIN)}


def best_schedules(rows: Sequence[Json]) -> dict[int, Json]:
    """Return, by seed, the run of a schedule with a plain optimizer that ended lowest."""
    best: dict[int, Json] = {}
    for row in rows:
        known = best.get(row["seed"])
        if row["arm"] in SCHEDULES.keys() - {"Schedule-Free"} and (known is None or loss_of(row) < loss_of(known)):
            best[row["seed"]] = row
    return best


def told(row: Json) -> str:
    return f"{row['arm']} {row['learning_rate']:g} with seed {row['seed']} (loss {loss_of(row):.4g})"


def excess_by_start(rows: Sequence[Json], arm: str, task: Task, best: dict[int, Json]) -> dict[str, list[float]]:
    """Return by how much the runs of `arm` ended above the best schedule of their seed, from each start.

    Prodigy has no start, and of Schedule-Free the best rate of its grid counts: both stand under `right`.
    """
    if arm in INSURED:
        tuned, guess = (excess_by_start(rows, name, task, best) for name in (INSURED[arm], "cool-down"))
        return {start: [min(pair) for pair in zip(tuned[start], guess[start], strict=False)] for start in STARTS}
    found = sorted((row for row in rows if row["arm"] == arm and row["seed"] in best), key=lambda row: int(row["seed"]))

    def excess(row: Json) -> float:
        return loss_of(row) / loss_of(best[row["seed"]]) - 1

    if arm == "Schedule-Free":
        by_seed = {row["seed"]: [excess(each) for each in found if each["seed"] == row["seed"]] for row in found}
        return {start: [] for start in STARTS} | {"right": [min(each) for each in by_seed.values()]}
    guess_of = {"right": 1.0} if arm in PRODIGY else {start: task.guess * factor for start, factor in STARTS.items()}
    return {
        start: [
            excess(row) for row in found if start in guess_of and math.isclose(row["learning_rate"], guess_of[start])
        ]
        for start in STARTS
    }


def share(rows: Sequence[Json], arm: str) -> float:
    """Return the mean share of the steps that `arm` searched for."""
    return statistics.fmean([row["steps_search"] / NUM_STEPS for row in rows if row["arm"] == arm] or [0.0])


def loss_of(row: Json) -> float:
    loss = row["validation_loss"]
    return math.inf if loss is None or row["outcome"] == "diverged" else float(loss)


def percent(value: float, *, sign: str = "+") -> str:
    return f"{100 * value:{sign}.1f} %" if math.isfinite(value) else "diverged"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[10, 11, 12])
    parser.add_argument("--reach", type=int, default=6, help="grid steps either way of the best rate; 6: all of it")
    parser.add_argument("--file", type=Path, default=FILE)
    given = parser.parse_args()
    if given.what == "table":
        return print_table(read(given.file))
    cells = [(task, arm, seed) for seed in given.seeds for task in given.tasks for arm in given.arms]
    run_all([run for cell in cells for run in runs_of(*cell, given.reach)], given.file)


if __name__ == "__main__":
    main()
