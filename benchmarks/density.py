"""Measure how well `threshold` keeps the planned density, in real training on workers with different data.

    python benchmarks/density.py [--tasks ...] [--hosts 2 3] [--densities 0.01 0.003] [--hold stage] [--json FILE]

Each run has stages of 100 steps, with a new learning rate in each. The workers are processes connected by gloo. It
prints the share of steps within a factor of 2 of the plan, the longest run of steps outside it, the share of padding in
the bytes, and the final training loss. No time is measured, so other work on the machine does not matter.
"""

import argparse
import itertools
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from races import ours, tasks
from races.links_table import AS_PLANNED, share_as_planned

from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment, SegmentResult
from trainers.training.process_group import ProcessGroup

STAGE_STEPS = 100
#: The learning rates of the stages, as multiples of the task's.
STAGE_RATES = (0.5, 1.0, 0.25)
#: The last steps, over which the loss is averaged.
LAST_STEPS = 50
#: The races' tasks, whose hosts differ in their labels, and a built-in workload, whose hosts differ by chance.
RATES = {name: goal.first_rate for name, goal in tasks.GOALS.items()} | {"stdlib-lm": 0.004}
Json = dict[str, Any]


def main() -> None:
    given = parse()
    rows = []
    print(
        "| task | hosts | planned | within 2x | longest outside | least, mean, most / plan | padding / useful | loss |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for task, hosts, density in itertools.product(given.tasks, given.hosts, given.densities):
        rows.append(trained(task, hosts, density, given.hold))
        print(f"| {' | '.join(cells(rows[-1]))} |", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows) + "\n")


def configuration(task: str, density: float, hold: str) -> ReplicaConfig:
    exchange = {"kind": "threshold", "density": density, "hold": hold}
    if task in tasks.GOALS:
        return ours.configuration({"exchange": exchange}, task, seed=0)
    return ReplicaConfig.model_validate(
        {"workload": {"kind": task}, "optimizer": {"kind": "adamw"}, "exchange": exchange}
    )


def trained(task: str, hosts: int, density: float, hold: str) -> Json:
    """Train through all stages; returns what each step sent and lost."""
    with ProcessGroup(configuration(task, density, hold), hosts, device="cpu") as group:
        steps = [
            group.run(Segment(num_steps=1, learning_rate=factor * RATES[task]))
            for factor in STAGE_RATES
            for _ in range(STAGE_STEPS)
        ]
    return {
        "task": task,
        "hosts": hosts,
        "plan": density,
        "densities": [step.density for step in steps],
        "thresholds": [step.threshold for step in steps],
        "losses": [step.losses[0] for step in steps],
        "useful": [bytes_for(step, "gradient") for step in steps],
        "padding": [bytes_for(step, "padding") for step in steps],
    }


def bytes_for(step: SegmentResult, purpose: str) -> float:
    """Return the bytes that a host has sent for `purpose`, the mean over the hosts."""
    return statistics.fmean(dict(sent).get(purpose, 0) for sent in step.bytes_sent)


def cells(row: Json) -> list[str]:
    densities, plan = row["densities"], row["plan"]
    spread = (min(densities), statistics.fmean(densities), max(densities))
    return [
        row["task"],
        str(row["hosts"]),
        f"{plan:.1%}",
        f"{share_as_planned(densities, plan):.1%}",
        str(longest_outside(densities, plan)),
        ", ".join(f"{density / plan:.2f}" for density in spread),
        f"{sum(row['padding']) / sum(row['useful']):.0%}",
        f"{statistics.fmean(row['losses'][-LAST_STEPS:]):.3f}",
    ]


def longest_outside(densities: Sequence[float], plan: float) -> int:
    """Return the longest run of steps whose density is not within a factor of 2 of `plan`."""
    is_outside = [not plan / AS_PLANNED <= density <= plan * AS_PLANNED for density in densities]
    return max((len(list(run)) for outside, run in itertools.groupby(is_outside) if outside), default=0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=RATES, default=["one-large-layer", "stdlib-lm"])
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--densities", nargs="+", type=float, default=[0.01, 0.003])
    parser.add_argument("--hold", choices=("stage", "run"), default="stage")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what each step did there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
