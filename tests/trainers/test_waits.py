"""How often an exchange reads a tensor on the host; on a GPU each read waits for all earlier work."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.kernels import operators
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.methods import build
from trainers.methods.exchange.adacomp.spec import AdaCompConfig
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.methods.exchange.cser.spec import CserConfig
from trainers.methods.exchange.demo.spec import DemoConfig
from trainers.methods.exchange.dense.spec import Bf16Config, Fp16Config, NoneConfig
from trainers.methods.exchange.dgc.spec import DgcConfig
from trainers.methods.exchange.dion.spec import DionConfig
from trainers.methods.exchange.dist_ef_sgd.spec import DistEfSgdConfig
from trainers.methods.exchange.doublesqueeze.spec import DoubleSqueezeConfig
from trainers.methods.exchange.gtopk.spec import GTopKConfig
from trainers.methods.exchange.onebit.spec import OneBitConfig
from trainers.methods.exchange.onebit_adam.spec import OneBitAdamConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.qsgd.spec import QsgdConfig
from trainers.methods.exchange.randomk.spec import RandomKConfig
from trainers.methods.exchange.signsgd.spec import SignSgdConfig
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.methods.exchange.terngrad.spec import TernGradConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.exchange.zero_one_adam.spec import ZeroOneAdamConfig
from trainers.spec.levels import CatConfig
from trainers.traffic import collectives

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
    BlockwiseConfig(),
    DistEfSgdConfig(),
    CserConfig(),
    DionConfig(),
    OneBitAdamConfig(freeze_steps=1),
    ZeroOneAdamConfig(refreshes=1),
)
#: What does not have to look at a gradient to say how much of it is sent; and a level for each.
SELECTING: dict[str, tuple[ExchangeConfig, float | None]] = {
    "threshold": (ThresholdConfig(density=0.1), 0.1),
    "threshold, hold run": (ThresholdConfig(density=0.1, hold="run"), 0.1),
    "threshold, nearly all": (ThresholdConfig(density=0.9), 0.9),
    "absolute threshold": (ThresholdConfig(search="absolute", threshold=1.5), 1.5),
    "topk": (TopKConfig(density=0.1), 0.1),
    "topk, signs": (TopKConfig(density=0.1, values="sign"), 0.1),
    "topk, exact": (TopKConfig(density=0.1, selection="exact"), 0.1),
    "topk, by layer": (TopKConfig(density=0.1, scope="layer", values="float32"), 0.1),
    "topk, global": (TopKConfig(density=0.1, scope="global"), 0.1),
    "topk, ef21": (TopKConfig(density=0.1, memory="ef21"), 0.1),
    "topk, no memory": (TopKConfig(density=0.1, memory="none"), 0.1),
    "topk, sharded": (TopKConfig(density=0.1, aggregate="sharded"), 0.1),
    "dgc": (DgcConfig(density=0.1), 0.1),
    "gtopk": (GTopKConfig(density=0.1), 0.1),
    "randomk": (RandomKConfig(density=0.1), 0.1),
    "adacomp": (AdaCompConfig(), None),
    "sparse_loco": (SparseLoCoConfig(density=0.1), 0.1),
    "demo": (DemoConfig(density=0.1), 0.1),
}
READS = (
    *(Tensor.tolist, Tensor.item, Tensor.cpu, Tensor.nonzero, torch.nonzero, Tensor.unique, torch.unique),
    *(torch.masked_select, Tensor.masked_select, torch.equal, Tensor.equal),
    *(Tensor.__float__, Tensor.__bool__, Tensor.__index__, Tensor.__int__),
)


class Reads(TorchFunctionMode):
    """Counts what asks a tensor for its values, in this thread; but not again after a copy to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self._on_host = 0, list[Tensor]()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += _reads(func, args, kwargs or {}) and not self._is_on_host(args[0])
        result = func(*args, **(kwargs or {}))
        if func is not Tensor.cpu:
            return result
        self._on_host.append(result.clone())  # another tensor, as it would be of a GPU's
        return self._on_host[-1]

    def _is_on_host(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in [each.untyped_storage().data_ptr() for each in self._on_host]


def _reads(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> bool:
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        return isinstance(args[1], Tensor) and args[1].dtype == torch.bool
    if func in (Tensor.repeat_interleave, torch.repeat_interleave):
        return "output_size" not in kwargs
    if func is Tensor.__int__ and args[0].dtype == torch.int64:
        return False  # of a seed, which is drawn on the host
    return func in READS


def reads(config: ExchangeConfig, level: float | None = None, *, steps: int = 3) -> list[int]:
    """Return how many tensors each of some steps read."""
    buffer = GradientBuffer(SHAPES, config.model_copy(update={"bucket_mib": 0.01}), torch.device("cpu"))
    assert len(buffer.buckets) == NUM_BUCKETS
    each = build.exchange(config, buffer, Connection(1, Unpaced(), Ledger()))
    found = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        buffer.gradient.copy_(torch.randn(collectives.num_elements(SHAPES), generator=generator))
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


@pytest.mark.parametrize("kind", SELECTING)
def test_who_selects_reads_once_a_step(monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setattr(operators, "needed_for", lambda vector: True)  # as on a GPU
    monkeypatch.setattr(Tensor, "numpy", _refuse)
    config, level = SELECTING[kind]

    first, *others = reads(config, level)

    assert others == [1, 1]
    assert first == (
        3 if isinstance(config, ThresholdConfig) and config.search == "density" else 1
    )  # to agree on lambda


def _refuse(tensor: Tensor) -> None:
    raise AssertionError("a GPU's tensors are no arrays")


def test_a_bucket_is_read_to_choose_what_is_most_efficient():
    assert reads(TopKConfig(density=0.1, levels=CatConfig()), 0.1) == [NUM_BUCKETS + 1] * 3
