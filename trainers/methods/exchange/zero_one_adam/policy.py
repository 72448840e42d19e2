"""The parameters of 0/1 Adam, whose ranks step by themselves between exchanges: all go on from one place after each."""

from typing import Any

import torch
from torch import Tensor

from trainers.exchange.step_result import Exchanged
from trainers.methods.exchange.zero_one_adam.spec import ZeroOneAdamConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.local import Local


class ZeroOneAdam(Local):
    """Keeps the anchor, where the ranks went on from last, and how far a direction of length 1 has led since.

    In an exchange all ranks go from the anchor by what has arrived, as if each step since had been along that, and what
    a rank did by itself is undone: it was sent, or is in its memory. So the ranks hold equal bits again.
    """

    def __init__(self, config: ZeroOneAdamConfig, parts: PolicyParts) -> None:
        exchange = parts.exchange()
        super().__init__(config.max_interval, parts.iterate, gradients=exchange, exchange=exchange)
        self._intervals, self._optimizer, self._buffer = config, parts.optimizer, parts.buffer
        self._anchor = self._iterate.read()
        self._begin()

    def _begin(self) -> None:
        # of each tensor of parameters, since the last exchange: the sum of its rates, less what decay takes from the
        # steps so far, and what it leaves of the anchor
        self._reach = [0.0] * len(self._iterate.shapes)
        self._left_of_it = [1.0] * len(self._iterate.shapes)

    def advance(self, outcome: Exchanged, update: Update) -> Exchanged:
        for index, (rate, decay) in enumerate(self._optimizer.rates()):
            self._reach[index] = self._reach[index] * (1 - rate * decay) + rate
            self._left_of_it[index] *= 1 - rate * decay
        return super().advance(outcome, update)

    def _steps_left(self, update: Update) -> int:
        return self._intervals.steps_to_exchange(update.number - 1)

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        if self._since > 1:
            self._leave_anchor()
        if self._intervals.steps_to_exchange(update.number) > 1:
            self._anchor.copy_(self._iterate.read())
        self._begin()
        return outcome

    @torch.no_grad()
    def _leave_anchor(self) -> None:
        """Go from the anchor by the direction that the last step's exchange left in the buffer."""
        self._iterate.write(self._anchor)
        directions = [self._buffer.of(layer) for layer in self._buffer.layers]
        for tensor, direction, reach, left in zip(
            self._optimizer.parameters.values(), directions, self._reach, self._left_of_it, strict=True
        ):
            tensor.mul_(left).add_(direction.view_as(tensor), alpha=-reach)

    def tensors(self) -> dict[str, Tensor]:
        return {"anchor": self._anchor}

    def scalars(self) -> dict[str, Any]:
        return super().scalars() | {"reach": list(self._reach), "left": list(self._left_of_it)}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        super().load_scalars(scalars)
        self._reach, self._left_of_it = list(scalars["reach"]), list(scalars["left"])
