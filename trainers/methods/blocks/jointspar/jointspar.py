"""JointSpar: a step computes, sends and applies the gradients of a few blocks alone (Liu and Mozafari, ICML 2022).

A drawn block's rate is divided by its chance, so the expected update is that of all blocks. Chances and draws are the
same on all ranks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Parameter

from trainers.exchange.buffer import LEAD, GradientBuffer
from trainers.exchange.exchange import Exchange
from trainers.exchange.gradients import Gradients
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.step_result import Exchanged
from trainers.methods.blocks.jointspar import chances
from trainers.methods.blocks.jointspar.spec import JointSparConfig
from trainers.methods.build import between_nodes
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.snapshot import Stateful, Stateless
from trainers.spec.exchange import ExchangeBase
from trainers.spec.ranges import first
from trainers.traffic.buckets import Bucket, Layer
from trainers.traffic.division import divide

#: Keeps what is drawn here apart from other draws of the same seed.
_STREAM = 11


class JointSpar:
    """Draws blocks, and learns from their gradients which of them to draw more often.

    `blocks` are indices of the buffer's parameters; each parameter is in one of them. Mutable: chances, the norms that
    were seen, and this step's draw.
    """

    def __init__(
        self,
        config: JointSparConfig,
        buffer: GradientBuffer,
        blocks: Sequence[Sequence[int]],
        *,
        exchange: ExchangeConfig,
        seed: int,
    ) -> None:
        self.buffer = buffer
        self._config, self._blocks, self._exchange, self._seed = config, blocks, exchange, seed
        self._share = first(config.share)
        self._chances = torch.full((len(blocks),), self._share, dtype=torch.float64)  # on the host
        self._latest = torch.zeros(len(blocks), dtype=torch.float64)  # norms when a block was last drawn
        self._largest = 0.0
        #: The block of each layer that this step draws.
        self.drawn: dict[Layer, int] = {}

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    def use(self, share: float | None) -> None:
        """Draw this share of the blocks from the next step on; None: the configuration's."""
        wanted = first(self._config.share) if share is None else share
        if wanted != self._share:
            self._share = wanted
            self._set(np.log(self._chances.numpy()))

    def draw(self, step: int) -> Mapping[Parameter, float]:
        """Have forward and backward of step number `step` train some blocks alone; returns factors of their rates."""
        now = self._chances.numpy()
        is_drawn, factors = chances.drawn(now, (self._seed, _STREAM, step)), 1.0 / chances.inclusion(now)
        members = {index: block for block, members in enumerate(self._blocks) if is_drawn[block] for index in members}
        layers, parameters = self.buffer.layers, self.buffer.parameters
        self.drawn = {layers[index]: block for index, block in members.items()}
        self.buffer.restrict(self.drawn)
        return {parameters[index]: float(factors[block]) for index, block in members.items()}

    def learn(self, norms: Sequence[float]) -> None:
        """Adapt the chances to the norms of the blocks' gradients in this step, which are 0 of those not drawn."""
        for block in set(self.drawn.values()):
            self._latest[block] = norms[block]
        self._largest = max(self._largest, *norms)
        self._set(
            chances.adapted(
                self._chances.numpy(), np.array(norms), largest=self._largest, step_size=self._config.adaptation
            )
        )

    def _set(self, log_weights: chances.Array) -> None:
        total, least = self._share * self.num_blocks, self._config.min_chance
        self._chances.copy_(torch.from_numpy(chances.projected(log_weights, total, least=least)))

    def gradient_scale(self) -> Tensor:
        """Return the root mean square of all entries, each block's as it was last seen: the mean of the ranks' own."""
        norm: Tensor = torch.linalg.vector_norm(self._latest)
        return norm / math.sqrt(self.buffer.num_elements)

    def exchange(self, gradients: Gradients, node_links: NodeLinks) -> Exchange:
        """Return the exchange of what is drawn: of the buffer's gradients, which are added up when they are packed."""
        return DrawnExchange(self._exchange, self, node_links)

    def parts(self) -> dict[str, Stateful]:
        """Return the state, which is equal on all ranks."""
        return {"blocks": self}

    def tensors(self) -> dict[str, Tensor]:
        return {"chances": self._chances, "latest": self._latest}

    def scalars(self) -> dict[str, Any]:
        return {"share": self._share, "largest": self._largest}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._share, self._largest = scalars["share"], scalars["largest"]


class DrawnExchange(Stateless):
    """Averages the drawn blocks' gradients, and the norms of each rank's own, densely; others are not sent."""

    threshold = None

    def __init__(self, config: ExchangeConfig, blocks: JointSpar, node_links: NodeLinks) -> None:
        self._config, self._blocks, self._node_links = config, blocks, node_links
        self._words = torch.zeros(
            LEAD + blocks.num_blocks + blocks.buffer.num_elements, device=blocks.buffer.gradient.device
        )

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        blocks = self._blocks
        packed = Packed(blocks.buffer, blocks.drawn, self._words, num_blocks=blocks.num_blocks, config=self._config)
        outcome = between_nodes(self._config, packed, self._node_links).step(loss, level, learning_rate)
        if outcome.diverged:
            return outcome
        packed.give_back()
        blocks.learn(packed.norms.tolist())
        num_drawn = packed.num_elements - len(packed.norms)
        return replace(outcome, density=num_drawn / blocks.buffer.num_elements)


class Packed(GradientBuffer):
    """A copy of some layers of `source`, behind the norms `(D,)` of each block's gradient: 0 of those without a layer.

    It is filled bucket by bucket, by who waits for them, and `give_back` copies what became of it into `source`.
    """

    def __init__(
        self,
        source: GradientBuffer,
        block_of: Mapping[Layer, int],
        words: Tensor,
        *,
        num_blocks: int,
        config: ExchangeBase,
    ) -> None:
        self._source, self._block_of = source, block_of
        drawn = sorted(block_of, key=lambda layer: layer.start)
        shapes = [(num_blocks,), *(layer.shape for layer in drawn)]
        super().__init__(shapes, config, words.device, words=words)
        self._norms_at, *copies = self.layers
        self._origins = dict(zip(copies, drawn, strict=True))
        self.norms = self.of(self._norms_at).zero_()
        self.expect()

    def wait(self, bucket: Bucket) -> Tensor:
        if not self._filled[bucket.index].is_set():
            for layer in reversed(bucket.layers):  # the norms, which are before all others, come last
                self._take(layer)
            self._fill(bucket.index)
        return super().wait(bucket)

    def _take(self, layer: Layer) -> None:
        if layer == self._norms_at:
            self.norms.sqrt_()
            return
        origin = self._origins[layer]
        gradient = self._source.wait_for(origin)
        self.of(layer).copy_(gradient)
        self.norms[self._block_of[origin]] += torch.linalg.vector_norm(gradient) ** 2

    def give_back(self) -> None:
        """Overwrite the gradients of `source`."""
        for layer, origin in self._origins.items():
            self._source.of(origin).copy_(self.of(layer))


def build(config: ReplicaConfig, model: nn.Module, buffer: GradientBuffer, *, epoch_steps: int | None) -> JointSpar:
    """Return what draws among the blocks of `model`."""
    assert isinstance(config.blocks, JointSparConfig) and isinstance(config.exchange, NoneConfig)  # others conflict
    places = {parameter: index for index, parameter in enumerate(buffer.parameters)}
    trained = [parameter for parameter in model.parameters() if parameter in places]
    blocks = [[places[trained[index]] for index in block] for block in divide([each.shape for each in trained])]
    return JointSpar(config.blocks, buffer, blocks, exchange=config.exchange, seed=config.seed)
