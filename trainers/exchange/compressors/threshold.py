"""Hard threshold: send what is at least lambda in magnitude (Sahu et al., NeurIPS 2021, section 4).

Held for the run, or given, lambda is the paper's: it never changes, and a density is an average over the run. Held for
a stage, it is the density that holds: lambda is what the planned share of the entries reached one step ago, or a larger
share as long as less is sent than planned. All decisions depend on numbers that every rank has seen, so all ranks
decide alike.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.config import ThresholdConfig
from trainers.exchange.kernels.quantile import reached_by
from trainers.traffic import cost

#: Lambda is for at most so many times the plan. While gradients become smaller, it must be for more than the plan: what
#: the last lambda let through is gone, and less than half of the plan may reach the next.
MOST_AIM = 4.0
#: The aim changes by less than this factor a step; where little is missing, by about the fourth root of that.
LARGEST_CORRECTION = 1.6
#: First capacity, as a share of d, where no density is planned.
FIRST_CAPACITY = 1 / 64
#: The smallest normal float32: sends every entry but zeros, where more than the planned share are zero.
LEAST_THRESHOLD = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class ThresholdState:
    """Equal on all ranks."""

    level: float | None = None  # that `threshold` was found for
    threshold: float = 0.0
    capacities: tuple[int, ...] = ()  # by bucket
    aim: float = 1.0  # times the plan: what lambda is for
    reached: float = 0.0  # by that many of a rank's entries in the last step: a magnitude, the ranks' mean


def correction(fulfilled: float) -> float:
    """Return what to multiply the aim by when `fulfilled` times the plan was sent: more than 1 if that is less than 1.

    Inverse numbers have inverse corrections. Basic arithmetic alone: its bits do not depend on the machine.
    """
    return (LARGEST_CORRECTION + fulfilled) / (1 + LARGEST_CORRECTION * fulfilled)


class HardThreshold:
    """Keeps lambda and the capacity of the next payload. Mutable: `state`, and `current`, the running step's.

    What a step begins with becomes the state when `observe` ends it: until then, it may turn out to be void.
    """

    def __init__(self, config: ThresholdConfig, sizes: Sequence[int]) -> None:
        self.config = config
        self._sizes = tuple(sizes)  # of the buckets
        self.state = self.current = ThresholdState()

    @property
    def holds_density(self) -> bool:
        """Whether lambda changes so that the density does not."""
        return self.config.search == "density" and self.config.hold == "stage"

    def sends_all(self, level: float) -> bool:
        """Whether `level` asks for dense training."""
        return level == (1.0 if self.config.search == "density" else 0.0)

    def needs_calibration(self, level: float) -> bool:
        """Whether a step at `level` needs a lambda of its own gradient: those before had another level."""
        return self.config.search == "density" and self.state.level != level

    def calibrate(self, level: float, threshold: float) -> None:
        """Take `threshold`, agreed by all ranks, as lambda for `level`."""
        capacities = self._room(self._planned(level, self.state.capacities))
        self.current = replace(
            self.state, level=level, threshold=max(threshold, LEAST_THRESHOLD), capacities=capacities
        )

    def follow(self) -> None:
        """Take what the planned share reached as the next lambda for the same level."""
        self.current = replace(self.state, threshold=max(self.state.reached, LEAST_THRESHOLD))

    def reached(self, sample: Tensor) -> Tensor:
        """Return the magnitude that lambda should have been for, by a `sample` `(n,)` of this rank's gradient.

        It is a scalar beside the sample.
        """
        assert self.current.level is not None
        return reached_by(sample, min(1.0, self.current.aim * self.current.level))

    def hold(self) -> None:
        """Take the lambda that the last step ended with."""
        self.current = self.state

    def use_absolute(self, threshold: float) -> None:
        """Take the level itself as lambda."""
        capacities = self.state.capacities or self._room([FIRST_CAPACITY * d for d in self._sizes])
        self.current = replace(self.state, level=threshold, threshold=threshold, capacities=capacities)

    def forget(self, level: float) -> None:
        """Drop lambda for a dense step that `level` asks for; a sparse level is then calibrated anew."""
        self.state = self.current = ThresholdState(level=level)

    def observe(self, most_wanted: Sequence[float]) -> None:
        """End a step with a lambda that holds; the next payloads have room for the fullest rank's wishes, by bucket."""
        self.state = self.current = replace(self.current, capacities=self._room(most_wanted))

    def observe_density(self, most_wanted: Sequence[float], *, density: float, reached: float) -> None:
        """End a step with a density that holds: `density` was sent, `reached` is the ranks' mean.

        The next payloads have room for the plan; each bucket gets the share that it has in the fullest rank's wishes.
        """
        level = self.current.level
        assert level is not None
        aim = min(max(self.current.aim * correction(density / level), 1.0), MOST_AIM)
        self.state = self.current = replace(
            self.current,
            capacities=self._room(self._planned(level, most_wanted)),
            aim=aim,
            reached=reached,
        )

    def _planned(self, level: float, weights: Sequence[float]) -> list[float]:
        """Return the entries to expect of each bucket at density `level`: in proportion to `weights`, if any."""
        parts = weights if sum(weights) else self._sizes
        return [level * sum(self._sizes) * part / sum(parts) for part in parts]

    def _room(self, wanted: Sequence[float]) -> tuple[int, ...]:
        return tuple(cost.capacity_for(most, d) for most, d in zip(wanted, self._sizes, strict=True))

    def scalars(self) -> dict[str, Any]:
        return asdict(self.state)

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self.state = self.current = ThresholdState(**scalars | {"capacities": tuple(scalars["capacities"])})
