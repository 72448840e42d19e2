"""Two low-rank factors of a layer, P for its long side and Q for its short one, and how ranks average Q."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.step_result import has_length, loss_if
from trainers.traffic.buckets import Layer
from trainers.traffic.sizes import WORD_BYTES, as_matrix


def starting_factor(side: int, rank: int, *, seed: int) -> Tensor:
    """Return the first Q of a layer, as its transpose `(rank, side)`: normal, with equal bits on all ranks.

    From its own generator on the CPU: the global one is the model's. Layers need different seeds.
    """
    return torch.randn(rank, side, generator=torch.Generator().manual_seed(seed))


@dataclass
class Factorised:
    """A layer that is factorised in this step."""

    layer: Layer
    p: Tensor  # (r, l), of the long side, transposed
    q: Tensor  # (r, s), of the short side, transposed

    def view(self, vector: Tensor) -> Tensor:
        """Return the layer's part of a vector `(d,)` as a matrix `(n, m)`."""
        return vector[self.layer.start : self.layer.stop].view(as_matrix(self.layer.shape))


def average_short_factors(connection: Connection, layers: Sequence[Factorised], loss: Tensor) -> Tensor:
    """Average the Q of all `layers`; returns the sum of the losses `(1,)`, NaN if a Q is not finite.

    P is orthonormal, so no entry of a product is longer than Q.
    """
    words = torch.cat([loss.reshape(1), *(each.q.reshape(-1) for each in layers)])
    connection.all_reduce_sum(words, {"control": WORD_BYTES, "gradient": words[1:].nbytes})
    means = words[1:] / connection.num_workers
    for each, mean in zip(layers, torch.split(means, [each.q.numel() for each in layers]), strict=True):
        each.q = mean.view_as(each.q)
    return loss_if(has_length(means), words[:1])
