"""Training by each method on two ranks that share a GPU, compared with the same ranks on the CPU."""

from typing import Any

import attach_scenario
import ddp_scenario
import torch

from trainers.methods import registry
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.method import Method
from trainers.training.replica import Replica

GPU = "cuda:0" if torch.cuda.is_available() else "cpu"
#: Training goes different ways soon where a rounding decides what is sent.
SEGMENT, STEPS = Segment(num_steps=10, learning_rate=0.02), range(12)
PLAIN: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "sgd", "momentum": 0.0},
    "exchange": {"kind": "none"},
}
#: What a script attaches.
ATTACHED: dict[str, dict[str, Any]] = {
    "diloco": {"sync": {"kind": "diloco", "period": 4, "outer_momentum": 0.5}},
    "cocod_sgd": {"sync": {"kind": "cocod_sgd", "period": 4}},
    "dion": {"exchange": {"kind": "dion"}},
}


def on_gpus(rank: int, num_workers: int) -> dict[str, Any]:
    """Every method of the catalogue, by part and kind, but for optimizers that are none by themselves."""
    methods = [method for method in registry.METHODS if method.kind not in ("own", "auto")]
    return {f"{method.part}/{method.kind}": _trained(method, rank, num_workers) for method in methods}


def scripts_on_gpus(rank: int, num_workers: int) -> dict[str, Any]:
    """Weights after a script of the user's own, on the CPU and on the GPU, by what it uses."""
    found = {}
    for kind in [kind for kind in ddp_scenario.KINDS if kind != "on nodes"]:
        scripts = [ddp_scenario.Script(rank, kind, device=device) for device in ("cpu", GPU)]
        for script in scripts:
            script.train(STEPS)
        found[f"ddp/{kind}"] = [script.weights for script in scripts]
    for kind, how in ATTACHED.items():
        bare = kind != "dion"
        by_device = [attach_scenario.Script(rank, bare=bare, device=device, **how) for device in ("cpu", GPU)]
        found[f"attach/{kind}"] = [script.train(STEPS).vector.tolist() for script in by_device]
    return found


def _trained(method: Method, rank: int, num_workers: int) -> dict[str, Any]:
    beside = {part: chosen for part, chosen in method.beside.items() if part in ReplicaConfig.model_fields}
    config = ReplicaConfig.model_validate(PLAIN | beside | {method.part: {"kind": method.kind, **method.least}})
    on_cpu, on_gpu = (Replica(config, rank, num_workers, device=device) for device in ("cpu", GPU))
    on_gpu.snapshot("start")
    expected, first = (replica.run(SEGMENT) for replica in (on_cpu, on_gpu))
    on_gpu.restore("start")
    again = on_gpu.run(SEGMENT)
    return {
        "losses": [expected.losses, first.losses, again.losses],
        "sent": [sum(each.bytes_sent[0].values()) for each in (expected, first, again)],
    }
