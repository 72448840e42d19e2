"""DropIT: layers keep the largest entries of their inputs for backward, and drop the rest (Chen et al., ICLR 2023).

Forward, and the gradients of inputs and biases, are exact. The gradient of a weight is computed from what was kept,
so it is not. What is not trained, and evaluation, is left as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional

from trainers.exchange.kernels.quantile import reached_by, strided
from trainers.methods.activations.dropit.spec import DropItConfig
from trainers.methods.activations.spec import ActivationsConfig
from trainers.spec.ranges import first

#: Entries whose place fits 16 bits.
BLOCK = 65_536
INDEX_BYTES = 2
COUNT_BYTES = 4
#: The smallest normal float32: zeros, as ReLU leaves many, are never kept.
LEAST = torch.finfo(torch.float32).tiny


class Activations:
    """The inputs that layers keep for backward. Mutable: `gamma`, the share that is dropped, in [0, 1)."""

    def __init__(self, config: ActivationsConfig, model: nn.Module) -> None:
        self._given, self._select = 0.0, SELECTIONS["exact"]
        if isinstance(config, DropItConfig):
            self._given, self._select = first(config.gamma), SELECTIONS[config.selection]
            _attach(model, self)
        self.gamma = self._given

    def use(self, gamma: float | None) -> None:
        """Drop the share `gamma` from the next forward on; None: the configuration's."""
        self.gamma = self._given if gamma is None else gamma

    def keep(self, inputs: Tensor) -> "KeptEntries":
        """Return what is kept of `inputs`, of any shape."""
        flat = inputs.detach().reshape(-1)
        if not len(flat):  # as behind a routing that has chosen no row
            return KeptEntries(flat)
        indices = self._select(flat, self.gamma)
        kept, count = flat[indices], len(indices)
        num_blocks = -(-len(flat) // BLOCK)
        if (kept.element_size() + INDEX_BYTES) * count + COUNT_BYTES * num_blocks >= inputs.nbytes:
            return KeptEntries(torch.zeros_like(flat).index_copy_(0, indices, kept))
        counts = torch.bincount(indices // BLOCK, minlength=num_blocks).int()
        return KeptEntries(kept, (indices % BLOCK).to(torch.uint16), counts)


class KeptEntries(NamedTuple):
    """Entries of a flat tensor `(d,)`: in ascending order, with their places in blocks of 65,536; or all of them."""

    values: Tensor  # (k,), or (d,) where places would take more room than the zeros
    places: Tensor | None = None  # (k,) uint16
    counts: Tensor | None = None  # (num_blocks,) int32: entries in each block

    def restored(self, shape: Sequence[int]) -> Tensor:
        """Return the tensor of `shape`, with zeros where entries were dropped."""
        if self.places is None or self.counts is None:
            return self.values.view(shape)
        starts = torch.arange(len(self.counts), device=self.values.device) * BLOCK
        indices = starts.repeat_interleave(self.counts) + self.places.long()
        flat = self.values.new_zeros(int(torch.Size(shape).numel()))
        return flat.index_copy_(0, indices, self.values).view(shape)


# -- which entries are kept ------------------------------------------------------------------------------


def _largest(flat: Tensor, gamma: float) -> Tensor:
    """Return the places, ascending, of the entries of `flat` `(d,)` that are left when the share `gamma` is dropped."""
    return flat.abs().topk(_num_kept(flat, gamma)).indices.sort().values


def _above_sampled(flat: Tensor, gamma: float) -> Tensor:
    """Return about as many places: of the entries that reach a threshold, which a sample of them finds.

    Of those that equal it, the first only, as far as there is room: whole tensors may be of a few values.
    """
    threshold = max(float(reached_by(strided(flat).float(), 1 - gamma)), LEAST)
    lengths = flat.abs()
    places = (lengths >= threshold).nonzero().flatten()
    num_over = len(places) - _num_kept(flat, gamma)
    if num_over <= 0:
        return places
    tied = (lengths[places] == threshold).nonzero().flatten()
    stays = torch.ones_like(places, dtype=torch.bool)
    stays[tied[max(0, len(tied) - num_over) :]] = False
    return places[stays]


def _num_kept(flat: Tensor, gamma: float) -> int:
    return max(1, round(len(flat) * (1 - gamma)))


SELECTIONS: dict[str, Callable[[Tensor, float], Tensor]] = {"exact": _largest, "sampled": _above_sampled}


# -- layers ----------------------------------------------------------------------------------------------


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, activations: Activations) -> Tensor:
        _save(ctx, inputs, weight, activations)
        return functional.linear(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        weight, inputs = _saved(ctx)
        for_inputs = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
        rows = gradient.reshape(-1, gradient.shape[-1])
        for_weight = inputs.reshape(-1, inputs.shape[-1]).t().mm(rows).t()  # as torch's own does, bit for bit
        for_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return for_inputs, for_weight, for_bias, None


class _Convolution(Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, options: "_Options", activations: Activations
    ) -> Tensor:
        _save(ctx, inputs, weight, activations)
        ctx.options, ctx.bias_shape = options, None if bias is None else list(bias.shape)
        return torch.convolution(inputs, weight, bias, *options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        weight, inputs = _saved(ctx)
        wanted = [ctx.needs_input_grad[0], True, ctx.needs_input_grad[2]]
        gradients = torch.ops.aten.convolution_backward(gradient, inputs, weight, ctx.bias_shape, *ctx.options, wanted)
        return (*gradients, None, None)


class _Options(NamedTuple):
    """Of a convolution, as torch's operators take them."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


def _save(ctx: Any, inputs: Tensor, weight: Tensor, activations: Activations) -> None:
    ctx.save_for_backward(weight, *(part for part in activations.keep(inputs) if part is not None))
    ctx.shape = inputs.shape


def _saved(ctx: Any) -> tuple[Tensor, Tensor]:
    """Return the weight, and the input with zeros where entries were dropped."""
    weight, *parts = ctx.saved_tensors
    return weight, KeptEntries(*parts).restored(ctx.shape)


def _attach(model: nn.Module, activations: Activations) -> None:
    """Have the linear and convolutional layers of `model` keep what `activations` says while they train."""
    for module in model.modules():
        forward = FORWARDS.get(type(module))
        if forward is not None and getattr(module, "padding", None) != "same":
            # Torch lets a layer be called with `input=`, so what takes the place of its forward has that name too.
            module.forward = partial(forward, module, activations, module.forward)


def _linear(layer: nn.Linear, activations: Activations, plain: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    if not _drops(layer, activations):
        return plain(input)
    return _applied(_Linear, *_cast(input, layer.weight, layer.bias), activations)


def _convolution(
    layer: nn.Conv1d | nn.Conv2d, activations: Activations, plain: Callable[[Tensor], Tensor], input: Tensor
) -> Tensor:
    num_axes = len(layer.kernel_size)
    if not _drops(layer, activations) or input.ndim != num_axes + 2:  # without a batch it is nothing that trains
        return plain(input)
    padding = [0] * num_axes if layer.padding == "valid" else [*cast(tuple[int, ...], layer.padding)]
    if layer.padding_mode != "zeros":
        input = functional.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = [0] * num_axes
    options = _Options([*layer.stride], padding, [*layer.dilation], False, [0] * num_axes, layer.groups)
    return _applied(_Convolution, *_cast(input, layer.weight, layer.bias), options, activations)


def _applied(function: type[Function], *arguments: object) -> Tensor:
    return cast(Tensor, function.apply(*arguments))  # type: ignore[no-untyped-call]


def _drops(layer: nn.Module, activations: Activations) -> bool:
    weight = cast(Tensor, layer.weight)
    return activations.gamma > 0 and layer.training and weight.requires_grad and torch.is_grad_enabled()


def _cast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return `tensors` as autocast would have them, which does not look into functions of one's own."""
    place = next(tensor.device.type for tensor in tensors if tensor is not None)
    if not torch.is_autocast_enabled(place):
        return tensors
    dtype = torch.get_autocast_dtype(place)
    return tuple(tensor if tensor is None else tensor.to(dtype) for tensor in tensors)


FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
}


# -- what is kept, measured ------------------------------------------------------------------------------


class SavedTensors:
    """Counts what autograd keeps for backward, without the model's parameters and buffers. Mutable: `num_bytes`.

    A sparse tensor, which has no storage of its own, is not counted. `is_refused`: a forward cannot be watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.num_bytes, self.is_refused = 0, False

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the storages that a forward inside keeps, each once."""
        own = {tensor.untyped_storage().data_ptr() for tensor in (*self._model.parameters(), *self._model.buffers())}
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield
        self.num_bytes = sum(size for place, size in sizes.items() if place not in own)
