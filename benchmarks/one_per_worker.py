"""Compare whole runs on two real workers with and without one coarse probe per worker, in turns.

Prints a row for each run: its final validation loss, the steps of its search, and its finalists.
"""

import json
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from suite.tasks import TASKS

from service.cluster import trial
from service.cluster.sink import MemorySink
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from service.wire.records import ProbeDone, TrialFinished
from trainers.methods.replica_config import ReplicaConfig
from trainers.training.process_group import ProcessGroup

NUM_WORKERS, STEPS, SEEDS = 2, 300, range(3)
CHOSEN = ("digits-perceptron", "mnist-perceptron-adamw", "tumours-perceptron")
#: The guess is off by these factors.
FACTORS = (0.1, 1.0)


def job(task: str, factor: float, seed: int) -> TrialSpec:
    definition = TASKS[task]
    optimizer = {
        "kind": definition.optimizer,
        "learning_rate": factor * definition.guess,
        "weight_decay": definition.weight_decay,
    }
    spec = {
        "workload": {"factory": "suite.tasks:workload", "params": {"task": task}, "path": str(Path(__file__).parent)},
        "optimizer": optimizer,
        "workers": {"count": NUM_WORKERS},
        "budget": {"steps": STEPS},
        "objective": {"every": STEPS},
        "checkpoint": {"export": "last"},
        "seeds": [seed],
    }
    return next(JobSpec.model_validate(spec).trials())


def row(task: str, factor: float, seed: int, *, is_one_each: bool) -> dict[str, object]:
    """Train a run; without one candidate per worker, all workers train each."""
    spec, sink = job(task, factor, seed), MemorySink()
    num_alone = NUM_WORKERS if is_one_each else 1
    with (
        patch.object(ReplicaConfig, "num_alone", lambda config, num_workers: num_alone),
        tempfile.TemporaryDirectory() as folder,
        ProcessGroup(spec.replica, NUM_WORKERS, device="cpu") as group,
    ):
        trial.train(spec, group, sink, trial_id="run", storage_url=f"file://{folder}")
    [finished] = sink.of(TrialFinished)
    probes = {each.probe_id: each for each in sink.of(ProbeDone) if each.stage == 0}
    return {
        "task": task,
        "factor": factor,
        "seed": seed,
        "one_each": is_one_each,
        "loss": finished.validation_loss,
        "searched": finished.bill.steps_search,
        "bytes_search": finished.bill.bytes_search,
        "finalists": sum(each.origin != "wide" for each in probes.values()),
        "rate": finished.schedule[0].learning_rate,
    }


if __name__ == "__main__":
    for task in sys.argv[1:] or CHOSEN:
        for seed in SEEDS:
            for factor in FACTORS:
                for is_one_each in (True, False):
                    print(json.dumps(row(task, factor, seed, is_one_each=is_one_each)), flush=True)
