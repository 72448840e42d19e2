"""How often an exchange reads a tensor on the host: on a GPU that is to wait for all that was asked of it before."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trainers import cost
from trainers.config import ExchangeConfig, NoneConfig, TopKConfig
from trainers.exchange import exchange
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.config import (
    Bf16Config,
    CserConfig,
    DistEfSgdConfig,
    DoubleSqueezeConfig,
    Fp16Config,
    OneBitConfig,
    PowerSgdConfig,
    QsgdConfig,
    SignSgdConfig,
    TernGradConfig,
)
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.exchange.wire import Wire

SHAPES = ((60, 200), (40, 200), (30, 200))
NUM_BUCKETS = 3
WITHOUT_SELECTION: tuple[ExchangeConfig, ...] = (
    NoneConfig(),
    Fp16Config(),
    Bf16Config(),
    PowerSgdConfig(rank=2, values="float32"),
    QsgdConfig(),
    TernGradConfig(),
    SignSgdConfig(),
    SignSgdConfig(feedback=False),
    OneBitConfig(),
    DoubleSqueezeConfig(),
    DistEfSgdConfig(),
    CserConfig(),
)
#: Not `int`, which quantizers ask of seeds that they draw on the host.
READS = (Tensor.tolist, Tensor.item, Tensor.cpu, Tensor.nonzero, Tensor.__float__, Tensor.__bool__)


class Reads(TorchFunctionMode):
    """Counts what asks a tensor for its values, in this thread."""

    count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func in READS
        return func(*args, **(kwargs or {}))


def reads(config: ExchangeConfig, level: float | None = None, *, steps: int = 3) -> list[int]:
    """Return how many tensors each of some steps read."""
    buffer = GradientBuffer(SHAPES, config.model_copy(update={"bucket_mib": 0.01}), torch.device("cpu"))
    assert len(buffer.buckets) == NUM_BUCKETS
    each = exchange.build(config, buffer, Wire(1, Unpaced(), Ledger()))
    found = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        buffer.gradient.copy_(torch.randn(cost.num_elements(SHAPES), generator=generator))
        buffer.finish()
        with Reads() as counted:
            outcome = each.step(torch.ones(()), level, 0.1)
        assert outcome.loss == 1.0 and not outcome.diverged
        found.append(counted.count)
    return found


@pytest.mark.parametrize("config", WITHOUT_SELECTION, ids=lambda config: config.kind)
def test_who_sends_every_entry_reads_once_a_step(config: ExchangeConfig):
    assert reads(config) == [1, 1, 1]


def test_factors_in_16_bits_are_read_once_more_a_bucket_to_know_if_they_fitted():
    assert reads(PowerSgdConfig(rank=2)) == [NUM_BUCKETS + 1] * 3


def test_what_a_gradient_sends_by_size_is_read():
    assert min(reads(TopKConfig(density=0.1), 0.1)) > NUM_BUCKETS
