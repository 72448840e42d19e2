"""Two-level exchanges: the ranks of a node sum densely at their leader, and the leaders exchange between nodes.

Each rank's gradient is scaled by nodes / ranks before the sum. So the leaders' mean is the mean over all ranks, even if
nodes differ in size. Only leaders compress, and only they have memories.
"""

import math
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.exchange.gradients import Gradients
from trainers.exchange.node_links import LEADER, NodeLinks
from trainers.exchange.step_result import DIVERGED, Exchanged
from trainers.snapshot import Kept, Stateless


class Follower(Stateless):
    """The exchange of a rank that does not lead its node: nothing goes to other nodes, and there is no memory."""

    threshold = None

    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        return Exchanged()


class TwoLevelExchange:
    """Runs `leading` on the sum over a node's ranks, bucket by bucket, and broadcasts the result within the node.

    The state is that of `leading`. If each rank is a node, there is no sum and no broadcast.
    """

    def __init__(self, leading: Exchange, pooled: Gradients, node_links: NodeLinks) -> None:
        self._leading, self._pooled, self._node_links = leading, pooled, node_links

    @property
    def threshold(self) -> float | None:
        """The threshold in force, which only leaders know."""
        return self._leading.threshold

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Exchange the buffer's gradient, as `Exchange` says."""
        share = (self._node_links.share * loss).reshape(1)
        self._node_links.within.reduce_sum(share, LEADER, {"control": share.nbytes})
        outcome = self._leading.step(share[0], level, learning_rate)
        self._pooled.wait_for_all()  # a follower gives its buckets here, and a leader that stopped early takes the rest
        return self._told(outcome)

    def _told(self, outcome: Exchanged) -> Exchanged:
        """Return the leader's `outcome` on all ranks. Unless the step diverged, all buffers have its gradient."""
        within, gradient = self._node_links.within, self._pooled.gradient
        density = math.nan if outcome.density is None else outcome.density
        # `step` has scaled losses so that the mean over nodes is the ranks'; of a node by itself it is undone.
        scale = self._node_links.share * within.num_workers if outcome.is_of_node else 1.0
        # In 64 bits, so that all ranks return the same; in host memory, where a rank by itself waits for no GPU.
        words = torch.tensor([outcome.loss / scale, outcome.diverged, density], dtype=torch.float64)
        within.broadcast(words, LEADER, {"control": words.nbytes})
        loss, diverged, density = words.tolist()
        if diverged:
            return DIVERGED
        within.broadcast(gradient, LEADER, {"gradient": gradient.nbytes})
        return Exchanged(loss=loss, density=None if math.isnan(density) else density)

    def tensors(self) -> dict[str, Tensor]:
        return self._leading.tensors()

    def scalars(self) -> dict[str, Any]:
        return self._leading.scalars()

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._leading.load_scalars(scalars)

    def inherit(self, kept: Kept) -> None:
        self._leading.inherit(kept)
