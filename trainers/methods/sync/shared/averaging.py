"""Average a vector over the ranks while all of them wait, compressed as the job's exchange says."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.exchange import Exchange
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.step_result import Exchanged
from trainers.methods.build import between_nodes
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.sync.policy import Update


class Iterate:
    """Live tensors, read and written as vectors `(n,)`; the first `num_parameters` entries are the parameters."""

    def __init__(self, tensors: Sequence[Tensor], *, num_parameters: int) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        self._sizes = [tensor.numel() for tensor in tensors]
        self.shapes = [tuple(tensor.shape) for tensor in tensors]
        self.num_parameters = num_parameters

    def read(self) -> Tensor:
        """Return a copy `(n,)`."""
        return torch.cat([tensor.reshape(-1) for tensor in self._tensors])

    def write(self, values: Tensor) -> None:
        """Set all entries to `values` `(n,)`."""
        torch._foreach_copy_(self._tensors, self._parts(values))

    def add(self, values: Tensor, factor: float) -> None:
        """Add `factor` x `values` `(n,)`."""
        torch._foreach_add_(self._tensors, self._parts(values), alpha=factor)

    def _parts(self, values: Tensor) -> list[Tensor]:
        parts = torch.split(values, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class Meeting:
    """Averages vectors like the iterate, by an exchange with its own buffer. `build` makes it from `config`."""

    def __init__(
        self,
        config: ExchangeConfig,
        iterate: Iterate,
        node_links: NodeLinks,
        *,
        seed: int,
        build: Callable[..., Exchange] = between_nodes,
    ) -> None:
        device = iterate.read().device
        self._buffer = GradientBuffer(iterate.shapes, config, device)
        self.exchange = build(config, self._buffer, node_links, seed=seed)

    def average(self, values: Tensor, outcome: Exchanged, update: Update) -> tuple[Tensor, Exchanged]:
        """Return the mean of the ranks' `values` `(n,)`, and the result of the exchange; collective.

        The mean is a view that the next call overwrites. `outcome` is this rank's result of the step, whose loss is
        averaged too.
        """
        self._buffer.expect()
        self._buffer.gradient.copy_(values)
        self._buffer.finish()
        loss = torch.full((), outcome.loss, device=values.device)
        met = self.exchange.step(loss, update.level, update.learning_rate)
        return self._buffer.gradient, met
