"""One flat float32 buffer behind all gradients, with the control words of a dense exchange at its end."""

import math

import torch
from torch import Tensor
from torch.nn import Parameter

from trainers import cost
from trainers.workload import WorkloadError


class GradientBuffer:
    """Makes every parameter's `.grad` a view into one vector. Mutable: backward adds into it.

    `words` `(d + CONTROL_WORDS,)` is what a dense exchange sends; `gradient` `(d,)` and `control`
    `(CONTROL_WORDS,)` are its two parts. Parameters must be float32 and on one device.
    """

    def __init__(self, parameters: list[Parameter]) -> None:
        self.num_elements = sum(parameter.numel() for parameter in parameters)
        self.words = torch.zeros(self.num_elements + cost.CONTROL_WORDS, device=parameters[0].device)
        self.gradient, self.control = self.words[: self.num_elements], self.words[self.num_elements :]
        self._parameters, self._places = parameters, [0] * len(parameters)
        offset = 0
        for index, parameter in enumerate(parameters):
            parameter.grad = self.words[offset : offset + parameter.numel()].view_as(parameter)
            self._places[index] = parameter.grad.data_ptr()
            offset += parameter.numel()

    def check_attached(self) -> None:
        """Raise WorkloadError unless backward still adds into this buffer."""
        for parameter, place in zip(self._parameters, self._places, strict=True):
            if parameter.grad is None or parameter.grad.data_ptr() != place:
                raise WorkloadError(
                    "the model or the loss replaced a parameter's `.grad`; leave gradients to the trainer"
                )

    def zero(self) -> None:
        """Clear the gradients, in place."""
        self.words.zero_()

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Whether no entry is NaN or infinite; a sum beyond float32's range counts as infinite."""
        return bool(torch.isfinite(self.gradient.sum()))

    @torch.no_grad()
    def root_mean_square(self) -> Tensor:
        """Return the root mean square of all entries as a scalar on the buffer's device; infinite if it overflows."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        return norm / math.sqrt(self.num_elements)

    @torch.no_grad()
    def clip(self, max_norm: float) -> None:
        """Scale the gradient so that its 2-norm is at most `max_norm`."""
        norm = torch.linalg.vector_norm(self.gradient)
        self.gradient.mul_(max_norm / norm.clamp(min=max_norm))
