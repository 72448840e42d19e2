"""PowerSGD: large matrices travel as two low-rank factors, the rest densely (Vogels et al., NeurIPS 2019, Algorithm 1).

Symbols: M a layer's gradient plus residual, as a matrix; P = M Q and Q = M'P its factors, each averaged over the ranks,
P for the matrix's long side. There is no dense start: the factors begin at random, equal on all ranks. Each bucket is
one collective of P and of its other layers, sent while backward fills the next; the Q of all follow in one, with the
loss.

A rank keeps M - P Q' with its own Q, not with the mean. Summed over the ranks, that is the same. But with the mean, the
differences between ranks, which no mean ever sends, would pile up in the memories and drown the mean in the rounding of
P. P may be rounded, since it only gives directions. Q may not, since its sum is applied. In layers that stay dense,
rounding errors are lost: partial sums are rounded on their way, and no rank knows by how much.
"""

from typing import Any

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.factors import Factorised, average_short_factors, starting_factor
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.lowrank import orthogonalize_, project, rebuild, take_out
from trainers.exchange.level import Level, level_of
from trainers.exchange.memory import FollowedRate
from trainers.exchange.rounding import Rounded
from trainers.exchange.step_result import Exchanged, agreed, loss_if
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.snapshot import Kept
from trainers.traffic.buckets import Bucket, Layer
from trainers.traffic.sizes import as_matrix, is_worth_factors


class PowerSgdExchange:
    """Factors warm-start from the step before; what they miss stays in the residual."""

    threshold = None

    def __init__(self, config: PowerSgdConfig, buffer: Gradients, connection: Connection) -> None:
        self._config, self._buffer, self._connection = config, buffer, connection
        self._residual, self._next = torch.zeros_like(buffer.gradient), torch.zeros_like(buffer.gradient)
        layers = [layer for bucket in buffer.buckets for layer in bucket.layers if len(layer.shape) > 1]
        self._factors = {layer.start: self._starting_factor(layer) for layer in layers}
        self._rounded = Rounded(connection, config.values)
        self._rate, self._factor = FollowedRate(), 1.0  # of the residual, in the running step

    def _starting_factor(self, layer: Layer) -> Tensor:
        """Return Q for the highest rank; lower ones use its first rows."""
        short = min(as_matrix(layer.shape))
        factor = starting_factor(short, min(self._config.highest_rank, short), seed=layer.start)
        return factor.to(self._buffer.gradient.device)

    @torch.no_grad()
    def step(self, loss: Tensor, level: Level, learning_rate: float) -> Exchanged:
        if self._config.lr_corrected:
            self._factor = self._rate.correction(learning_rate)
        self._rounded.begin()
        everything: list[Factorised] = []
        finite: list[Tensor] = []  # of each collective
        for bucket in self._buffer.buckets:
            matrices = self._project(bucket, level)
            factorised = {each.layer.start for each in matrices}
            others = [self._corrected(layer) for layer in bucket.layers if layer.start not in factorised]
            finite.append(self._rounded.average(bucket.index, [[each.p for each in matrices], others]))
            for each in matrices:  # Q becomes the rank's own, and M what that leaves of it
                orthogonalize_(each.p)
                take_out(each.view(self._next), each.p, each.q)
            everything += matrices
        loss_sum = average_short_factors(self._connection, everything, loss)
        for each in everything:
            rebuild(each.p, each.q, each.view(self._buffer.gradient))
        outcome = agreed([loss_if(each, loss_sum) for each in finite], self._connection.num_workers)
        if not outcome.diverged:
            if not self._config.lr_corrected or self._rate.counts(learning_rate):
                self._keep(everything)
            self._rate.commit(learning_rate)
            self._commit(everything)
        return outcome

    def _project(self, bucket: Bucket, level: Level) -> list[Factorised]:
        """Write M beside the residual, and return the matrices with their rank's own P."""
        self._buffer.wait(bucket)
        matrices = []
        for layer in bucket.layers:
            rank = round(self._config.check_level(level_of(layer, level)))
            if is_worth_factors(layer.shape, rank=rank, min_rate=self._config.min_saving):
                factor = self._factors[layer.start][:rank]
                p = factor.new_empty(len(factor), max(as_matrix(layer.shape)))
                matrices.append(Factorised(layer, p, factor.clone()))
        for each in matrices:
            before = self._before(slice(each.layer.start, each.layer.stop)).view(as_matrix(each.layer.shape))
            project(each.view(self._buffer.gradient), before, each.view(self._next), each.q, each.p)
        return matrices

    def _before(self, span: slice) -> Tensor:
        """Return what earlier steps left, in units of this one."""
        before = self._residual[span]
        return before if self._factor == 1.0 else before * self._factor

    def _corrected(self, layer: Layer) -> Tensor:
        """Return the gradient of a layer that is not factorised now, with what was left of it when it was."""
        span = slice(layer.start, layer.stop)
        gradient = self._buffer.gradient[span]
        return gradient.add_(self._before(span)) if layer.start in self._factors else gradient

    def _keep(self, matrices: list[Factorised]) -> None:
        """Take over what the step left of the gradient."""
        self._residual, self._next = self._next, self._residual
        sent_densely = self._factors.keys() - {each.layer.start for each in matrices}
        for layer in self._buffer.layers:
            if layer.start in sent_densely:
                self._residual[layer.start : layer.stop].zero_()

    def _commit(self, matrices: list[Factorised]) -> None:
        for each in matrices:
            self._factors[each.layer.start][: len(each.q)] = each.q
        self._rounded.commit()

    def release(self, values: Tensor) -> None:
        """Add the residual to `values` `(d,)`, and reset it to zero."""
        values += self._residual
        self._residual.zero_()

    def tensors(self) -> dict[str, Tensor]:
        factors = {f"factor.{start}": factor for start, factor in self._factors.items()}
        return {"residual": self._residual} | factors

    def scalars(self) -> dict[str, Any]:
        return {"learning_rate": self._rate.last, "rounded": self._rounded.scalars()}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._rate.load(scalars.get("learning_rate"))  # which was not always saved
        self._rounded.load_scalars(scalars["rounded"])

    def inherit(self, kept: Kept) -> None:
        self._residual.add_(kept.tensors["residual"].to(self._residual.device), alpha=1 / kept.of)
        if kept.index == 0:  # the factors are equal on all ranks
            for start, factor in self._factors.items():
                factor.copy_(kept.tensors[f"factor.{start}"])
            self.load_scalars(dict(kept.scalars))


def build(config: PowerSgdConfig, buffer: Gradients, connection: Connection, *, seed: int) -> PowerSgdExchange:
    """Return the exchange of `config`."""
    return PowerSgdExchange(config, buffer, connection)
