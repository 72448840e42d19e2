"""The exchange of `exchange: {kind: auto}`: hands each step to the option in force."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.exchange import Exchange, Keeping
from trainers.exchange.gradients import Gradients
from trainers.exchange.step_result import Exchanged
from trainers.methods.exchange.auto.spec import Option
from trainers.snapshot import Kept, load_scalars, part_of, scalars_of, tensors_of


class AutoExchange:
    """Runs one of `exchanges`, which are given by kind. At a change, the old kind's residual joins the next gradient.

    So no change loses anything: an exchange with error feedback keeps what it does not send of that gradient, and a
    dense one sends all of it. A step that is not finite changes nothing.
    """

    def __init__(self, exchanges: Mapping[str, Exchange], buffer: Gradients) -> None:
        self._exchanges, self._buffer = exchanges, buffer
        self._option = Option("")  # none yet
        self._carried = torch.zeros_like(buffer.gradient)  # from the kind before to the next step
        self._carries = False

    def use(self, option: Option) -> None:
        """Exchange by `option` from the next step on."""
        before = self._exchanges.get(self._option.kind)
        if option.kind != self._option.kind and isinstance(before, Keeping):
            before.release(self._carried)
            self._carries = True
        self._option = option

    def release(self, values: Tensor) -> None:
        """Add the residual to `values` `(d,)`, and reset it to zero."""
        self.use(Option(""))
        values += self._carried
        self._carried.zero_()
        self._carries = False

    @property
    def threshold(self) -> float | None:
        running = self._exchanges.get(self._option.kind)
        return running.threshold if running else None

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Exchange the buffer's gradient as `Exchange` says; the level is the option's own."""
        if self._carries:
            self._buffer.wait_for_all().add_(self._carried)
        outcome = self._exchanges[self._option.kind].step(loss, self._option.level, learning_rate)
        if self._carries and not outcome.diverged:
            self._carried.zero_()
            self._carries = False
        return outcome

    def tensors(self) -> dict[str, Tensor]:
        return {"carried": self._carried} | tensors_of(self._exchanges)

    def scalars(self) -> dict[str, Any]:
        kinds = scalars_of(self._exchanges)
        return {"option": list(self._option), "carries": self._carries, "kinds": kinds}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._option, self._carries = Option(*scalars["option"]), scalars["carries"]
        load_scalars(self._exchanges, scalars["kinds"])

    def inherit(self, kept: Kept) -> None:
        self._option, self._carries = Option(*kept.scalars["option"]), kept.scalars["carries"]
        self._carried.add_(kept.tensors["carried"].to(self._carried.device), alpha=1 / kept.of)
        for kind, each in self._exchanges.items():
            each.inherit(Kept(part_of(kept.tensors, kind), kept.scalars["kinds"][kind], kept.index, kept.of))
