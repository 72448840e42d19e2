"""The product's own path: a Replica per host, told to run segments."""

import math
from typing import Any

from races import tasks

from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.training.replica import Replica
from trainers.workload import Workload

#: What `rivals.OPTIMIZERS` are called in a job.
OPTIMIZERS = {"sgd": {"kind": "sgd", "momentum": 0.9}, "adamw": {"kind": "adamw"}}


def configuration(arm: dict[str, Any], task: str, seed: int, link: dict[str, Any] | None = None) -> ReplicaConfig:
    """Return what a replica is told: `arm` is JSON that overrides parts of it; raises ValidationError if unknown."""
    given = arm.get("optimizer", {})
    optimizer = given if "kind" in given else OPTIMIZERS[tasks.OPTIMIZERS[task]] | given
    told = {"workload": tasks.reference(task), "optimizer": optimizer, "seed": seed} | ({"link": link} if link else {})
    return ReplicaConfig.model_validate(arm | told)


class Ours:
    """A rank of the product. Mutable: the replica."""

    def __init__(self, config: ReplicaConfig, workload: Workload, *, rank: int, num_workers: int) -> None:
        self._replica = Replica(config, rank, num_workers, device="cpu", workload=workload)
        self._rate = math.nan
        self.warm_up_steps = max(3, getattr(config.sync, "period", 0))

    def connect(self, init_method: str) -> None:
        self._replica.connect(init_method, backend="gloo")

    def begin(self, rate: float) -> None:
        """Go to the state before the first step, at this learning rate from now on."""
        self._replica.reset()
        self._replica.take_bytes()
        self._rate = rate

    def run(self, num_steps: int) -> dict[str, Any]:
        """Take the steps; returns the mean loss of the last one, and what the product counts of them."""
        result = self._replica.run(Segment(num_steps=num_steps, learning_rate=self._rate))
        loss = math.nan if result.diverged else result.losses[-1]
        counted = {"ledger": result.bytes_sent[0], "density": result.density, "saved_bytes": result.saved_bytes}
        return {"loss": loss, **counted}

    def publish(self, folder: str) -> None:
        return

    def evaluate(self, folder: str) -> dict[str, float]:
        """Return the loss of the evaluated iterate on the whole validation set, the same on all hosts."""
        loss = self._replica.evaluate().loss
        return {"own": loss, "mean": loss}
