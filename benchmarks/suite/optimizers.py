"""Optimizers that compete, beside each of them alone: every arm is the controller from the kinds' default guesses.

    PYTHONPATH=.:benchmarks python benchmarks/suite/optimizers.py run   [--steps 1000] [--seeds 0 1] [--tasks ...]
    PYTHONPATH=.:benchmarks python benchmarks/suite/optimizers.py table [--steps 1000]

An arm is a kind, `auto` (`optimizer: {kind: auto}` as a job has it by default), or kinds in an order of their own, as
`sgd+adamw`. A run is a line of `optimizers.jsonl`, and is not run again. Losses are of the validation set at the end.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from search import strategies
from search.config import BoConfig, Budget, usual_rate_told_by
from search.protocol import Strategy
from search.space import Contender, SearchSpace
from search.types import Candidate, Decision, Values
from suite.controlled import train
from suite.run import GRADIENTS_OF_SHARPNESS
from suite.tasks import TASKS
from suite.training import Line
from trainers.methods.optimizer import auto as optimizer_auto
from trainers.methods.optimizer.spec import AutoOptimizerConfig, OptimizerConfig

ROWS = Path(__file__).parent / "optimizers.jsonl"
#: Muon's constants were chosen on the first five; the last three are held out.
SHOWN = (
    "mnist-perceptron",
    "mnist-conv",
    "photo-denoise",
    "source-transformer",
    "words-gru",
    "houses-perceptron",
    "textures-conv",
    "phones-transformer",
)
ARMS = ("sgd", "adamw", "schedulefree_sgd", "muon", "auto")
Row = dict[str, Any]


class Switching:
    """A strategy whose line trains with the optimizer that it names."""

    def __init__(self, strategy: Strategy, line: Line) -> None:
        self._strategy, self._line = strategy, line

    def ask(self) -> Candidate | None:
        candidate = self._strategy.ask()
        if candidate is not None:
            self._line.optimizer.use(candidate.values.optimizer)
        return candidate

    def decide(self, held: Any) -> Decision:
        decision = self._strategy.decide(held)
        self._line.optimizer.use(decision.values.optimizer)
        return decision

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)


def options_of(arm: str, *, weight_decay: float) -> tuple[OptimizerConfig, ...]:
    """Return what competes in `arm`, with the task's weight decay; one kind by itself competes with nothing."""
    known = {each.kind: each for each in AutoOptimizerConfig().options}
    kinds = list(known) if arm == "auto" else arm.split("+")
    return tuple(known[kind].model_copy(update={"weight_decay": weight_decay}) for kind in kinds)


def run(task: str, arm: str, steps: int, seed: int) -> Row:
    """Train `task` with the controller; returns the row."""
    options = options_of(arm, weight_decay=TASKS[task].weight_decay)
    competing = options if len(options) > 1 else ()
    line, started = Line(TASKS[task], seed), time.monotonic()
    config = AutoOptimizerConfig(options=competing) if competing else options[0]
    line.optimizer = optimizer_auto.build(config, line.workload, line.model)
    name = options[0].kind if competing else None
    is_measured = not competing and usual_rate_told_by(options[0].kind) == "sharpness"
    left = steps - GRADIENTS_OF_SHARPNESS * is_measured
    space = SearchSpace(
        optimizer=options[0].kind,
        guess=Values(learning_rate=options[0].learning_rate, optimizer=name),
        optimizers=tuple(Contender(optimizer=each.kind, learning_rate=each.learning_rate) for each in competing),
        weights=line.weights,
        sharpness=line.sharpness() if is_measured else None,
    )
    strategy = strategies.build(BoConfig(), space=space, seed=seed, budget=Budget(steps=left))
    done = train(line, Switching(strategy, line), left)
    first = done.decisions[0]
    return {
        "task": task,
        "arm": arm,
        "steps": steps,
        "seed": seed,
        "loss": line.evaluate(),
        "chosen": first.values.optimizer,
        "rate": first.values.learning_rate,
        "searched": done.searched + steps - left,
        "reason": first.reason,
        "seconds": round(time.monotonic() - started, 1),
        "date": datetime.now(UTC).date().isoformat(),
    }


def rows() -> list[Row]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def run_all(tasks: Sequence[str], arms: Sequence[str], steps: int, seeds: Sequence[int]) -> None:
    """Run what is missing, and append each result to the file at once."""
    done = {(row["task"], row["arm"], row["steps"], row["seed"]) for row in rows()}
    for task in tasks:
        for arm in arms:
            for seed in seeds:
                if (task, arm, steps, seed) not in done:
                    row = run(task, arm, steps, seed)
                    with ROWS.open("a") as file:
                        file.write(json.dumps(row) + "\n")


def table(steps: int) -> None:
    """Print each arm's mean loss over the seeds, how far above the best single one's it is, and the mean of that."""
    known = [row for row in rows() if row["steps"] == steps]
    arms = list(dict.fromkeys(row["arm"] for row in known))
    print(f"| {steps} steps | " + " | ".join(arms) + " |")
    print("| --- |" + " --- |" * len(arms))
    above = list[dict[str, float]]()
    for task in dict.fromkeys(row["task"] for row in known):
        losses = {
            arm: statistics.fmean(row["loss"] for row in known if (row["task"], row["arm"]) == (task, arm))
            for arm in arms
            if any((row["task"], row["arm"]) == (task, arm) for row in known)
        }
        best = min(loss for arm, loss in losses.items() if arm != "auto")
        above.append({arm: 100 * (loss / best - 1) for arm, loss in losses.items()})
        cells = [
            f"{losses[arm]:.4g} ({100 * (losses[arm] / best - 1):+.0f} %)" if arm in losses else "-" for arm in arms
        ]
        chosen = [row["chosen"] for row in known if row["task"] == task and row["chosen"]]
        print(f"| {task} | " + " | ".join(cells) + f" | {', '.join(chosen)}")
    means = (statistics.fmean(each[arm] for each in above if arm in each) for arm in arms)
    print("| mean | " + " | ".join(f"{mean:+.0f} %" for mean in means) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=SHOWN)
    parser.add_argument("--arms", nargs="+", default=ARMS)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "table":
        table(given.steps)
    else:
        run_all(given.tasks, given.arms, given.steps, given.seeds)


if __name__ == "__main__":
    main()
