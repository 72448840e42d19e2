"""SparseLoCo: send each chunk's largest entries as a sign and one of two magnitudes, with a memory that decays.

Sarfi, Therien, Lidin and Belilovsky (2025), "Communication efficient LLM pre-training with SparseLoCo". A worker keeps
e <- beta e + D - q, where q is what the others decode from its message. All step by the mean of q over the workers.
"""

from dataclasses import replace

import torch
from torch import Tensor

from trainers.exchange.bucketwise import BucketwiseExchange
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.chunks import largest_of_each, read_places, write_places
from trainers.exchange.kernels.codes import pack, unpack
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.pack import unit_for
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.memory import Residual
from trainers.exchange.message import Message
from trainers.exchange.step_result import Exchanged, all_finite, loss_if
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.traffic.buckets import Bucket
from trainers.traffic.chunk_layout import CODE_BITS, ChunkLayout

#: Bits of a code.
NEGATIVE, LARGER = 1, 2


class ChunkCode:
    """Sends the largest entries of each chunk; of equal ones, those that come first.

    A chunk's selected magnitudes are split at their mean, and each part is sent as its own mean. Steps that are even
    around zero would leave half of their values unused, since no selected entry is near zero.
    """

    def __init__(self, layout: ChunkLayout) -> None:
        self._layout, self._parts = layout, layout.sections
        self.num_bytes, self.num_sent = layout.num_bytes, layout.num_sent

    def encode(self, values: Tensor, payload: Tensor) -> None:
        """Write `values` `(d,)` to `payload` `(num_bytes,)` uint8, zeros, which starts at a multiple of 4 bytes."""
        chunk, per_chunk = self._layout.chunk, self._layout.per_chunk
        whole, rest = values.tensor_split([len(values) // chunk * chunk])
        coded = [_coded(whole.view(-1, chunk), per_chunk)]
        if len(rest):
            coded.append(_coded(rest.unsqueeze(0), self.num_sent - len(whole) // chunk * per_chunk))
        places, codes, magnitudes = (torch.cat(each) for each in zip(*coded, strict=True))
        unit = unit_for(magnitudes)
        parts = self._parts
        payload[parts.unit].view(torch.float32).copy_(unit)
        payload[parts.magnitudes].view(torch.float16).copy_(magnitudes * unit.reciprocal())
        pack(codes, CODE_BITS, payload[parts.codes])
        write_places(places, payload[parts.places], payload[parts.high_places])

    def decoded(self, payload: Tensor) -> Entries:
        """Return the entries that `payload` `(num_bytes,)` stands for: the same bits wherever it is read."""
        parts = self._parts
        codes = payload.new_empty(self.num_sent)
        unpack(payload[parts.codes], CODE_BITS, codes)
        chunks = torch.arange(self.num_sent, device=payload.device) // self._layout.per_chunk
        indices = chunks * self._layout.chunk + read_places(payload[parts.places], payload[parts.high_places])
        unit = payload[parts.unit].view(torch.float32)
        magnitudes = payload[parts.magnitudes].view(torch.float16).float() * unit
        values = magnitudes[2 * chunks + (codes & LARGER > 0)]
        return Entries(indices.int(), torch.where(codes & NEGATIVE > 0, -values, values))


def _coded(chunks: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return of `count` of each of `chunks` `(n, c)`: places `(n count,)`, codes `(n count,)`, magnitudes `(2 n,)`."""
    places = largest_of_each(chunks, count)
    values = chunks.gather(1, places)
    magnitudes = values.abs()
    larger = magnitudes > magnitudes.mean(1, keepdim=True)
    means = [_mean_where(each, magnitudes) for each in (~larger, larger)]
    codes = NEGATIVE * (values < 0) + LARGER * larger
    return places.flatten(), codes.flatten().to(torch.uint8), torch.stack(means, dim=1).flatten()


def _mean_where(hits: Tensor, magnitudes: Tensor) -> Tensor:
    """Return the mean `(n,)` of those of `magnitudes` `(n, k)` that `hits` says; 0 where there are none."""
    sums = torch.where(hits, magnitudes, 0.0).sum(1, dtype=torch.float64)  # of float32 it may overflow
    return (sums / hits.sum(1).clamp(min=1)).float()


class SparseLoCoExchange(BucketwiseExchange):
    """All ranks gather all messages and divide their sum by the number of ranks, whoever sent an entry."""

    def __init__(self, config: SparseLoCoConfig, buffer: Gradients, connection: Connection) -> None:
        super().__init__(Residual(buffer.gradient, decay=config.decay), buffer, connection, follows_rate=False)
        self._config = config
        self._codes: list[ChunkCode] = []  # by bucket, at the density of the step

    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Exchange the buffer's gradient at the density `level`; None: that of the configuration."""
        density = self._config.check_level(level)
        self._codes = [ChunkCode(self._config.layout(bucket, density)) for bucket in self._buffer.buckets]
        outcome = super().step(loss, level, learning_rate)
        sent = sum(code.num_sent for code in self._codes) / self._buffer.num_elements
        return outcome if outcome.diverged else replace(outcome, density=sent)

    def _exchange(self, bucket: Bucket, loss: Tensor) -> Tensor:
        gradient, code = self._buffer.wait(bucket), self._codes[bucket.index]
        payloads, losses = self._encoded(bucket, gradient, loss).gathered(self._connection)
        gradient.zero_()
        # One rank after the other: the order of additions, and with it every bit, is the same everywhere.
        for payload in payloads:
            scatter_add(gradient, code.decoded(payload))
        gradient /= len(payloads)
        # The decoded sum may overflow although no entry did; its bits are the same on all ranks.
        return loss_if(all_finite(gradient), losses)

    def _encoded(self, bucket: Bucket, gradient: Tensor, loss: Tensor) -> Message:
        """Return this rank's message, and keep what the others do not decode of it."""
        code = self._codes[bucket.index]
        message, corrected = Message(code.num_bytes, gradient.device), self._memory.corrected(gradient, bucket.span)
        message.loss.copy_(loss_if(all_finite(corrected), loss))
        code.encode(corrected, message.payload)
        scatter_add(corrected, code.decoded(message.payload), -1.0)
        return message


def build(config: SparseLoCoConfig, buffer: Gradients, connection: Connection, *, seed: int) -> SparseLoCoExchange:
    """Return the exchange of `config`."""
    return SparseLoCoExchange(config, buffer, connection)
