"""Quantized exchanges: one all-gather per bucket sends every entry with few bits."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from trainers.exchange.bucketwise import BucketwiseExchange
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.memory import Nothing, Residual
from trainers.exchange.message import Message
from trainers.exchange.quantizer import Quantizer, Segments
from trainers.exchange.step_result import all_finite, loss_if
from trainers.spec.exchange import CorrectedConfig
from trainers.spec.quantized import QuantizedBase
from trainers.traffic.buckets import Bucket
from trainers.traffic.sizes import CodedLayout


class QuantizedExchange(BucketwiseExchange):
    """A payload is what the quantizer makes of the gradient plus what was wrong before.

    `quantizer` makes the one of a bucket's layers, in the configuration's layout.
    """

    def __init__(
        self,
        config: QuantizedBase,
        quantizer: Callable[[Segments, CodedLayout], Quantizer],
        buffer: Gradients,
        connection: Connection,
        *,
        seed: int,
    ) -> None:
        memory = Residual if config.memory == "residual" else Nothing
        follows_rate = isinstance(config, CorrectedConfig) and config.lr_corrected
        super().__init__(memory(buffer.gradient), buffer, connection, follows_rate=follows_rate)
        self._quantizers = [
            quantizer(_segments(bucket), config.layout(bucket.num_elements, len(bucket.layers)))
            for bucket in buffer.buckets
        ]
        self._seed = seed

    def _exchange(self, bucket: Bucket, loss: Tensor) -> Tensor:
        """Replace the bucket's gradient by the combined payloads of all ranks. Returns their losses `(N,)`."""
        gradient, quantizer = self._buffer.wait(bucket), self._quantizers[bucket.index]
        payloads, losses = self._encoded(bucket, gradient, loss).gathered(self._connection)
        gradient.zero_()
        # Add rank by rank: the same order of additions on all ranks gives all the same bits.
        for payload in payloads:
            quantizer.add_decoded(payload, gradient)
        quantizer.combine(gradient, self._connection.num_workers)
        # The decoded sum may overflow although no entry did; its bits are the same on all ranks.
        return loss_if(all_finite(gradient), losses)

    def _encoded(self, bucket: Bucket, gradient: Tensor, loss: Tensor) -> Message:
        """Return this rank's message, and keep its payload's error in the memory."""
        quantizer = self._quantizers[bucket.index]
        message = Message(quantizer.num_bytes, gradient.device)
        corrected = self._memory.corrected(gradient, bucket.span)
        message.loss.copy_(loss_if(all_finite(corrected), loss))
        # what this rank rounds at random in this step
        place = np.random.SeedSequence((self._seed, self._taken, self._connection.rank, bucket.index))
        generator = torch.Generator().manual_seed(int(place.generate_state(1, np.uint64)[0] >> 1))
        quantizer.encode(corrected, message.payload, generator)
        if quantizer.uses_memory:
            quantizer.add_decoded(message.payload, corrected, factor=-1.0)
        return message


def _segments(bucket: Bucket) -> Segments:
    """Return where the bucket's layers lie in it."""
    return [(layer.start - bucket.start, layer.stop - bucket.start) for layer in bucket.layers]
