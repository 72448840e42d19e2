"""The gradients of the drawn blocks, one behind the other, for an exchange that knows of nothing else."""

from collections.abc import Mapping

import torch
from torch import Tensor

from trainers.exchange.buffer import GradientBuffer
from trainers.spec.exchange import ExchangeBase
from trainers.traffic.buckets import Bucket, Layer


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

    @property
    def num_drawn(self) -> int:
        """Entries of the gradient."""
        return self.num_elements - len(self.norms)

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
