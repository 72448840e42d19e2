"""Base of exchanges that compress both ways: ranks send codes to the owners of entries, and owners send codes back."""

from collections.abc import Callable

from torch import Tensor

from trainers.exchange import server
from trainers.exchange.block_sign import BlockSign
from trainers.exchange.bucketwise import BucketwiseExchange
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.memory import Memory
from trainers.exchange.server import BlockCode, Server, Serverless
from trainers.exchange.step_result import all_finite, loss_if
from trainers.snapshot import Kept
from trainers.spec.two_way import TwoWayConfig
from trainers.traffic.buckets import Bucket
from trainers.traffic.sizes import CodedLayout


class TwoWayExchange(BucketwiseExchange):
    """An exchange with a server per bucket, and a memory for what a rank's codes leave out.

    `code(layout, block)` makes the code of entries in blocks of `block`, in the configuration's layout.
    """

    def __init__(
        self,
        config: TwoWayConfig,
        memory: Memory,
        buffer: Gradients,
        connection: Connection,
        *,
        code: Callable[[CodedLayout, int], BlockCode] = BlockSign,
    ) -> None:
        super().__init__(memory, buffer, connection, follows_rate=config.follows_rate)
        self._config = config
        server_of = Server if config.has_server(connection.num_workers) else Serverless
        self._servers = [
            server_of(config, code, bucket, connection, buffer.gradient.device) for bucket in buffer.buckets
        ]

    def _rescale(self, factor: float) -> None:
        super()._rescale(factor)
        for each in self._servers:
            each.rescale(factor)

    def _exchange(self, bucket: Bucket, loss: Tensor) -> Tensor:
        gradient, of_bucket = self._buffer.wait(bucket), self._servers[bucket.index]
        rows = of_bucket.encode(self._memory.corrected(gradient, bucket.span), loss)
        losses = of_bucket.average(rows, gradient)
        finite = all_finite(gradient)  # its bits are the same on all ranks; those of what a memory adds are not
        self._memory.receive(gradient, bucket.span)
        return loss_if(finite, losses)

    def _keep(self) -> None:
        super()._keep()
        for each in self._servers:
            each.commit()

    def release(self, values: Tensor) -> None:
        super().release(values)
        for bucket, of_bucket in zip(self._buffer.buckets, self._servers, strict=True):
            of_bucket.release(values[bucket.span])
            of_bucket.commit()

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {server.name_of(index): each.error for index, each in enumerate(self._servers)}

    def inherit(self, kept: Kept) -> None:
        super().inherit(kept)
        for bucket in self._buffer.buckets:
            self._memory.add_owned(server.kept_for_all(kept, bucket, self._config), bucket.span)
