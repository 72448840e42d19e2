"""One step's gradient exchange: what all kinds have in common, and which class runs which kind."""

from typing import Any, Protocol

import torch
from torch import Tensor

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.config import (
    Bf16Config,
    CserConfig,
    ExchangeConfig,
    Fp16Config,
    LiecSgdConfig,
    NoneConfig,
    PowerSgdConfig,
    QuantizedBase,
    SparseConfig,
    TwoWayConfig,
)
from trainers.exchange.connection import Connection
from trainers.exchange.cser import CserExchange
from trainers.exchange.dense import DenseExchange
from trainers.exchange.powersgd import PowerSgdExchange
from trainers.exchange.quantized import QuantizedExchange
from trainers.exchange.selectors import table as selectors
from trainers.exchange.sparse import SparseExchange
from trainers.exchange.step_result import Exchanged
from trainers.exchange.two_way import LiecExchange, TwoWayExchange
from trainers.training.snapshot import Kept


class Exchange(Protocol):
    """Replaces the local gradient in the buffer by the mean over the ranks.

    Of kinds whose ranks drift apart (`DriftingConfig`), by what this rank is to step by.
    """

    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Exchange the buffer's gradient, which belongs to the scalar `loss`, as buckets fill; collective.

        `learning_rate` is that of the update to come. Raises ValueError for a level that is not allowed.
        """

    @property
    def threshold(self) -> float | None:
        """The cut-off in force, if there is one."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the live state of this rank, by name."""

    def scalars(self) -> dict[str, Any]:
        """Return the state outside tensors, JSON-compatible."""

    def load_scalars(self, scalars: dict[str, Any]) -> None: ...

    def inherit(self, kept: Kept) -> None:
        """Take over this rank's share of what one of the nodes of a checkpoint kept.

        Called for every old node in order, on an exchange that has taken no step. What is not sent yet stays: as the
        gradient is the mean over the nodes, it is the mean of their memories that does, and every rank holds it.
        """


def build(config: ExchangeConfig, buffer: GradientBuffer, connection: Connection, *, seed: int = 0) -> Exchange:
    """Return the exchange that `config` describes; what it draws at random follows from `seed`."""
    match config:
        case NoneConfig():
            return DenseExchange(buffer, connection)
        case Fp16Config():
            return DenseExchange(buffer, connection, torch.float16)
        case Bf16Config():
            return DenseExchange(buffer, connection, torch.bfloat16)
        case PowerSgdConfig():
            return PowerSgdExchange(config, buffer, connection)
        case SparseConfig():
            return SparseExchange(config, selectors.build(config, buffer.buckets, seed=seed), buffer, connection)
        case QuantizedBase():
            return QuantizedExchange(config, buffer, connection, seed=seed)
        case CserConfig():
            return CserExchange(config, buffer, connection)
        case LiecSgdConfig():
            return LiecExchange(config, buffer, connection)
        case TwoWayConfig():
            return TwoWayExchange(config, buffer, connection)
