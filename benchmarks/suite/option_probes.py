"""Do short probes choose the exchange that the whole run wants?

    make bench-suite      installs the data; PYTHONPATH=benchmarks for each by itself:
    python benchmarks/suite/option_probes.py run    [--tasks ...] [--seeds 0] [--steps 800]
    python benchmarks/suite/option_probes.py table

Two real processes exchange over gloo. They train every option from the same state, with the same batches and at the
task's right guess of the rate. That gives losses by step. No clock is read: a step computes for 1, and sends its bytes
on links where a dense exchange takes `TRANSFERS` as long. With all options' losses known, each way to choose is told by
how far above the best option its run ends. A probe's loss is the mean of its last half, at equal cost, as `auto` judges
finalists. A run's is that of its last tenth. A run that is chosen has as many steps as it can pay, where the cheapest
option has them all. A line of `option_probes.jsonl` is an option of a task, with its date; what is in it is not run
again.
"""

import argparse
import json
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from service.job.spec import JobSpec
from suite.tasks import TASKS
from trainers.segment import Segment, SegmentResult
from trainers.training.group import ProcessGroup

HERE = Path(__file__).parent
ROWS = HERE / "option_probes.jsonl"
OPTIONS = (
    "none",
    "local_sgd 16",
    "powersgd 4",
    "powersgd 1",
    "threshold 0.01",
    "local_sgd 16 blockwise",
    "threshold 0.001",
)
TASKS_HERE = (
    "digits-conv-norm",
    "mnist-conv",
    "mnist-perceptron-free",
    "mnist-lenet-adamw",
    "fashion-perceptron",
    "fashion-conv-norm",
    "textures-conv-norm",
    "photo-denoise",
    "source-transformer",
    "source-transformer-free",
    "characters-transformer",
    "characters-gru",
    "phones-transformer",
    "phones-neighbours",
    "words-gru",
    "words-embedding",
    "diamonds-perceptron",
    "houses-adamw",
    "tumours-perceptron",
    "weather-perceptron",
)
#: How many times as long as a step computes a dense exchange takes.
TRANSFERS = (0.2, 1.0, 4.0, 12.0, 40.0)
#: A probe's share of the budget.
SHARES = (0.025, 0.05, 0.1, 0.2)
#: Steps of which a row holds the mean loss, and the fewest of a probe.
BLOCK, FEWEST = 4, 16
Row = dict[str, Any]


class Curve(NamedTuple):
    """What an option was seen to do: mean losses of blocks of steps, and the bytes of a step as a share of `none`'s."""

    losses: np.ndarray
    sent: float

    def cost(self, transfer: float) -> float:
        """Return what a step costs where a dense exchange takes `transfer`; a step computes for 1."""
        return 1 + transfer * self.sent

    def tail(self, steps: float, share: float) -> float:
        """Return the mean loss of the last `share` of so many steps."""
        end = max(1, int(steps / BLOCK))
        return float(self.losses[end - max(1, round(share * end)) : end].mean())


Curves = Mapping[str, Curve]
Choose = Callable[[Curves, float], str]


def measure(task: str, seed: int, steps: int) -> list[Row]:
    """Train every option from the same state, and return a row of each."""
    known = TASKS[task]
    job = {
        "workload": {"factory": "suite.tasks:workload", "path": str(HERE.parent), "params": {"task": task}},
        "optimizer": {
            "kind": known.optimizer,
            "learning_rate": known.guess,
            "weight_decay": known.weight_decay,
        },
        "arms": [{"name": "run", "exchange": {"kind": "auto", "options": list(OPTIONS)}}],
        "seeds": [seed],
        "budget": {"bytes": 10**12},
    }
    config = next(JobSpec.model_validate(job).trials()).replica
    with ProcessGroup(config, 2, device="cpu") as group:
        group.snapshot("start")
        return [_row(task, option, seed, _trained(group, option, known.guess, steps)) for option in OPTIONS]


def _trained(group: ProcessGroup, option: str, rate: float, steps: int) -> SegmentResult:
    _, *level = option.split()
    group.restore("start")
    return group.run(
        Segment(num_steps=steps, learning_rate=rate, level=float(level[0]) if level else None, option=option)
    )


def _row(task: str, option: str, seed: int, result: SegmentResult) -> Row:
    num_blocks = len(result.losses) // BLOCK
    blocks = np.array(result.losses[: num_blocks * BLOCK]).reshape(num_blocks, BLOCK).mean(axis=1)
    return {
        "task": task,
        "option": option,
        "seed": seed,
        "steps": len(result.losses),
        "bytes": max(sum(rank.values()) for rank in result.bytes_sent) / max(1, len(result.losses)),
        "losses": [float(f"{loss:.4g}") for loss in blocks],
        "date": datetime.now(UTC).date().isoformat(),
    }


def rows() -> list[Row]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def run_all(tasks: Sequence[str], seeds: Sequence[int], steps: int) -> None:
    """Run what the file does not hold yet, and append each task's rows at once."""
    done = {(row["task"], row["seed"]) for row in rows()}
    for seed in seeds:
        for task in tasks:
            if (task, seed) not in done:
                found = measure(task, seed, steps)
                with ROWS.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in found)
                print(f"{task}, seed {seed}: {[row['losses'][-1:] for row in found]}", flush=True)


# -- the table ---------------------------------------------------------------------------------------------


def curves() -> list[Curves]:
    """Return what is recorded, by task and seed; where an option diverged, it ends at the first loss of `none`."""
    by_cell: dict[tuple[str, int], dict[str, Row]] = defaultdict(dict)
    for row in rows():
        by_cell[row["task"], row["seed"]][row["option"]] = row
    return [_curves(cell) for cell in by_cell.values()]


def _curves(cell: Mapping[str, Row]) -> Curves:
    dense = cell["none"]
    num_blocks = max(len(row["losses"]) for row in cell.values())
    return {
        option: Curve(
            np.array(row["losses"] + dense["losses"][:1] * (num_blocks - len(row["losses"]))),
            row["bytes"] / dense["bytes"],
        )
        for option, row in cell.items()
    }


def by_probes(share: float) -> Choose:
    """Choose by probes that may spend `share` of the budget each, compared at equal cost."""

    def choose(cell: Curves, transfer: float) -> str:
        spent = min(max(FEWEST * each.cost(transfer), share * _budget(cell, transfer)) for each in cell.values())
        return min(cell, key=lambda option: cell[option].tail(spent / cell[option].cost(transfer), 0.5))

    return choose


def _budget(cell: Curves, transfer: float) -> float:
    num_steps = BLOCK * max(len(each.losses) for each in cell.values())
    return num_steps * min(each.cost(transfer) for each in cell.values())


def behind(cell: Curves, transfer: float, choose: Choose) -> float:
    """Return how far the log loss of the run that is chosen ends above that of the best one."""
    budget = _budget(cell, transfer)
    ends = {option: np.log(each.tail(budget / each.cost(transfer), 0.1)) for option, each in cell.items()}
    return float(ends[choose(cell, transfer)] - min(ends.values()))


def table() -> None:
    """Print how far above the best each way to choose ends, by link."""
    cells = curves()
    ways: dict[str, Choose] = {f"probes of {100 * share:.3g} % each": by_probes(share) for share in SHARES}
    ways["the cheapest"] = lambda cell, transfer: min(cell, key=lambda option: cell[option].cost(transfer))
    ways |= {f"always `{option}`": lambda cell, transfer, option=option: option for option in OPTIONS}
    print(f"| {len(cells)} tasks | mean | " + " | ".join(f"dense exchange {each:g}x" for each in TRANSFERS) + " |")
    print("| --- | --- |" + " --- |" * len(TRANSFERS))
    for name, choose in ways.items():
        means = [np.mean([behind(cell, transfer, choose) for cell in cells]) for transfer in TRANSFERS]
        print(f"| {name} | {_share(np.mean(means))} | " + " | ".join(map(_share, means)) + " |")


def _share(behind: float) -> str:
    return f"+{100 * np.expm1(behind):.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=TASKS_HERE)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0,))
    parser.add_argument("--steps", type=int, default=800)
    given = parser.parse_args()
    if given.what == "table":
        table()
    else:
        # Ranks are forked with the data's packages imported, or each run would wait for them.
        multiprocessing.get_context("forkserver").set_forkserver_preload(
            ["trainers.training.rank", "numba", "suite.tasks"]
        )
        run_all(given.tasks, given.seeds, given.steps)


if __name__ == "__main__":
    main()
