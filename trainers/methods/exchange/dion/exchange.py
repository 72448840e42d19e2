"""Dion: orthonormal steps along two low-rank factors of the momentum, which is also the error memory.

Ahn, Xu, Abreu and Langford (2025), "Dion: distributed orthonormalized updates". Symbols: M `(n, m)` a rank's momentum
of a matrix, r the rank, mu the momentum. P is the factor of the matrix's long side, Q that of its short side, as
`trainers.exchange.kernels.lowrank` has them.

    M <- M + G;  P = orth(mean of M Q);  R = M'P;  M <- M - (1 - mu) P R';  Q = mean of R, in columns of length 1

The step is 0.2 sqrt(max(n, m)) P Q'. The factor is Muon's (Liu et al., 2025, section 2.2), so that AdamW's rates fit:
at full rank it gives entries the root mean square of AdamW's steps. The published one is sqrt(n / m).

As with PowerSGD, a rank takes out its own R, not the mean: the mean of all M is the same, and what makes ranks differ
does not pile up. Layers that are no matrix, or too small for factors, are averaged densely and step as Adam does.
"""

import math
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.adam import Moments
from trainers.exchange.connection import Connection
from trainers.exchange.factors import Factorised, average_short_factors, starting_factor
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.lowrank import orthogonalize_, project, rebuild
from trainers.exchange.memory import StatePair
from trainers.exchange.rounding import Rounded
from trainers.exchange.step_result import Exchanged, agreed, loss_if
from trainers.methods.exchange.dion.spec import DionConfig, rank_at
from trainers.snapshot import Kept
from trainers.traffic.buckets import Bucket, Layer
from trainers.traffic.sizes import as_matrix

#: Root mean square of the entries of AdamW's steps (Liu et al., 2025, section 2.2).
RMS = 0.2


class DionExchange:
    """Each bucket is one collective of P and its dense layers; R of all matrices follow in one, with the loss."""

    threshold = None

    def __init__(self, config: DionConfig, buffer: Gradients, connection: Connection) -> None:
        self._config, self._buffer, self._connection = config, buffer, connection
        self._momentum = StatePair(buffer.gradient)
        self._factors = {
            layer.start: self._starting_factor(layer) for layer in buffer.layers if self._has_factors(layer)
        }
        self._dense = [layer for layer in buffer.layers if not self._has_factors(layer)]
        self._moments = Moments(self._dense_entries(), config.betas)
        self._packed = Rounded(connection, "float32")
        self._taken = 0  # steps

    def _has_factors(self, layer: Layer) -> bool:
        return self._config.highest_rank(layer.shape) > 0

    def _starting_factor(self, layer: Layer) -> Tensor:
        """Return Q for the highest rank; lower ones use its first columns."""
        rank, short = self._config.highest_rank(layer.shape), min(as_matrix(layer.shape))
        return starting_factor(short, rank, seed=layer.start).to(self._buffer.gradient.device)

    def _dense_entries(self) -> Tensor:
        """Return the gradients of all layers without factors, one behind the other."""
        return torch.cat([self._buffer.gradient[:0], *(self._buffer.of(layer) for layer in self._dense)])

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Replace the buffer's gradient by a direction, at the rank fraction `level`; None: the configuration's."""
        fraction = self._config.check_level(level)
        matrices: list[Factorised] = []
        finite: list[Tensor] = []  # of each collective
        for bucket in self._buffer.buckets:
            some = self._project(bucket, fraction)
            others = [self._buffer.of(layer) for layer in bucket.layers if not self._has_factors(layer)]
            finite.append(self._packed.average(bucket.index, [[each.p for each in some], others]))
            for each in some:
                self._take_out(each)
            matrices += some
        loss_sum = average_short_factors(self._connection, matrices, loss)
        outcome = agreed([loss_if(each, loss_sum) for each in finite], self._connection.num_workers)
        if not outcome.diverged:
            self._commit(matrices)
        return outcome

    def _project(self, bucket: Bucket, fraction: float) -> list[Factorised]:
        """Write M + G beside M, and return the matrices with their rank's own P."""
        self._buffer.wait(bucket)
        matrices = []
        for layer in bucket.layers:
            if self._has_factors(layer):
                q = self._factors[layer.start][: rank_at(layer.shape, fraction)].clone()
                matrices.append(Factorised(layer, q.new_empty(len(q), max(as_matrix(layer.shape))), q))
        for each in matrices:
            gradient, before, after = map(each.view, (self._buffer.gradient, self._momentum.now, self._momentum.next))
            project(gradient, before, after, each.q, each.p)
        return matrices

    def _take_out(self, each: Factorised) -> None:
        """Make P orthonormal and Q the rank's own R, and leave of M what the step does not use up."""
        orthogonalize_(each.p)
        matrix = each.view(self._momentum.next)
        tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.t()
        torch.mm(each.p, tall, out=each.q)
        tall.addmm_(each.p.t(), each.q, alpha=-(1 - self._config.momentum))

    def _commit(self, matrices: list[Factorised]) -> None:
        """Take over what the step left, and write the direction."""
        self._momentum.commit()
        self._taken += 1
        for each in matrices:
            # In float64, so that the order of the sum, which is another CPU's own, is rounded away.
            lengths = torch.linalg.vector_norm(each.q, dim=1, keepdim=True, dtype=torch.float64)
            units = (each.q / lengths.where(lengths > 0, 1.0)).float()
            factor = self._factors[each.layer.start][: len(units)]
            factor.copy_(torch.where(lengths > 0, units, factor))  # a column of zeros would stay one
            direction = each.view(self._buffer.gradient)
            rebuild(each.p, units, direction)
            direction *= RMS * math.sqrt(max(direction.shape))
        self._step_densely()

    def _step_densely(self) -> None:
        """Replace the mean gradients of the dense layers by Adam's direction."""
        entries = self._dense_entries()
        self._moments.follow(entries)
        self._moments.direction(entries, self._taken, num_squares=self._taken)
        sizes = [layer.num_elements for layer in self._dense]
        for layer, some in zip(self._dense, torch.split(entries, sizes), strict=True):
            self._buffer.of(layer).copy_(some)

    def tensors(self) -> dict[str, Tensor]:
        return {"momentum": self._momentum.now} | self._shared()

    def _shared(self) -> dict[str, Tensor]:
        """Return the state that is equal on all ranks."""
        factors = {f"factor.{start}": factor for start, factor in self._factors.items()}
        return {"first": self._moments.first, "second": self._moments.second} | factors

    def scalars(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._taken = scalars["taken"]

    def inherit(self, kept: Kept) -> None:
        self._momentum.inherit(kept.tensors["momentum"], kept)
        if kept.index == 0:
            for name, tensor in self._shared().items():
                tensor.copy_(kept.tensors[name])
            self.load_scalars(dict(kept.scalars))


def build(config: DionConfig, buffer: Gradients, connection: Connection, *, seed: int) -> DionExchange:
    """Return the exchange of `config`."""
    return DionExchange(config, buffer, connection)
