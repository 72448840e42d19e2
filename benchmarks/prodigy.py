"""A built-in workload with Prodigy (Mishchenko & Defazio, 2024) as its own optimizer: a rival that needs no rate."""

from typing import Any

import torch
from prodigyopt import Prodigy
from pydantic import TypeAdapter
from torch import nn

from trainers.spec.workloads import WorkloadConfig
from trainers.workload import Workload
from trainers.workloads import registry


def workload(task: dict[str, Any], decay: float) -> Workload:
    """Return the built-in workload that `task` configures, to be trained with `optimizer: {kind: own}`."""
    built = registry.build(TypeAdapter(WorkloadConfig).validate_python(task))

    class WithProdigy(type(built)):  # type: ignore[misc]
        def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
            return Prodigy(model.parameters(), lr=1.0, weight_decay=decay)

    built.__class__ = WithProdigy
    return built
