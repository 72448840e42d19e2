"""Check that a loop keeps to its tuner: it trains at the tuner's rates, and reports once after each step."""

import math

import torch
from torch import Tensor

from trainers.own_loop.together import each_of

#: So many gradients may go unused at least: a script may leave out a step whose gradient is too long.
MOST_UNUSED = 3
_REMEDY = "call `report` once, after each `optimizer.step()`: "


class StepCheck:
    """Mutable: the rates that steps must have, and how often the loop has stepped and reported."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._marks: list[tuple[int, float]] = []  # of the rates, by group
        self._num_steps = 0  # since the last report
        self._num_used = self._num_unused = 0  # reports after a step, and with a gradient that no step has used
        self._waiting: float | None = None  # direction of a gradient that was reported before any step
        self._hooks = [each.register_step_pre_hook(self._before) for each in each_of(optimizer)]
        # A state brings the rates of when it was saved, until the next report.
        self._hooks += [each.register_load_state_dict_post_hook(self.keep_rates) for each in each_of(optimizer)]

    def end(self) -> None:
        """Remove the hooks from the optimizer: the loop is left to itself."""
        for hook in self._hooks:
            hook.remove()

    def keep_rates(self, *_: object) -> None:
        """Hold the next steps to the rates that the optimizer has now."""
        self._marks = [_mark(group["lr"]) for group in self._optimizer.param_groups]

    def resume(self, num_used: int) -> None:
        """Go on with a loop that has reported `num_used` steps."""
        self._num_used = num_used

    def check_report(self) -> None:
        """Raise RuntimeError if this report comes before a step, or for a part of a step."""
        if self._num_steps:
            self._num_steps, self._num_used = 0, self._num_used + 1
            return
        waiting = direction(self._optimizer)
        self._num_unused += waiting is not None
        self._waiting = None if self._num_used else waiting
        if is_out_of_step(self._num_used, self._num_unused):
            raise RuntimeError(
                f"{_REMEDY}there was no step since the last report, and a gradient waits for one; a loop that "
                "accumulates gradients reports after the last micro-batch of a step"
            )

    def _before(self, *_: object) -> None:
        """Raise RuntimeError if the gradient was reported before, or a group has another rate than was set."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and is_same_direction(waiting, direction(self._optimizer)):
            raise RuntimeError(f"{_REMEDY}the gradient of this step was reported before it")
        self._num_steps += 1
        for number, (group, mark) in enumerate(zip(self._optimizer.param_groups, self._marks, strict=False)):
            if _mark(group["lr"]) != mark:
                raise RuntimeError(
                    f"`optimizer`: group {number} must have the rate that the tuner has set, and it has "
                    f"{float(group['lr']):g} now: leave out your learning-rate scheduler, whose `step()` overwrites "
                    "the rates that are searched; `report` sets the rate of every step"
                )


def _mark(rate: Tensor | float) -> tuple[int, float]:
    """Return what differs once somebody has set `rate`. On a device it is how often: nobody waits for its value."""
    if not isinstance(rate, Tensor):
        return 0, rate
    return id(rate), rate.item() if rate.device.type == "cpu" else rate._version


def direction(optimizer: torch.optim.Optimizer) -> float | None:
    """Return the sum of a gradient's entries over its norm: clipping the norm, or a loss scale, does not change it.

    None: there is no gradient to step by. A GradScaler leaves one that is not finite.
    """
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    gradients = [each.grad for each in parameters if each.grad is not None and each.grad.layout is torch.strided]
    norm = float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
    return sum(float(each.sum()) for each in gradients) / norm if 0 < norm < float("inf") else None


def is_same_direction(first: float, second: float | None) -> bool:
    """Return whether two gradients may be the same, but for a factor."""
    return second is not None and math.isclose(first, second, rel_tol=1e-5, abs_tol=1e-6)


def is_out_of_step(num_used: int, num_unused: int) -> bool:
    """Return whether a loop reports at other times than after a step, by its reports after one and without one."""
    return num_unused > max(MOST_UNUSED, num_used // 2)
