"""Does it pay to search density and rate together? Two ranks, and a budget in bytes.

    make bench-suite      installs the data, and does all of this; PYTHONPATH=benchmarks for each by itself:
    python benchmarks/suite/two_ranks.py run    [--tasks ...] [--guesses right "10x low"] [--seeds 0 1 2] [--steps 600]
    python benchmarks/suite/two_ranks.py table

Two real processes exchange over gloo, and the product's own stage loop trains them. Every run may send as many bytes as
`--steps` steps at a density of 1 %, probes included. What is sparser takes more steps, and what is dense takes about an
eightieth of them, too few for a search. Seconds play no part, so other load on the machine changes nothing. The loss is
of the validation set at the run's end. A run is one line of `two_ranks.jsonl`, with its date; what is in it is not run
again.

The question: does the joint search end no worse than the better of the two that keep 1 %, with the rate searched and
with the right guess?
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rows import append, read

from service.cluster.sink import MemorySink
from service.cluster.trial import train
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from service.wire.records import StageDecided
from suite.run import GUESSES
from suite.tasks import TASKS
from trainers.training.process_group import ProcessGroup

HERE = Path(__file__).parent
ROWS = HERE / "two_ranks.jsonl"
#: Images with SGD and text with AdamW, one of each from data that the controller's constants never saw.
TASKS_HERE = ("mnist-perceptron", "textures-conv-norm", "source-transformer", "phones-transformer")
DENSITY, DENSITIES = 0.01, (0.003, 0.1)
BYTES_PER_ENTRY = 5  # that is sent, value and index, as `threshold` packs them at 1 %

SPARSE, JOINT, DENSE, GUESSED = "1 %, rate searched", "density and rate searched", "dense, rate searched", "1 %, guess"
ARMS: dict[str, dict[str, Any]] = {
    SPARSE: {"exchange": {"kind": "threshold", "density": DENSITY}, "controller": {"kind": "bo"}},
    JOINT: {"exchange": {"kind": "threshold", "density": DENSITIES}, "controller": {"kind": "bo"}},
    DENSE: {"exchange": {"kind": "none"}, "controller": {"kind": "bo"}},
    GUESSED: {"exchange": {"kind": "threshold", "density": DENSITY}, "controller": {"kind": "off"}},
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One training run; `steps` says how many bytes it may send."""

    task: str
    arm: str
    guess: str
    seed: int
    steps: int

    def spec(self) -> TrialSpec:
        """Return the run as a job's trial."""
        task = TASKS[self.task]
        num_entries = sum(parameter.numel() for parameter in task.model().parameters())
        job = {
            "workload": {"factory": "suite.tasks:workload", "path": str(HERE.parent), "params": {"task": task.name}},
            "optimizer": {
                "kind": task.optimizer,
                "learning_rate": task.guess * GUESSES[self.guess],
                "weight_decay": task.weight_decay,
            },
            "arms": [{"name": "run"} | ARMS[self.arm]],
            "seeds": [self.seed],
            "budget": {"bytes": round(self.steps * DENSITY * num_entries * BYTES_PER_ENTRY)},
            "objective": {"every": 1000},
            "checkpoint": {"every_seconds": 3600, "export": "last"},
        }
        return next(JobSpec.model_validate(job).trials())

    def measure(self) -> Row:
        """Train the run, and return what came of it as JSON-compatible data."""
        return asdict(self) | measured(self.spec())


def measured(spec: TrialSpec) -> Row:
    """Train a trial by two processes, and return what came of it as JSON-compatible data."""
    sink = MemorySink()
    with tempfile.TemporaryDirectory() as folder, ProcessGroup(spec.replica, 2, device="cpu") as group:
        finished = train(spec, group, sink, trial_id="run", storage_url=folder)
    decisions = sink.of(StageDecided)
    return {
        "loss": finished.validation_loss,
        "picked": [[decided.learning_rate, decided.level] for decided in decisions],
        "committed": finished.bill.steps,
        "searched": finished.bill.steps_search,
        "reason": decisions[0].reason,
        "bytes_sent": finished.bill.bytes_sent,
        "bytes_search": finished.bill.bytes_search,
    }


def runs(tasks: Sequence[str], guesses: Sequence[str], seeds: Sequence[int], steps: int) -> Iterator[Run]:
    for seed in seeds:
        for guess in guesses:
            for task in tasks:
                yield from (Run(task, arm, guess, seed, steps) for arm in ARMS)


def run_all(wanted: Iterator[Run]) -> None:
    """Run what the file does not hold yet, and append each result at once."""
    done = {Run(*(row[name] for name in Run.__dataclass_fields__)) for row in read(ROWS)}
    for run in wanted:
        if run in done:
            continue
        began = time.monotonic()
        row = run.measure() | {"date": datetime.now(UTC).date().isoformat()}
        append(ROWS, row)
        print(f"{run}: {row['loss']}, {row['picked']}, {time.monotonic() - began:.0f} s", flush=True)


# -- the table ---------------------------------------------------------------------------------------------


def table() -> None:
    """Print the mean loss of each arm, and in how many cells the joint search ends no worse than what keeps 1 %."""
    by_cell: dict[tuple[str, str, int], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in read(ROWS):
        loss = float("inf") if row["loss"] is None else row["loss"]
        by_cell[row["task"], row["guess"], row["steps"]][row["arm"]][row["seed"]] = loss
    print("| task | guess | steps at 1 % | seeds | " + " | ".join(ARMS) + " | joint, above the better at 1 % |")
    print("| --- |" + " --- |" * (len(ARMS) + 4))
    for (task, guess, steps), losses in by_cell.items():
        seeds = sorted(set.intersection(*(set(losses[arm]) for arm in ARMS)))
        if seeds:
            means = " | ".join(f"{statistics.fmean(losses[arm][seed] for seed in seeds):.4g}" for arm in ARMS)
            excess = [losses[JOINT][seed] / min(losses[SPARSE][seed], losses[GUESSED][seed]) - 1 for seed in seeds]
            shown = ", ".join(f"{100 * each:+.1f} %" for each in excess)
            print(f"| {task} | {guess} | {steps} | {len(seeds)} | {means} | {shown} |")


def preload() -> None:
    """Have ranks forked with the data's packages imported, or each run would wait for them."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["trainers.training.rank", "numba", "suite.tasks"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=TASKS_HERE)
    parser.add_argument("--guesses", nargs="+", choices=tuple(GUESSES), default=("right", "10x low"))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--steps", type=int, default=600)
    given = parser.parse_args()
    if given.what == "table":
        table()
    else:
        preload()
        run_all(runs(given.tasks, given.guesses, given.seeds, given.steps))


if __name__ == "__main__":
    main()
