"""Runs of real workers one of which is killed: between two segments, or during an average."""

import os
import signal
from collections.abc import Sequence
from typing import Any

from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.training.process_group import ProcessGroup
from trainers.training.repair import RepairingGroup


def outcome(config: ReplicaConfig, *, is_killed: bool) -> list[Any]:
    """Return the losses and bytes of both segments, the second of which has a lower rate, and the loss in the end."""
    workers = ProcessGroup(config, 3, device="cpu")
    with RepairingGroup(workers) as group:
        results = [group.run(Segment(num_steps=7, learning_rate=0.1))]
        if is_killed:
            os.kill(workers.pids[1], signal.SIGKILL)
        results.append(group.run(Segment(num_steps=40, learning_rate=0.05)))
        assert group.recovery.repairs == is_killed
        return [(result.losses, result.bytes_sent) for result in results] + [group.evaluate().loss]


class KilledInAverage(ProcessGroup):
    """Worker 1 dies in the first average."""

    is_alive = True

    def ask(self, rank: int, method: str, args: Sequence[Any]) -> None:
        super().ask(rank, method, args)
        if method == "meet" and self.is_alive:
            self.is_alive = False
            os.kill(self.pids[1], signal.SIGKILL)
