"""Accordion: more is sent while gradients change fast (Agarwal et al., MLSys 2021, Algorithm 1).

Gradients of an epoch are added up, as a rank, or node, has computed them. Every few epochs the norm of that sum is
compared with the one before: a layer whose norm has changed by much is in a critical regime. The first rank decides and
tells all others; a fall of the learning rate, which all see alike, makes everything critical at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.buckets import Bucket, Layer
from trainers.exchange.config import ExchangeConfig
from trainers.exchange.levels.config import AccordionConfig
from trainers.exchange.levels.level import LayerLevels, Level
from trainers.exchange.wire import Wire
from trainers.snapshot import Kept
from trainers.workload import WorkloadError

#: The rank whose gradients decide.
DECIDER = 0
#: Layers with a common level.
Part = Sequence[Layer]


@dataclass(frozen=True)
class AccordionState:
    """Where training is, and what was found last, by part. Norms are this rank's own; the rest is equal on all."""

    critical: tuple[bool, ...]
    norms: tuple[float, ...] = ()  # at the last comparison; none: there was none
    step: int = 0  # of the epoch
    epoch: int = 0
    learning_rate: float | None = None  # of the step before


def is_critical(before: float | None, now: float, eta: float) -> bool:
    """Whether a norm that was `before`, None: the first, and is `now` tells of a critical regime."""
    return not before or not abs(before - now) / before < eta  # what is no number is critical


def with_epoch(exchange: ExchangeConfig, epoch_steps: int | None) -> ExchangeConfig:
    """Return `exchange` with `epoch_steps` in place of an epoch that it leaves open."""
    levels = getattr(exchange, "levels", None)
    if not isinstance(levels, AccordionConfig) or levels.epoch_steps is not None:
        return exchange
    return exchange.model_copy(update={"levels": levels.model_copy(update={"epoch_steps": epoch_steps})})


class Accordion:
    """Keeps the running epoch's sum of gradients, `(d,)`."""

    def __init__(self, config: AccordionConfig, parts: Sequence[Part], like: Tensor) -> None:
        if config.epoch_steps is None:
            raise WorkloadError("`exchange.levels.epoch_steps` must be given, e.g. 100, since the data have no epochs")
        self._config, self._parts, self._epoch_steps = config, parts, config.epoch_steps
        self._sum, self._next_sum = torch.zeros_like(like), torch.zeros_like(like)
        self._state = self._current = AccordionState(critical=(True,) * len(parts))

    def level(self, asked: float, learning_rate: float) -> Level:
        before, critical = self._state.learning_rate, self._state.critical
        if self._config.follow_decay and before is not None and learning_rate < before:
            critical = (True,) * len(self._parts)
        self._current = replace(self._state, critical=critical, learning_rate=learning_rate)
        levels = [self._config.critical if each else asked for each in critical]
        if len(set(levels)) == 1:
            return levels[0]
        return LayerLevels(
            {layer.start: level for part, level in zip(self._parts, levels, strict=True) for layer in part}
        )

    def watch(self, bucket: Bucket, gradient: Tensor) -> None:
        torch.add(self._sum[bucket.span], gradient, out=self._next_sum[bucket.span])

    def commit(self, wire: Wire) -> None:
        self._sum, self._next_sum = self._next_sum, self._sum
        state = replace(self._current, step=self._current.step + 1)
        if state.step >= self._epoch_steps:  # which other workers may have made shorter
            if state.epoch % self._config.interval == 0:
                state = self._compared(state, wire)
            state = replace(state, step=0, epoch=state.epoch + 1)
            self._sum.zero_()
        self._state = self._current = state

    def _compared(self, state: AccordionState, wire: Wire) -> AccordionState:
        norms = tuple(self._norm(part) for part in self._parts)
        before = state.norms or (None,) * len(norms)
        found = [is_critical(*pair, self._config.eta) for pair in zip(before, norms, strict=True)]
        told = torch.tensor(found, dtype=torch.uint8, device=self._sum.device)
        wire.broadcast(told, DECIDER, {"control": told.nbytes})
        return replace(state, norms=norms, critical=tuple(map(bool, told.tolist())))

    def _norm(self, part: Part) -> float:
        squares = [torch.linalg.vector_norm(self._sum[layer.start : layer.stop]).square() for layer in part]
        return float(torch.stack(squares).sum().sqrt())

    def tensors(self) -> dict[str, Tensor]:
        return {"sum": self._sum}

    def scalars(self) -> dict[str, Any]:
        return asdict(self._state)

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        by_part = {name: tuple(scalars[name]) for name in ("critical", "norms")}
        self._state = self._current = AccordionState(**{**scalars, **by_part})

    def inherit(self, kept: Kept) -> None:
        """Take over what the first old rank kept, which decided for all."""
        if kept.index == DECIDER:
            self._sum.copy_(kept.tensors["sum"])
            self.load_scalars(kept.scalars)
