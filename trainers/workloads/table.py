"""Which class builds which workload."""

from collections.abc import Callable
from typing import Any

from trainers.config import WorkloadConfig
from trainers.workload import Workload
from trainers.workloads import own
from trainers.workloads.digits import Digits

BUILTIN: dict[str, Callable[[Any], Workload]] = {"digits-mlp": Digits, "own": own.load}


def build(config: WorkloadConfig) -> Workload:
    """Return the workload that `config` describes; raises WorkloadError where it cannot be trained."""
    return BUILTIN[config.kind](config)
