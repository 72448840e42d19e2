"""Compare optimizers under compression and under local updates, by two ranks and 600 steps.

    PYTHONPATH=benchmarks python benchmarks/suite/optimizers_two_ranks.py run [--tasks ...] [--seeds 0 1]
    PYTHONPATH=benchmarks python benchmarks/suite/optimizers_two_ranks.py table

Two real processes exchange over gloo, and the product's own stage loop trains them. Each optimizer has the guess that a
job takes by default, and no weight decay; the controller is `bo`, its search charged. Budgets are in steps, so other
load changes nothing. The loss is of the validation set at the end. A run is one line of `optimizers_two_ranks.jsonl`,
and is not run again. In a mean, what is lost counts as 50 % above the lowest loss of its task.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rows import append, read

from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from suite.excess import summarised
from suite.tasks import TASKS
from suite.two_ranks import measured, preload

HERE = Path(__file__).parent
ROWS = HERE / "optimizers_two_ranks.jsonl"
TASKS_HERE = (
    "mnist-perceptron", "textures-conv-norm", "source-transformer", "words-gru", "houses-perceptron", "photo-denoise",
)  # fmt: skip
OPTIMIZERS = ("schedulefree_sgd", "adamw", "muon")
WAYS: dict[str, dict[str, Any]] = {
    "1 %": {"exchange": {"kind": "threshold", "density": 0.01}},
    "10 %": {"exchange": {"kind": "threshold", "density": 0.1}},
    "rank 4": {"exchange": {"kind": "powersgd", "rank": 4}},
    "local 8": {"sync": {"kind": "local_sgd", "period": 8}},
}
NUM_STEPS = 600


def trial(way: str, task: str, optimizer: str, seed: int) -> TrialSpec:
    job = {
        "workload": {"factory": "suite.tasks:workload", "path": str(HERE.parent), "params": {"task": task}},
        "optimizer": {"kind": optimizer, "weight_decay": 0.0},
        "seeds": [seed],
        "budget": {"steps": NUM_STEPS},
        "objective": {"every": 1000},
        "checkpoint": {"every_seconds": 3600, "export": "last"},
        **WAYS[way],
    }
    return next(JobSpec.model_validate(job).trials())


def run_all(tasks: Sequence[str], seeds: Sequence[int]) -> None:
    """Run what the file does not hold yet, and append each result at once."""
    done = {(row["way"], row["task"], row["optimizer"], row["seed"]) for row in read(ROWS)}
    cells = [(way, task, kind, seed) for seed in seeds for way in WAYS for task in tasks for kind in OPTIMIZERS]
    for cell in cells:
        if cell not in done:
            key = dict(zip(("way", "task", "optimizer", "seed"), cell, strict=True))
            row = key | measured(trial(*cell)) | {"date": datetime.now(UTC).date().isoformat()}
            append(ROWS, row)
            print(*cell, row["loss"], flush=True)


def table() -> None:
    """Print the mean loss of each optimizer over the seeds, how far above the lowest it is, and the mean of that."""
    losses = defaultdict[tuple[str, str], dict[str, list[float]]](lambda: defaultdict(list))
    for row in read(ROWS):
        losses[row["way"], row["task"]][row["optimizer"]].append(row["loss"])
    print("| | task | " + " | ".join(OPTIMIZERS) + " |\n" + "| --- " * (len(OPTIMIZERS) + 2) + "|")
    above = defaultdict[str, list[dict[str, float]]](list)
    for (way, task), by_kind in losses.items():
        means = {kind: statistics.fmean(by_kind[kind]) for kind in OPTIMIZERS}
        best = min(means.values())
        above[way].append({kind: mean / best - 1 for kind, mean in means.items()})
        cells = (f"{means[kind]:.3g} ({100 * above[way][-1][kind]:+.0f} %)" for kind in OPTIMIZERS)
        print(f"| {way} | {task} | {' | '.join(cells)} |")
    for way, found in above.items():
        middles = (summarised(each[kind] for each in found) for kind in OPTIMIZERS)
        told = (f"{100 * each.mean:+.0f} %, {100 * each.median:+.0f} %" for each in middles)
        print(f"| {way} | mean, median | {' | '.join(told)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=TASKS_HERE)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1))
    given = parser.parse_args()
    if given.what == "table":
        table()
    else:
        preload()
        run_all(given.tasks, given.seeds)


if __name__ == "__main__":
    main()
