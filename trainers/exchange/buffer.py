"""A flat float32 buffer for all gradients, cut into buckets. It tracks which buckets backward has filled."""

import math
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Self

import torch
from torch import Tensor
from torch.nn import Parameter

from trainers.spec.exchange import ExchangeBase
from trainers.traffic import buckets
from trainers.traffic.buckets import Bucket, Layer
from trainers.workload import WorkloadError

#: Entries before the gradient, for numbers that are sent with it. They take 64 bytes, so the gradient stays aligned.
LEAD = 16


class BackwardFailed(Exception):
    """Backward raised: the rest of this step's gradient will never come."""


class GradientBuffer:
    """The gradients of all parameters as one vector `gradient` `(d,)`, float32 on one device.

    The training thread calls `expect`, `finish` or `abort`; another thread may `wait`. `words` is memory to use, of at
    least `LEAD` + d entries.
    """

    def __init__(
        self,
        shapes: Sequence[buckets.Shape],
        config: ExchangeBase,
        device: torch.device,
        *,
        words: Tensor | None = None,
    ) -> None:
        self.buckets = buckets.split(shapes, config)
        self.layers = sorted(
            (layer for bucket in self.buckets for layer in bucket.layers), key=lambda layer: layer.start
        )
        self.num_elements = self.layers[-1].stop
        if words is None:
            words = torch.zeros(LEAD + self.num_elements, device=device)
        self._words = words[: LEAD + self.num_elements]
        self.gradient = self._words[LEAD:]
        self._owner = {layer.start: bucket.index for bucket in self.buckets for layer in bucket.layers}
        #: The parameters, in the order of the layers, if backward fills the buffer.
        self.parameters: list[Parameter] = []
        self._views: list[Tensor] = []  # of each parameter's range
        self._filling: Collection[Layer] = self.layers
        self._filled = [threading.Event() for _ in self.buckets]
        self._events: dict[int, torch.cuda.Event] = {}  # on a GPU, of the work that fills each bucket
        self._missing: dict[int, set[int]] = {}  # starts of the layers that backward has yet to fill, by bucket
        self._expects = self._has_failed = False
        self.step = 0  # the number of steps begun
        self.waited_s = 0.0  # that `wait` has waited for backward since the beginning

    @classmethod
    def behind(cls, parameters: Sequence[Parameter], config: ExchangeBase) -> Self:
        """Return a buffer whose views become the `.grad` of `parameters` when backward has ended.

        Backward fills its own tensors, and each is copied when it is complete. That is cheaper than to accumulate in
        the buffer, which would have to be cleared first and read again.
        """
        buffer = cls([tuple(each.shape) for each in parameters], config, parameters[0].device)
        buffer.parameters = list(parameters)
        buffer._views = [buffer.of(layer).view(layer.shape) for layer in buffer.layers]
        for index, parameter in enumerate(parameters):
            parameter.grad = buffer._views[index]
            if config.overlap and parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    partial(_arrived, weakref.ref(buffer), index)
                )
        return buffer

    def restrict(self, layers: Collection[Layer]) -> None:
        """Let backward fill only `layers` from now on. Other parameters get no gradient, and zeros in the vector."""
        self._filling = layers
        for parameter, layer, view in zip(self.parameters, self.layers, self._views, strict=True):
            parameter.requires_grad_(layer in layers)
            parameter.grad = view if layer in layers else None

    def of(self, layer: Layer) -> Tensor:
        """Return a layer's gradient, a view."""
        return self.gradient[layer.start : layer.stop]

    def led_by(self, numbers: Tensor, bucket: Bucket) -> Tensor:
        """Return a view of at most `LEAD` `numbers` `(n,)` followed by the gradient of `bucket`, which starts at 0."""
        assert bucket.start == 0 and len(numbers) <= LEAD
        words = self._words[LEAD - len(numbers) : LEAD + bucket.num_elements]
        words[: len(numbers)] = numbers
        return words

    @torch.no_grad()
    def _gather(self, index: int) -> None:
        """Copy a parameter's gradient into the buffer if it is not there yet; without a gradient, write zeros."""
        parameter, view = self.parameters[index], self._views[index]
        gradient, parameter.grad = parameter.grad, view if parameter.requires_grad else None
        if gradient is None:
            view.zero_()
        elif gradient.is_sparse:
            view.zero_().add_(gradient)
        elif gradient is not view:
            view.copy_(gradient)

    def arrive(self, layer: Layer) -> None:
        """Note that a layer's gradient is complete."""
        index = self._owner[layer.start]
        if layer.start not in self._missing[index]:
            raise WorkloadError(
                "backward adds to a gradient twice (reentrant checkpointing does), after it was taken for complete: "
                "give `exchange: {overlap: false}`"
            )
        self._missing[index].remove(layer.start)
        if not self._missing[index]:
            self._fill(index)

    def _fill(self, index: int) -> None:
        if self.gradient.is_cuda:
            self._events[index] = torch.cuda.current_stream(self.gradient.device).record_event()
        self._filled[index].set()

    def expect(self) -> None:
        """Begin a backward: no bucket counts as filled until it fills it."""
        self._missing = {bucket.index: set() for bucket in self.buckets}
        for layer in self._filling:
            self._missing[self._owner[layer.start]].add(layer.start)
        for filled in self._filled:
            filled.clear()
        self.step += 1
        self._expects, self._has_failed = True, False
        for index, parameter in enumerate(self.parameters):
            if not parameter.requires_grad:
                self._gather(index)
        for bucket in self.buckets:
            if not self._missing[bucket.index]:
                self._fill(bucket.index)

    def finish(self) -> None:
        """End a backward: layers that it did not reach get a gradient of zero."""
        self._expects = False
        for index, parameter in enumerate(self.parameters):
            if parameter.requires_grad:
                self._gather(index)
        for bucket in self.buckets:
            if not self._filled[bucket.index].is_set():
                self._fill(bucket.index)

    def abort(self) -> None:
        """End a backward that failed: `wait` raises BackwardFailed."""
        self._has_failed = True
        self.finish()

    def wait(self, bucket: Bucket) -> Tensor:
        """Return the bucket's gradient, a view, once backward has filled it; raises BackwardFailed."""
        started = time.monotonic()
        self._filled[bucket.index].wait()
        self.waited_s += time.monotonic() - started
        if self._has_failed:
            raise BackwardFailed
        if self.gradient.is_cuda:
            torch.cuda.current_stream(self.gradient.device).wait_event(self._events[bucket.index])
        return self.gradient[bucket.span]

    def wait_for(self, layer: Layer) -> Tensor:
        """Wait for a layer's bucket, and return the layer's gradient, a view. Raises BackwardFailed."""
        self.wait(self.buckets[self._owner[layer.start]])
        return self.of(layer)

    def wait_for_all(self) -> Tensor:
        """Wait for all buckets, and return the whole gradient. Raises BackwardFailed."""
        for bucket in self.buckets:
            self.wait(bucket)
        return self.gradient

    def clear(self) -> None:
        """Forget all gradients: the coming backward starts anew."""
        for parameter in self.parameters:
            parameter.grad = None

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Raise WorkloadError if the body replaces a parameter's `.grad`, which only backward may do."""
        before = [parameter.grad for parameter in self.parameters]
        yield
        if any(parameter.grad is not gradient for parameter, gradient in zip(self.parameters, before, strict=True)):
            raise WorkloadError("the model or the loss replaced a parameter's `.grad`; leave gradients to the trainer")

    @torch.no_grad()
    def root_mean_square(self) -> Tensor:
        """Return the root mean square of all entries as a scalar on the buffer's device; infinite if it overflows."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        return norm / math.sqrt(self.num_elements)

    @torch.no_grad()
    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradient so that its 2-norm is at most `max_norm`. Returns the factor, at most 1."""
        factor: Tensor = max_norm / torch.linalg.vector_norm(self.gradient).clamp(min=max_norm)
        if factor.is_cuda or not factor >= 1:  # a GPU would have to be waited for; NaN is passed on
            self.gradient.mul_(factor)
        return factor


def _arrived(buffer: "weakref.ref[GradientBuffer]", index: int, _: Tensor) -> None:
    """Take a parameter's gradient, which backward has completed.

    A hook that held the buffer, which holds the parameters, would keep all of them for ever: torch hides from Python's
    garbage collector what a hook refers to.
    """
    live = buffer()
    if live is not None and live._expects:
        live._gather(index)
        live.arrive(live.layers[index])
