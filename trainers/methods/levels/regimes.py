"""Critical regimes: times in which gradients change fast (Agarwal et al., MLSys 2021, Algorithm 1).

Gradients of an epoch are added up, as a rank, or node, has computed them. Every few epochs the norm of that sum is
compared with the one before: what has changed by much is in a critical regime. The first rank decides for all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainers.spec.levels import RegimeConfig
from trainers.traffic.buckets import Bucket, Layer
from trainers.workload import WorkloadError

#: The rank whose gradients decide.
DECIDER = 0
#: Layers that are judged together.
Part = Sequence[Layer]


@dataclass(frozen=True)
class RegimeState:
    """The place in training, and the last finding by part. Norms are this rank's own; the rest is equal on all."""

    critical: tuple[bool, ...]
    norms: tuple[float, ...] = ()  # at the last comparison; none: there was none
    step: int = 0  # of the epoch
    epoch: int = 0


def is_critical(before: float | None, now: float, eta: float) -> bool:
    """Tell a critical regime by a norm that was `before`, None: this is the first, and is `now`."""
    return not before or not abs(before - now) / before < eta  # what is no number is critical


class Regimes:
    """Keeps the running epoch's sum of gradients, `(d,)`. Its state changes in `commit` alone."""

    def __init__(self, config: RegimeConfig, parts: Sequence[Part], like: Tensor) -> None:
        if config.epoch_steps is None:
            raise WorkloadError("`epoch_steps` of Accordion must be given, e.g. 100, since the data have no epochs")
        self._config, self._parts, self._epoch_steps = config, parts, config.epoch_steps
        self._sum, self._next_sum = torch.zeros_like(like), torch.zeros_like(like)
        self._state = RegimeState(critical=(True,) * len(parts))

    @property
    def critical(self) -> tuple[bool, ...]:
        """The verdict on each part: True in a critical regime."""
        return self._state.critical

    def watch(self, bucket: Bucket, gradient: Tensor) -> None:
        """See the bucket's gradient of the coming step."""
        if self._is_compared:
            torch.add(self._sum[bucket.span], gradient, out=self._next_sum[bucket.span])

    def commit(self, critical: tuple[bool, ...], tell: Callable[[Tensor], None]) -> None:
        """End a step in which `critical` held; `tell` overwrites a tensor by the first rank's. Collective."""
        if self._is_compared:
            self._sum, self._next_sum = self._next_sum, self._sum
        state = replace(self._state, critical=critical, step=self._state.step + 1)
        if state.step >= self._epoch_steps:  # which other workers may have made shorter
            if self._is_compared:
                state = self._compared(state, tell)
            state = replace(state, step=0, epoch=state.epoch + 1)
            self._sum.zero_()
        self._state = state

    @property
    def _is_compared(self) -> bool:
        """True if the running epoch is compared at its end; gradients of others need not be added up."""
        return self._state.epoch % self._config.interval == 0

    def _compared(self, state: RegimeState, tell: Callable[[Tensor], None]) -> RegimeState:
        norms = tuple(self._norm(part) for part in self._parts)
        before = state.norms or (None,) * len(norms)
        found = [is_critical(*pair, self._config.eta) for pair in zip(before, norms, strict=True)]
        told = torch.tensor(found, dtype=torch.uint8, device=self._sum.device)
        tell(told)
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
        self._state = RegimeState(**{**scalars, **by_part})
