"""Build the blocks that a configuration describes: the protocol, and its trivial kind."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn
from torch.nn import Parameter

from trainers.exchange import two_level
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.exchange import Exchange
from trainers.exchange.node_links import NodeLinks
from trainers.methods.blocks.division import divide
from trainers.methods.blocks.jointspar.jointspar import JointSpar
from trainers.methods.blocks.spec import AllBlocksConfig, JointSparConfig
from trainers.methods.exchange.auto.spec import AutoConfig, JobExchange
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.levels.steered import with_epoch
from trainers.spec.replica import ReplicaConfig
from trainers.training.snapshot import Stateful


class Blocks(Protocol):
    """Says what of a model a step trains; all ranks call the same, and draw alike."""

    def use(self, share: float | None) -> None:
        """Train this share of the blocks from the next step on; None: the configuration's."""

    def draw(self, step: int) -> Mapping[Parameter, float]:
        """Prepare for step number `step` (from 0), before its forward; returns by what to multiply rates."""

    def gradient_scale(self) -> Tensor:
        """Return the root mean square of the gradient's entries after the exchange, a scalar."""

    def exchange(self, node_links: NodeLinks) -> Exchange:
        """Return what gradients go through in every step."""

    def parts(self) -> dict[str, Stateful]:
        """Return the state, by part; it is equal on all ranks."""


class AllBlocks:
    """Every step trains all of the model: the trivial kind."""

    def __init__(self, exchange: JobExchange, buffer: GradientBuffer, *, seed: int) -> None:
        self._exchange, self._buffer, self._seed = exchange, buffer, seed

    def use(self, share: float | None) -> None:
        return

    def draw(self, step: int) -> Mapping[Parameter, float]:
        return {}

    def gradient_scale(self) -> Tensor:
        return self._buffer.root_mean_square()

    def exchange(self, node_links: NodeLinks) -> Exchange:
        assert not isinstance(self._exchange, AutoConfig)  # whose policy builds what competes
        return two_level.build(self._exchange, self._buffer, node_links, seed=self._seed)

    def parts(self) -> dict[str, Stateful]:
        return {}


def build(config: ReplicaConfig, model: nn.Module, buffer: GradientBuffer, *, epoch_steps: int | None = None) -> Blocks:
    """Return the kind that `config` describes, for what is trained of `model`, whose gradients are in `buffer`.

    An epoch of the data has `epoch_steps`, if it ends.
    """
    match config.blocks:
        case AllBlocksConfig():
            return AllBlocks(with_epoch(config.exchange, epoch_steps), buffer, seed=config.seed)
        case JointSparConfig():
            assert isinstance(config.exchange, NoneConfig)  # the configuration refuses others
            blocks = _blocks_of(model, buffer)
            return JointSpar(config.blocks, buffer, blocks, exchange=config.exchange, seed=config.seed)


def _blocks_of(model: nn.Module, buffer: GradientBuffer) -> list[list[int]]:
    """Return the indices, in the buffer, of each block's parameters."""
    places = {parameter: index for index, parameter in enumerate(buffer.parameters)}
    trained = [parameter for parameter in model.parameters() if parameter in places]
    return [[places[trained[index]] for index in block] for block in divide([each.shape for each in trained])]
