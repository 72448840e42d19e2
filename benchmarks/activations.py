"""Measure what DropIT saves and costs: one worker of a real workload, each share trained for the same steps.

    python benchmarks/activations.py [--workload stdlib-lm] [--gammas 0 0.5 0.8 0.9] [--steps 300] [--seeds 0 1 2]

For each share it prints the bytes kept for the backward pass of a step (by autograd's hooks) and the median time of a
step, both relative to the plain layers in the same run, and the validation loss. The arms take turns in blocks of
steps, so that other work on the machine affects all of them alike.
"""

import argparse
import os
import statistics
from collections.abc import Iterator
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.training.replica import Replica

BLOCK_STEPS = 25
#: Optimizer of each workload, with a rate that suits it.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "stdlib-lm": {"kind": "adamw", "learning_rate": 0.003},
    "digits-mlp": {"kind": "sgd", "learning_rate": 0.1},
    "fashion-conv": {"kind": "sgd", "learning_rate": 0.05},
}
PLAIN: dict[str, Any] = {"kind": "keep"}


def main() -> None:
    given = parse()
    arms = {"plain": PLAIN} | {
        f"{gamma:g}, {selection}": {"kind": "dropit", "gamma": gamma, "selection": selection}
        for gamma in given.gammas
        for selection in ("exact", "sampled")
    }
    found = [dict(measured(given.workload, arms, seed, given.steps)) for seed in given.seeds]
    print(f"{given.workload}, {given.steps} steps, {len(found)} seeds, load {os.getloadavg()[0]:.1f}")
    print("| dropped | kept, MB | ratio | step, ratio | validation loss |\n| --- | --- | --- | --- | --- |")
    for name in arms:
        kept = statistics.fmean(each[name][0] for each in found)
        saved = statistics.median(each[name][0] / each["plain"][0] for each in found)
        slower = statistics.median(each[name][1] / each["plain"][1] for each in found)
        losses = ", ".join(f"{each[name][2]:.3f}" for each in found)
        print(f"| {name} | {kept / 1e6:.2f} | {saved:.2f} | {slower:.2f} | {losses} |")


def measured(
    workload: str, arms: dict[str, dict[str, Any]], seed: int, num_steps: int
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Yield of each arm the bytes kept, the median seconds of a step, and the validation loss at the end."""
    optimizer = OPTIMIZERS[workload]
    replicas = {
        name: Replica(_config(workload, optimizer, arm, seed), 0, 1, device="cpu") for name, arm in arms.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    kept: dict[str, float] = {}
    segment = Segment(num_steps=BLOCK_STEPS, learning_rate=optimizer["learning_rate"])
    for _ in range(num_steps // BLOCK_STEPS):
        for name, replica in replicas.items():
            result = replica.run(segment)
            seconds[name] += result.step_seconds
            kept[name] = max(kept.get(name, 0), result.saved_bytes)
    for name, replica in replicas.items():
        yield name, (kept[name], statistics.median(seconds[name]), replica.evaluate().loss)


def _config(workload: str, optimizer: dict[str, Any], arm: dict[str, Any], seed: int) -> ReplicaConfig:
    return ReplicaConfig.model_validate(
        {
            "workload": {"kind": workload},
            "optimizer": optimizer,
            "exchange": {"kind": "none"},
            "activations": arm,
            "seed": seed,
        }
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=OPTIMIZERS, default="stdlib-lm")
    parser.add_argument("--gammas", nargs="+", type=float, default=[0.5, 0.8, 0.9])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    return parser.parse_args()


if __name__ == "__main__":
    main()
