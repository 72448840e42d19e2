"""CSER: each rank applies the error of its signs by itself, and periodically resets the part that it can send.

Xie, Zheng, Koyejo, Gupta, Li and Lin (2020), "CSER: communication-efficient SGD with error reset", with signs for both
compressors. With e a rank's error, x + rate x e is the same on all ranks at all times.
"""

import torch
from torch import Tensor

from trainers.exchange.block_sign import BlockSign
from trainers.exchange.bucketwise import BucketwiseExchange
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.memory import Residual
from trainers.exchange.message import Message
from trainers.exchange.step_result import all_finite, loss_if
from trainers.methods.exchange.cser.spec import CserConfig
from trainers.traffic.buckets import Bucket


class CserExchange(BucketwiseExchange):
    """All ranks gather all signs of the gradient and, in the last step of a period, also the signs of the errors.

    The memory is what this rank has applied by itself and not reset, in gradient units.
    """

    def __init__(self, config: CserConfig, buffer: Gradients, connection: Connection) -> None:
        self._errors = Residual(buffer.gradient)
        super().__init__(self._errors, buffer, connection, follows_rate=config.follows_rate)
        self._period = config.period
        self._signs = [
            BlockSign(config.layout(bucket.num_elements, config.block), config.block) for bucket in buffer.buckets
        ]

    def _exchange(self, bucket: Bucket, loss: Tensor) -> Tensor:
        gradient, signs = self._buffer.wait(bucket), self._signs[bucket.index]
        num_payloads = 2 if self._meets(self._period) else 1
        message = Message(num_payloads * signs.num_bytes, gradient.device)
        message.loss.copy_(loss)
        self._encode(bucket, gradient, message.payload.view(num_payloads, -1))
        payloads, losses = message.gathered(self._connection)
        mean = torch.zeros_like(gradient)
        # One rank after the other: the order of additions, and with it every bit, is the same everywhere.
        for payload in payloads.reshape(-1, signs.num_bytes):
            signs.add_decoded(payload, mean, factor=1 / len(payloads))
        gradient += mean
        return loss_if(all_finite(mean), losses)

    def _encode(self, bucket: Bucket, gradient: Tensor, payloads: Tensor) -> None:
        """Write the signs of the gradient, and of the errors if they are due, to `payloads` `(1 or 2, num_bytes)`.

        The gradient becomes what this rank applies by itself: what its signs get wrong, less the errors that it sends.
        """
        signs = self._signs[bucket.index]
        signs.encode(gradient, payloads[0])
        signs.add_decoded(payloads[0], gradient, factor=-1.0)
        error = self._errors.corrected(gradient, bucket.span)
        for payload in payloads[1:]:
            signs.encode(error, payload)
            for each in (error, gradient):
                signs.add_decoded(payload, each, factor=-1.0)


def build(config: CserConfig, buffer: Gradients, connection: Connection, *, seed: int) -> CserExchange:
    """Return the exchange of `config`."""
    return CserExchange(config, buffer, connection)
