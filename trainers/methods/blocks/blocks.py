"""The protocol of what says which blocks of a model a step trains, and the way to build what a job chose."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn
from torch.nn import Parameter

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.exchange import Exchange
from trainers.exchange.gradients import Gradients
from trainers.exchange.node_links import NodeLinks
from trainers.methods import registry
from trainers.methods.replica_config import ReplicaConfig
from trainers.snapshot import Stateful


class Blocks(Protocol):
    """Says what of a model a step trains; all ranks call the same, and draw alike."""

    def use(self, share: float | None) -> None:
        """Train this share of the blocks from the next step on; None: the configuration's."""

    def draw(self, step: int) -> Mapping[Parameter, float]:
        """Prepare for step number `step` (from 0), before its forward; returns by what to multiply rates."""

    def gradient_scale(self) -> Tensor:
        """Return the root mean square of the gradient's entries after the exchange, a scalar."""

    def exchange(self, gradients: Gradients, node_links: NodeLinks) -> Exchange:
        """Return what gradients go through in every step; `gradients` are added up within nodes already."""

    def parts(self) -> dict[str, Stateful]:
        """Return the state, by part; it is equal on all ranks."""


def build(config: ReplicaConfig, model: nn.Module, buffer: GradientBuffer, *, epoch_steps: int | None = None) -> Blocks:
    """Return the kind that `config` describes, for what is trained of `model`, whose gradients are in `buffer`.

    An epoch of the data has `epoch_steps`, if it ends.
    """
    blocks: Blocks = registry.get("blocks", config.blocks.kind).load()(config, model, buffer, epoch_steps=epoch_steps)
    return blocks
