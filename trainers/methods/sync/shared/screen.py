"""Leave a rank out of an average if it moved much farther than usual, or if its values are not finite.

Cheng et al. (2024), "EDiT: a local-SGD-based efficient distributed training method for large language models": the
elimination of anomalies, the first part of their penalty. Four things are our own. A distance is measured per unit of
the learning rates on its way, since a controller changes these. The first `1 / FADING` distances count alike. One that
is too far counts as the farthest that is not, so that a lasting change is let in after a while. And the warm-up is
shorter: jobs have tens of averages, and EDiT's takes 120.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from trainers.exchange.node_links import NodeLinks
from trainers.exchange.step_result import Exchanged
from trainers.snapshot import WithoutScalars
from trainers.spec.sync import CompressedUpdatesConfig, SyncBase

#: The weight of the newest distance in the mean of all, as published.
FADING = 0.02
_LONGEST = torch.finfo(torch.float32).max
log = logging.getLogger(__name__)


class Screen(Protocol):
    """Decides whether this rank takes part in an average. Each rank has its own screen, and all call it together."""

    def weight(self, moved: Tensor, loss: float, path: float) -> float | None:
        """Return the weight of what this rank `moved` `(n,)` in the mean over all N ranks; collective.

        It is N/K if K ranks take part, and 0 if this one does not; None: none does. `path` is the sum of the learning
        rates on the way, and `loss` this rank's at its end.
        """

    def scalars(self) -> dict[str, Any]: ...
    def load_scalars(self, scalars: dict[str, Any]) -> None: ...


class Everyone(WithoutScalars):
    """Leaves no rank out: a value that is not finite on one rank is not finite in the mean."""

    def weight(self, moved: Tensor, loss: float, path: float) -> float | None:
        return 1.0


class Outliers:
    """Leaves this rank out if its distance is more than `max_z` standard deviations above its own running mean."""

    def __init__(self, max_z: float, warmup: int, node_links: NodeLinks) -> None:
        self._max_z, self._warmup, self._node_links = max_z, warmup, node_links
        self._count, self._mean, self._variance = 0, 0.0, 0.0

    def weight(self, moved: Tensor, loss: float, path: float) -> float | None:
        takes_part = self._takes_part(moved, loss, path)
        number = torch.tensor([float(takes_part)])
        self._node_links.all_reduce_sum(number, {"control": number.nbytes})
        if not number:
            return None
        return self._node_links.num_ranks / float(number) if takes_part else 0.0

    def _takes_part(self, moved: Tensor, loss: float, path: float) -> bool:
        distance = float(torch.linalg.vector_norm(moved, dtype=torch.float64))
        if not (distance <= _LONGEST and math.isfinite(loss)):
            log.warning("this worker is left out of an average: its parameters or its loss are not finite")
            return False
        if path == 0:  # nobody went anywhere
            return True
        speed, most = distance / path, self._most()
        self._note(min(speed, most))
        if speed > most:
            log.warning("this worker is left out of an average: it went %.3g times as far as it may", speed / most)
        return speed <= most

    def _most(self) -> float:
        if self._count < self._warmup:
            return math.inf
        return self._mean + self._max_z * math.sqrt(self._variance) or math.inf  # 0: it has not moved at all so far

    def _note(self, speed: float) -> None:
        self._count += 1
        weight, deviation = max(FADING, 1 / self._count), speed - self._mean
        self._mean += weight * deviation
        self._variance = (1 - weight) * (self._variance + weight * deviation**2)

    def scalars(self) -> dict[str, Any]:
        return {"count": self._count, "mean": self._mean, "variance": self._variance}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._count, self._mean, self._variance = scalars["count"], scalars["mean"], scalars["variance"]


def build(config: CompressedUpdatesConfig, node_links: NodeLinks) -> Screen:
    """Return the screen for averages over `node_links`, as `config` asks for."""
    if config.max_z is None:
        return Everyone()
    return Outliers(config.max_z, config.warmup_averages, node_links)


def weighted(moved: Tensor, outcome: Exchanged, weight: float) -> tuple[Tensor, Exchanged]:
    """Multiply `moved`, in place, and the loss of `outcome` by this rank's `weight`.

    A weight of 0 gives zeros, even where values are not finite.
    """
    if not weight:
        return moved.zero_(), replace(outcome, loss=0.0)
    if weight == 1.0:
        return moved, outcome
    return moved.mul_(weight), replace(outcome, loss=weight * outcome.loss)


def parts_of_means(
    config: SyncBase, node_links: NodeLinks, groups: Sequence[Sequence[Tensor]], *, over: int
) -> list[tuple[Sequence[Tensor], int]]:
    """Return, for each group of tensors, what this rank adds to the mean, and over how many ranks; collective.

    By default that is the group itself, and `over`. If the policy has a screen, a rank whose group is not finite adds
    zeros and does not count. If the group is finite on no rank, all count.
    """
    is_screened = isinstance(config, CompressedUpdatesConfig) and config.max_z is not None
    if not is_screened or not groups:
        return [(group, over) for group in groups]
    finite = [all(bool(each.isfinite().all()) for each in group) for group in groups]
    numbers = torch.tensor(finite, dtype=torch.float32)
    node_links.all_reduce_sum(numbers, {"control": numbers.nbytes})
    return [
        (group if takes_part or not number else [torch.zeros_like(each) for each in group], int(number) or over)
        for group, takes_part, number in zip(groups, finite, numbers.tolist(), strict=True)
    ]
