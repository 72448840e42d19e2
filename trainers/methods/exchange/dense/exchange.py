"""Dense exchanges in float32, float16 or bfloat16: one all-reduce a bucket."""

import torch

from trainers.exchange.connection import Connection
from trainers.exchange.dense import DenseExchange
from trainers.exchange.gradients import Gradients
from trainers.spec.exchange import ExchangeBase

TYPES = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def build(config: ExchangeBase, buffer: Gradients, connection: Connection, *, seed: int) -> DenseExchange:
    """Return the exchange of `config`."""
    return DenseExchange(buffer, connection, TYPES[config.kind])
