"""Dense exchanges in float32, float16 or bfloat16: one all-reduce a bucket."""

import torch

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.dense import DenseExchange
from trainers.spec.exchange import ExchangeBase


def build(config: ExchangeBase, buffer: GradientBuffer, connection: Connection, *, seed: int) -> DenseExchange:
    """Return the exchange of `none`."""
    return DenseExchange(buffer, connection)


def build_fp16(config: ExchangeBase, buffer: GradientBuffer, connection: Connection, *, seed: int) -> DenseExchange:
    """Return the exchange of `fp16`."""
    return DenseExchange(buffer, connection, torch.float16)


def build_bf16(config: ExchangeBase, buffer: GradientBuffer, connection: Connection, *, seed: int) -> DenseExchange:
    """Return the exchange of `bf16`."""
    return DenseExchange(buffer, connection, torch.bfloat16)
