"""PowerSGD: large matrices travel as two low-rank factors, the rest densely (Vogels et al., NeurIPS 2019, Algorithm 1).

Symbols: M a layer's gradient plus residual, as a matrix; P = M Q and Q = M'P its factors, each averaged over the ranks.
Each bucket is one collective, sent while backward fills the next: it carries the P of its own matrices, its other
layers, and the Q of the bucket before. There is no dense start: the factors begin at random, equal on all ranks.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.buckets import Bucket, Layer
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.compressors.lowrank import starting_factor
from trainers.exchange.compressors.sizes import as_matrix, is_worth_factors
from trainers.exchange.config import PowerSgdConfig
from trainers.exchange.dense import sums
from trainers.exchange.kernels.lowrank import back_project, orthogonalize_, project, rebuild
from trainers.exchange.levels.level import Level, level_of
from trainers.exchange.outcome import DIVERGED, Exchanged, is_finite
from trainers.exchange.rounding import Rounded
from trainers.exchange.wire import Wire
from trainers.snapshot import Kept


@dataclass
class _Matrix:
    """A layer that is factorised in this step."""

    layer: Layer
    p: Tensor  # (n, r)
    q: Tensor  # (r, m), transposed

    @property
    def span(self) -> slice:
        return slice(self.layer.start, self.layer.stop)


class PowerSgdExchange:
    """Factors warm-start from the step before; what they miss stays in the residual."""

    threshold = None

    def __init__(self, config: PowerSgdConfig, buffer: GradientBuffer, wire: Wire) -> None:
        self._config, self._buffer, self._wire = config, buffer, wire
        self._residual, self._next = torch.zeros_like(buffer.gradient), torch.zeros_like(buffer.gradient)
        layers = [layer for bucket in buffer.buckets for layer in bucket.layers if len(layer.shape) > 1]
        self._factors = {layer.start: self._starting_factor(layer) for layer in layers}
        self._rounded = Rounded(wire, config.values)

    def _starting_factor(self, layer: Layer) -> Tensor:
        """Return Q for the highest rank; lower ones use its first rows."""
        num_rows, num_columns = as_matrix(layer.shape)
        rank = min(self._config.highest_rank, num_rows, num_columns)
        factor = starting_factor(num_columns, rank, seed=layer.start)
        return factor.to(self._buffer.gradient.device)

    @torch.no_grad()
    def step(self, loss: Tensor, level: Level, learning_rate: float) -> Exchanged:
        [loss_sum] = sums([float(loss)], self._wire)  # while backward still computes the first bucket
        everything: list[_Matrix] = []
        before: list[_Matrix] = []  # whose Q is still to be averaged
        for bucket in self._buffer.buckets:
            matrices = self._project(bucket, level)
            others = [self._buffer.gradient[layer.start : layer.stop] for layer in _others(bucket, matrices)]
            self._rounded.average(bucket.index, [[each.p for each in matrices], others, [each.q for each in before]])
            self._rebuild(before)
            self._back_project(matrices)
            before = matrices
            everything += matrices
        if before:
            self._rounded.average(len(self._buffer.buckets), [[each.q for each in before]])
            self._rebuild(before)
        if not (math.isfinite(loss_sum) and is_finite(self._buffer.gradient)):
            return DIVERGED
        self._commit(everything)
        return Exchanged(loss=loss_sum / self._wire.num_workers)

    def _project(self, bucket: Bucket, level: Level) -> list[_Matrix]:
        """Write M beside the residual, and return the matrices with their rank's own P."""
        self._buffer.wait(bucket)
        ranks = [(layer, round(self._config.check_level(level_of(layer, level)))) for layer in bucket.layers]
        matrices = [
            self._matrix(layer, rank)
            for layer, rank in ranks
            if is_worth_factors(layer.shape, rank=rank, min_rate=self._config.min_saving)
        ]
        for each in matrices:
            shape = as_matrix(each.layer.shape)
            gradient, residual, corrected = (
                part[each.span].view(shape) for part in (self._buffer.gradient, self._residual, self._next)
            )
            project(gradient, residual, corrected, each.q, each.p)
        return matrices

    def _matrix(self, layer: Layer, rank: int) -> _Matrix:
        factor = self._factors[layer.start][:rank]
        num_rows, _ = as_matrix(layer.shape)
        return _Matrix(layer, p=factor.new_empty(num_rows, len(factor)), q=factor.clone())

    def _back_project(self, matrices: list[_Matrix]) -> None:
        for each in matrices:
            orthogonalize_(each.p)
            back_project(self._next[each.span].view(as_matrix(each.layer.shape)), each.p, each.q)

    def _rebuild(self, matrices: list[_Matrix]) -> None:
        """Put the mean into the buffer, and what this rank's M has beside it into the next residual."""
        for each in matrices:
            shape = as_matrix(each.layer.shape)
            corrected = self._next[each.span].view(shape)
            rebuild(corrected, each.p, each.q, corrected, self._buffer.gradient[each.span].view(shape))

    def _commit(self, matrices: list[_Matrix]) -> None:
        self._residual, self._next = self._next, self._residual
        factorised = {each.layer.start for each in matrices}
        for bucket in self._buffer.buckets:
            for layer in bucket.layers:
                if layer.start not in factorised:
                    self._residual[layer.start : layer.stop].zero_()
        for each in matrices:
            self._factors[each.layer.start][: len(each.q)] = each.q
        self._rounded.commit()

    def release(self, values: Tensor) -> None:
        """Add to `values` `(d,)` what was not sent yet, and keep nothing of it any more."""
        values += self._residual
        self._residual.zero_()

    def tensors(self) -> dict[str, Tensor]:
        factors = {f"factor.{start}": factor for start, factor in self._factors.items()}
        return {"residual": self._residual} | factors

    def scalars(self) -> dict[str, Any]:
        return {"rounded": self._rounded.scalars()}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._rounded.load_scalars(scalars["rounded"])

    def inherit(self, kept: Kept) -> None:
        self._residual.add_(kept.tensors["residual"].to(self._residual.device), alpha=1 / kept.of)
        if kept.index == 0:  # the factors are equal on all ranks
            for start, factor in self._factors.items():
                factor.copy_(kept.tensors[f"factor.{start}"])
            self._rounded.load_scalars(kept.scalars["rounded"])


def _others(bucket: Bucket, matrices: list[_Matrix]) -> list[Layer]:
    starts = {each.layer.start for each in matrices}
    return [layer for layer in bucket.layers if layer.start not in starts]
