"""BatchNorm's running statistics, where the iterate that is evaluated is not the one that is trained."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

#: Training batches per rank that the evaluated iterate's statistics are taken from.
NUM_BATCHES = 16


def tracking(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers whose running statistics follow the training; those in evaluation mode are frozen."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [layer for layer in layers if layer.training and layer.running_mean is not None]


def statistics(model: nn.Module, layers: Sequence[_BatchNorm]) -> dict[str, Tensor]:
    """Return the running means and variances of `layers` by their names in `model`."""
    wanted = {id(tensor) for layer in layers for tensor in (layer.running_mean, layer.running_var)}
    return {name: buffer for name, buffer in model.named_buffers() if id(buffer) in wanted}


@contextmanager
def counting_anew(layers: Sequence[_BatchNorm]) -> Iterator[None]:
    """Have the statistics of `layers` start again, as plain means over the batches that follow."""
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
