"""Measure the cost of lost workers to a run that goes on without them.

    python benchmarks/elastic.py [--minutes 10] [--workers 4] [--mbps 100]

Two runs train in turns of a minute. In one of them a random worker is killed at the start of each turn, and is replaced
while the others go on. Both have `workers.min`, train a small transformer with AdamW, and average every 20 steps by
SparseLoCo's messages over an emulated link. They are compared by steps and by validation loss after equal time.

Goal: 88 % of the undisturbed run's steps, no survivor restarted, a loss within 2 %.
"""

import argparse
import os
import random
import signal
import time
from dataclasses import dataclass, field

from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.methods.optimizer.spec import AdamWConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.diloco.spec import DiLoCoConfig
from trainers.segment import Segment
from trainers.spec.link import EmulateLink
from trainers.spec.workloads import StdlibLm
from trainers.training.elastic import ElasticGroup
from trainers.training.process_group import ProcessGroup

TURN_S = 60.0
PERIOD = 20


@dataclass
class Run:
    """A run of its own workers, which trains in turns."""

    workers: ProcessGroup
    steps: int = 0
    killed: list[int] = field(default_factory=list)
    started: list[dict[int, int]] = field(default_factory=list)  # the process of each rank, at the start of each turn

    def __post_init__(self) -> None:
        self.group = ElasticGroup(self.workers, least=1)

    def kill(self, rank: int) -> None:
        self.killed.append(rank)
        os.kill(self.workers.pids[rank], signal.SIGKILL)

    def train(self) -> None:
        """Train for a turn."""
        self.started.append(dict(enumerate(self.workers.pids)))
        end = time.monotonic() + TURN_S
        while time.monotonic() < end:
            self.steps += len(self.group.run(Segment(num_steps=PERIOD, learning_rate=0.003, level=1 / 64)).losses)

    def num_survivors_restarted(self) -> int:
        """Return how often a worker that was not killed had another process in the next turn."""
        turns = zip(self.started, self.started[1:], self.killed[:-1], strict=False)
        return sum(after[rank] != pid for before, after, dead in turns for rank, pid in before.items() if rank != dead)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mbps", type=float, default=100.0)
    given, dice = parser.parse_args(), random.Random(0)
    config = ReplicaConfig(
        workload=StdlibLm(),
        optimizer=AdamWConfig(learning_rate=0.003),
        sync=DiLoCoConfig(period=PERIOD),
        exchange=SparseLoCoConfig(),
        link=EmulateLink(mbps=given.mbps),
    )
    left_alone, disturbed = (Run(ProcessGroup(config, given.workers, device="cpu")) for _ in range(2))
    with left_alone.group, disturbed.group:
        for minute in range(given.minutes):
            left_alone.train()
            disturbed.kill(dice.randrange(given.workers))
            disturbed.train()
            print(f"minute {minute + 1}: {disturbed.steps} of {left_alone.steps} steps", flush=True)
        losses = [run.group.evaluate().loss for run in (left_alone, disturbed)]
        missed = sum(disturbed.group.recovery.absences.values())
    print(
        f"{disturbed.steps / left_alone.steps:.1%} of the steps, validation loss {losses[1]:.4f} against "
        f"{losses[0]:.4f} ({losses[1] / losses[0] - 1:+.1%}); {len(disturbed.killed)} killed, "
        f"{disturbed.num_survivors_restarted()} survivors restarted, {missed} averages missed by one worker"
    )


if __name__ == "__main__":
    main()
