"""Configurations that several tests share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from trainers.config import (
    AdamWConfig,
    DigitsMlp,
    NoneConfig,
    OptimizerConfig,
    ReplicaConfig,
    ScheduleFreeAdamWConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
    ThresholdConfig,
)

OPTIMIZERS: dict[str, OptimizerConfig] = {
    "sgd": SgdConfig(learning_rate=0.1, weight_decay=1e-4, warmup_steps=5),
    "adamw": AdamWConfig(learning_rate=1e-3, warmup_steps=5),
    "schedulefree_sgd": ScheduleFreeSgdConfig(learning_rate=0.5, weight_decay=1e-4, warmup_steps=5),
    "schedulefree_adamw": ScheduleFreeAdamWConfig(learning_rate=2.5e-3, warmup_steps=5),
}
EXCHANGES = {"none": NoneConfig(), "threshold": ThresholdConfig(density=0.02)}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Two threads that wait for each other on a busy machine take many times as long as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=OPTIMIZERS)
def optimizer_config(request: pytest.FixtureRequest) -> OptimizerConfig:
    return OPTIMIZERS[request.param]


@pytest.fixture(params=EXCHANGES)
def exchange_config(request: pytest.FixtureRequest) -> NoneConfig | ThresholdConfig:
    return EXCHANGES[request.param]


@pytest.fixture
def make_config() -> Callable[..., ReplicaConfig]:
    """Build a digits run; keywords override."""

    def make(**changes: Any) -> ReplicaConfig:
        defaults = {
            "workload": DigitsMlp(batch_size=16),
            "optimizer": OPTIMIZERS["sgd"],
            "exchange": NoneConfig(),
            "seed": 3,
        }
        return ReplicaConfig(**(defaults | changes))

    return make
