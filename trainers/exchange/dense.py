"""Dense exchanges: one all-reduce per bucket sends every entry as a number."""

import torch
from torch import Tensor

from trainers.exchange.connection import BytesByPurpose, Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.step_result import Exchanged, agreed, all_finite, loss_if
from trainers.snapshot import Stateless
from trainers.traffic.buckets import Bucket
from trainers.traffic.sizes import WORD_BYTES


class DenseExchange(Stateless):
    """All-reduces the gradient itself, without compression or memory.

    In 16 bits, gradients are divided before they are summed, as in torch's hooks, and rounding errors are lost.
    """

    threshold = None

    def __init__(self, buffer: Gradients, connection: Connection, dtype: torch.dtype = torch.float32) -> None:
        self._buffer, self._connection, self._dtype = buffer, connection, dtype

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        *early, last = self._buffer.buckets
        for bucket in early:
            all_reduce_mean(self._buffer.wait(bucket), self._connection, loss.new_empty(0), self._dtype)
        self._buffer.wait(last)
        loss_sum = all_reduce_bucket(self._buffer, last, self._connection, loss.reshape(1), self._dtype)
        # What is not finite on one rank is not finite in the sum, whose bits are the same on all ranks.
        return agreed([loss_if(all_finite(self._buffer.gradient), loss_sum)], self._connection.num_workers)


def all_reduce_bucket(
    buffer: Gradients, bucket: Bucket, connection: Connection, control: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Average a bucket, which is complete, as `all_reduce_mean` does; `control` `(c,)` has a few numbers, or none.

    Before the bucket that starts at 0 there is room for them, so they need no copy of it to go along.
    """
    gradient = buffer.gradient[bucket.span]
    if dtype != torch.float32 or bucket.start > 0 or not len(control):
        return all_reduce_mean(gradient, connection, control, dtype)
    summed = _sum_behind(buffer.led_by(control, bucket), len(control), connection)
    gradient.div_(connection.num_workers)
    return summed


def all_reduce_mean(
    values: Tensor, connection: Connection, control: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Average `values` `(n,)` over the ranks, in place, sent as `dtype`; returns float32 `control` `(c,)`, summed."""
    if dtype != torch.float32:
        rounded = (values / connection.num_workers).to(dtype)
        connection.all_reduce_sum(rounded, {"gradient": rounded.nbytes})
        values.copy_(rounded)
        summed = control.clone()
        if len(control):  # in a collective of its own: 16 bits are too few for a loss
            connection.all_reduce_sum(summed, {"control": summed.nbytes})
        return summed
    if not len(control):
        connection.all_reduce_sum(values, {"gradient": values.nbytes})
        values.div_(connection.num_workers)
        return control
    words = torch.cat([control, values])
    summed = _sum_behind(words, len(control), connection)
    torch.div(words[len(control) :], connection.num_workers, out=values)
    return summed


def _sum_behind(words: Tensor, num_control: int, connection: Connection) -> Tensor:
    """Sum `words` over the ranks, in place; returns the first `num_control`, which are not of the gradient."""
    parts: BytesByPurpose = {"control": WORD_BYTES * num_control, "gradient": words[num_control:].nbytes}
    connection.all_reduce_sum(words, parts)
    return words[:num_control]
