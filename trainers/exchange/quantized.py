"""Exchanges that send every entry with few bits: one all-gather of payloads a bucket."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.memory import FollowedRate, Memory, Nothing, Residual
from trainers.exchange.quantizer import Quantizer, Segments
from trainers.exchange.step_result import Exchanged, agreed, all_finite, loss_if
from trainers.snapshot import Kept
from trainers.spec.exchange import CorrectedConfig
from trainers.spec.quantized import QuantizedBase
from trainers.traffic import collectives
from trainers.traffic.buckets import Bucket

HEADER_BYTES = collectives.WORD_BYTES


class QuantizedExchange:
    """A payload is one word, the loss, and what the quantizer makes of the gradient plus what was wrong before.

    A rank whose gradient is not finite says NaN instead of the loss. `quantizer` makes the one of a bucket's layers.
    """

    threshold = None

    def __init__(
        self,
        config: QuantizedBase,
        quantizer: Callable[[Segments], Quantizer],
        buffer: GradientBuffer,
        connection: Connection,
        *,
        seed: int,
    ) -> None:
        self._buffer, self._connection, self._seed = buffer, connection, seed
        self._quantizers = [quantizer(_segments(bucket)) for bucket in buffer.buckets]
        memory = Residual if config.memory == "residual" else Nothing
        self._memory: Memory = memory(buffer.gradient)
        self._follows_rate = isinstance(config, CorrectedConfig) and config.lr_corrected
        self._rate = FollowedRate()
        self._taken = 0  # steps; what is drawn in the next one follows from it

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Exchange the buffer's gradient, bucket by bucket; the memory changes only if all of it was finite."""
        if self._follows_rate:
            self._memory.rescale(self._rate.correction(learning_rate))
        outcome = agreed(
            [self._exchange(bucket, loss) for bucket in self._buffer.buckets], self._connection.num_workers
        )
        if not outcome.diverged:
            self._memory.commit()
            self._rate.commit(learning_rate)
            self._taken += 1
        return outcome

    def _exchange(self, bucket: Bucket, loss: Tensor) -> Tensor:
        """Replace the bucket's gradient by what the ranks' payloads make; returns their losses `(N,)`."""
        gradient, quantizer = self._buffer.wait(bucket), self._quantizers[bucket.index]
        words = self._encoded(bucket, gradient, loss)
        rows = self._connection.all_gather(words, {"control": HEADER_BYTES, "gradient": quantizer.num_bytes})
        gradient.zero_()
        # One rank after the other: the order of additions, and with it every bit, is the same everywhere.
        for row in rows:
            quantizer.add_decoded(row[HEADER_BYTES:], gradient)
        quantizer.combine(gradient, self._connection.num_workers)
        losses = rows[:, :HEADER_BYTES].contiguous().view(torch.float32).flatten()
        # The decoded sum may overflow although no entry did; its bits are the same on all ranks.
        return loss_if(all_finite(gradient), losses)

    def _encoded(self, bucket: Bucket, gradient: Tensor, loss: Tensor) -> Tensor:
        """Return this rank's payload behind its header, and keep what the payload gets wrong."""
        quantizer = self._quantizers[bucket.index]
        words = torch.zeros(HEADER_BYTES + quantizer.num_bytes, dtype=torch.uint8, device=gradient.device)
        header, payload = words[:HEADER_BYTES].view(torch.float32), words[HEADER_BYTES:]
        corrected = self._memory.corrected(gradient, bucket.span)
        header.copy_(loss_if(all_finite(corrected), loss))
        quantizer.encode(corrected, payload, self._generator(bucket))
        if quantizer.uses_memory:
            quantizer.add_decoded(payload, corrected, factor=-1.0)
        return words

    def _generator(self, bucket: Bucket) -> torch.Generator:
        """Return what this rank draws the bucket's rounding from, in this step."""
        place = np.random.SeedSequence((self._seed, self._taken, self._connection.rank, bucket.index))
        return torch.Generator().manual_seed(int(place.generate_state(1, np.uint64)[0] >> 1))

    def tensors(self) -> dict[str, Tensor]:
        return self._memory.tensors()

    def scalars(self) -> dict[str, Any]:
        return {"learning_rate": self._rate.last, "taken": self._taken}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._rate.load(scalars.get("learning_rate"))  # which was not always saved
        self._taken = scalars["taken"]

    def inherit(self, kept: Kept) -> None:
        self._memory.inherit(kept)
        self.load_scalars(dict(kept.scalars))  # all ranks had the same


def _segments(bucket: Bucket) -> Segments:
    """Return where the bucket's layers lie in it."""
    return [(layer.start - bucket.start, layer.stop - bucket.start) for layer in bucket.layers]
