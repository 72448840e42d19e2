"""How ranks average a vector while all of them wait: through the job's exchange, compressed as it says."""

import torch
from torch import Tensor

from trainers.exchange import two_level
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.step_result import Exchanged
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.sync.iterate import Iterate
from trainers.sync.policy import Update


class Meeting:
    """An exchange with a buffer of its own, of the iterate's shapes."""

    def __init__(self, config: ExchangeConfig, iterate: Iterate, node_links: NodeLinks, *, seed: int) -> None:
        device = iterate.read().device
        self._buffer = GradientBuffer(iterate.shapes, config, device)
        self.exchange = two_level.build(config, self._buffer, node_links, seed=seed)

    def average(self, values: Tensor, outcome: Exchanged, update: Update) -> tuple[Tensor, Exchanged]:
        """Return the mean of the ranks' `values` `(n,)`, a view that the next call overwrites, and what is known then.

        `outcome` is this rank's of the step; its loss is averaged too.
        """
        self._buffer.expect()
        self._buffer.gradient.copy_(values)
        self._buffer.finish()
        loss = torch.full((), outcome.loss, device=values.device)
        met = self.exchange.step(loss, update.level, update.learning_rate)
        return self._buffer.gradient, met
