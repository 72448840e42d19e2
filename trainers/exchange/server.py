"""A parameter server spread over the ranks: each rank sums its shard of every bucket of compressed gradients.

Each bucket takes two collectives. Ranks send codes to the owners of the entries, and the owners send codes of their
sums to all. All ranks receive what a single server of the whole bucket would send. They may also do without a server,
and send their codes to all.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from trainers.exchange.connection import BytesByPurpose, Connection
from trainers.snapshot import Kept
from trainers.spec.two_way import TwoWayConfig
from trainers.traffic.block_shards import BlockShards
from trainers.traffic.buckets import Bucket
from trainers.traffic.sizes import WORD_BYTES, CodedLayout

HEADER_BYTES = WORD_BYTES


class BlockCode(Protocol):
    """Encodes neighbouring entries, block by block. If values are not finite, some decoded ones are not either."""

    @property
    def num_bytes(self) -> int:
        """The length of a payload; a multiple of 4."""

    def encode(self, values: Tensor, payload: Tensor) -> None:
        """Write `values` `(d,)` to `payload` `(num_bytes,)` uint8, which starts at a multiple of 4 bytes."""

    def add_decoded(self, payload: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
        """Decode `payload` `(num_bytes,)`, and add `factor` times the result to `out` `(d,)` in place."""


class Server:
    """The server of one bucket. This rank's part keeps the residual of its sums, in units of the mean."""

    def __init__(
        self,
        config: TwoWayConfig,
        code: Callable[[CodedLayout, int], BlockCode],
        bucket: Bucket,
        connection: Connection,
        device: torch.device,
    ) -> None:
        self._connection = connection
        self._shards = BlockShards(bucket.num_elements, connection.num_workers, config.block)
        self._spans = [self._shards.span(owner) for owner in range(connection.num_workers)]
        block = self._shards.block
        self._codes = [code(config.layout(span.stop - span.start, block), block) for span in self._spans]
        self._useful_bytes = sum(each.num_bytes for each in self._codes)
        self._row_bytes = config.row_bytes(self._shards)
        #: The residual of this rank's shard, padded with zeros to `(size of the largest shard,)`.
        self.error, self._next_error = (torch.zeros(self._shards.size, device=device) for _ in range(2))
        self._factor = 1.0

    def encode(self, values: Tensor, loss: Tensor) -> Tensor:
        """Return the payloads of `values` `(d,)`, one row per owner. `values` becomes their residual, in place."""
        num_bytes = HEADER_BYTES + self._row_bytes
        rows = torch.zeros(len(self._codes), num_bytes, dtype=torch.uint8, device=values.device)
        rows.view(torch.float32)[:, 0] = loss
        for code, span, row in zip(self._codes, self._spans, rows[:, HEADER_BYTES:], strict=True):
            payload = row[: code.num_bytes]
            code.encode(values[span], payload)
            code.add_decoded(payload, values[span], factor=-1.0)
        return rows

    def average(self, rows: Tensor, out: Tensor) -> Tensor:
        """Overwrite `out` `(d,)` with the owners' decoded means of all payloads. Returns the ranks' losses `(N,)`."""
        count, width = len(rows), self._row_bytes
        padding = count * width - self._useful_bytes
        received = self._connection.all_to_all(
            rows, {"control": count * HEADER_BYTES, "gradient": self._useful_bytes, "padding": padding}
        )
        useful = self._codes[self._connection.rank].num_bytes
        sums = self._connection.all_gather(self._sum(received), {"gradient": useful, "padding": width - useful})
        out.zero_()
        for code, span, row in zip(self._codes, self._spans, sums, strict=True):
            code.add_decoded(row[: code.num_bytes], out[span])
        return received.view(torch.float32)[:, 0]

    def _sum(self, received: Tensor) -> Tensor:
        """Return the payload of this rank's shard: the mean of what was `received`, plus the residual, encoded."""
        code = self._codes[self._connection.rank]
        torch.mul(self.error, self._factor, out=self._next_error)
        span = self._spans[self._connection.rank]
        mean = self._next_error[: span.stop - span.start]
        # Add rank by rank: a fixed order of additions fixes every bit of the sum.
        for row in received[:, HEADER_BYTES:]:
            code.add_decoded(row[: code.num_bytes], mean, factor=1 / len(received))
        sent = torch.zeros(self._row_bytes, dtype=torch.uint8, device=received.device)
        code.encode(mean, sent[: code.num_bytes])
        code.add_decoded(sent[: code.num_bytes], mean, factor=-1.0)
        return sent

    def release(self, values: Tensor) -> None:
        """Add this rank's residual to `values` `(d,)`, scaled for the mean over the ranks that is taken next."""
        span = self._spans[self._connection.rank]
        values[span].add_(self.error[: span.stop - span.start], alpha=self._factor * len(self._spans))
        self._next_error.zero_()

    def stretch(self, factors: Tensor) -> None:
        """Multiply this rank's residual by its shard of `factors` `(d,)`."""
        span = self._spans[self._connection.rank]
        self.error[: span.stop - span.start] *= factors[span]

    def rescale(self, factor: float) -> None:
        """Multiply the residual by `factor` in the coming step."""
        self._factor = factor

    def commit(self) -> None:
        """Make the state that the step wrote the current one."""
        self.error, self._next_error = self._next_error, self.error
        self._factor = 1.0


class Serverless(Server):
    """No server: one all-gather of all codes per bucket. Nothing is encoded twice, so the owners have no residual.

    If a checkpoint of an earlier release has a server's residual, this rank sends it with its first codes.
    """

    def encode(self, values: Tensor, loss: Tensor) -> Tensor:
        self.release(values)
        return super().encode(values, loss)

    def average(self, rows: Tensor, out: Tensor) -> Tensor:
        count = len(rows)
        parts: BytesByPurpose = {
            "control": count * HEADER_BYTES,
            "gradient": self._useful_bytes,
            "padding": count * self._row_bytes - self._useful_bytes,
        }
        received = self._connection.all_gather(rows.flatten(), parts).view(count, *rows.shape)
        out.zero_()
        for of_rank in received:  # in the order of the ranks, which fixes every bit
            for code, span, row in zip(self._codes, self._spans, of_rank[:, HEADER_BYTES:], strict=True):
                code.add_decoded(row[: code.num_bytes], out[span], factor=1 / count)
        return received.view(torch.float32)[:, 0, 0]


def kept_for_all(kept: Kept, bucket: Bucket, config: TwoWayConfig) -> Tensor:
    """Return an old rank's residual as owner, placed in the bucket `(bucket.num_elements,)`; zeros elsewhere."""
    means = torch.zeros(bucket.num_elements)
    span = BlockShards(bucket.num_elements, kept.of, config.block).span(kept.index)
    means[span] = kept.tensors[name_of(bucket.index)][: span.stop - span.start].cpu()
    return means


def name_of(index: int) -> str:
    """Return the name in a checkpoint of the server residual of bucket number `index`."""
    return f"server.{index}"
