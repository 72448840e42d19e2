"""Which class builds which workload."""

from trainers.config import WorkloadConfig
from trainers.workload import Workload
from trainers.workloads.digits import Digits

BUILTIN = {"digits-mlp": Digits}


def build(config: WorkloadConfig) -> Workload:
    """Return the workload that `config` describes."""
    return BUILTIN[config.kind](config)
