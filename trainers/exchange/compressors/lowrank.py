"""PowerSGD's factors: where they start (Vogels et al., NeurIPS 2019). The passes are in `kernels.lowrank`."""

import torch
from torch import Tensor


def starting_factor(side: int, rank: int, *, seed: int) -> Tensor:
    """Return the first Q of a layer, as its transpose `(rank, side)`: normal, with equal bits on all ranks.

    From its own generator on the CPU: the global one is the model's. Layers need different seeds.
    """
    return torch.randn(rank, side, generator=torch.Generator().manual_seed(seed))
