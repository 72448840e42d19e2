"""Measure what JointSpar saves and costs: one worker of a real workload, each share trained for the same steps.

    python benchmarks/blocks.py [--workload stdlib-lm] [--shares 0.75 0.5 0.25] [--steps 200] [--seeds 0 1]

For each share it prints, relative to plain training in the same run: the gradient entries that were drawn and sent,
the floating-point operations of a step (counted by torch), and the median time of a step; and the validation loss. The
arms take turns in blocks of steps, so that other work on the machine affects all of them alike.
"""

import argparse
import os
import statistics
from dataclasses import dataclass, field
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from torch.utils.flop_counter import FlopCounterMode

from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.training.replica import Replica

BLOCK_STEPS = 25
#: Learning rates that suit plain SGD with momentum.
RATES = {"stdlib-lm": 0.03, "digits-mlp": 0.05, "fashion-conv": 0.05}


@dataclass
class Measured:
    """One arm, as it goes."""

    replica: Replica
    seconds: list[float] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)
    operations: int = 0

    def train(self, segment: Segment, *, counts: bool) -> None:
        """Take the segment's steps; counting operations takes time, so times are of other steps."""
        if not counts:
            result = self.replica.run(segment)
            self.seconds += result.step_seconds
        else:
            with FlopCounterMode(display=False) as counter:
                result = self.replica.run(segment)
            self.operations += counter.get_total_flops()
        self.drawn.append(1.0 if result.density is None else result.density)


def main() -> None:
    given = parse()
    arms: dict[str, dict[str, Any]] = {"all": {"kind": "all"}}
    arms |= {f"{share:g}": {"kind": "jointspar", "share": share} for share in given.shares}
    found = [measured(given.workload, arms, seed, given.steps) for seed in given.seeds]
    print(f"{given.workload}, {given.steps} steps, seeds {given.seeds}, load {os.getloadavg()[0]:.1f}")
    print("| share | entries drawn | operations | step | validation loss |\n| --- | --- | --- | --- | --- |")
    for name in arms:
        drawn = statistics.fmean(part for each in found for part in each[name].drawn)
        operations = statistics.fmean(each[name].operations / each["all"].operations for each in found)
        slower = statistics.fmean(
            statistics.median(each[name].seconds) / statistics.median(each["all"].seconds) for each in found
        )
        losses = ", ".join(f"{each[name].replica.evaluate().loss:.3f}" for each in found)
        print(f"| {name} | {drawn:.2f} | {operations:.2f} | {slower:.2f} | {losses} |")


def measured(workload: str, arms: dict[str, dict[str, Any]], seed: int, num_steps: int) -> dict[str, Measured]:
    """Return each arm, trained; operations are counted in every other block."""
    rate = RATES[workload]
    found = {
        name: Measured(Replica(_config(workload, rate, arm, seed), 0, 1, device="cpu")) for name, arm in arms.items()
    }
    for block in range(num_steps // BLOCK_STEPS):
        for each in found.values():
            each.train(Segment(num_steps=BLOCK_STEPS, learning_rate=rate), counts=bool(block % 2))
    return found


def _config(workload: str, rate: float, blocks: dict[str, Any], seed: int) -> ReplicaConfig:
    return ReplicaConfig.model_validate(
        {
            "workload": {"kind": workload},
            "optimizer": {"kind": "sgd", "learning_rate": rate},
            "exchange": {"kind": "none"},
            "blocks": blocks,
            "seed": seed,
        }
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="stdlib-lm", choices=sorted(RATES))
    parser.add_argument("--shares", type=float, nargs="+", default=[0.75, 0.5, 0.25])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    return parser.parse_args()


if __name__ == "__main__":
    main()
