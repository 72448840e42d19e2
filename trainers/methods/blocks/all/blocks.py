"""The trivial choice of blocks."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import Parameter

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.exchange import Exchange
from trainers.exchange.gradients import Gradients
from trainers.exchange.node_links import NodeLinks
from trainers.methods.build import of_pooled
from trainers.methods.exchange.auto.spec import AutoConfig, JobExchange
from trainers.methods.levels.steered import with_epoch
from trainers.methods.replica_config import ReplicaConfig
from trainers.snapshot import Stateful


class AllBlocks:
    """Every step trains all of the model."""

    def __init__(self, exchange: JobExchange, buffer: GradientBuffer, *, seed: int) -> None:
        self._exchange, self._buffer, self._seed = exchange, buffer, seed

    def use(self, share: float | None) -> None:
        return

    def draw(self, step: int) -> Mapping[Parameter, float]:
        return {}

    def gradient_scale(self) -> Tensor:
        return self._buffer.root_mean_square()

    def exchange(self, gradients: Gradients, node_links: NodeLinks) -> Exchange:
        assert not isinstance(self._exchange, AutoConfig)  # whose policy builds what competes
        return of_pooled(self._exchange, gradients, node_links, seed=self._seed)

    def parts(self) -> dict[str, Stateful]:
        return {}


def build(config: ReplicaConfig, model: nn.Module, buffer: GradientBuffer, *, epoch_steps: int | None) -> AllBlocks:
    """Return what trains all of `model`."""
    return AllBlocks(with_epoch(config.exchange, epoch_steps), buffer, seed=config.seed)
