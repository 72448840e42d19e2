"""Hard threshold: send what is at least lambda in magnitude (Sahu et al., NeurIPS 2021, section 4).

Here lambda follows from a density by a sampled quantile, or is given. All decisions depend on numbers that
every rank has seen, so all ranks decide alike.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from trainers import cost
from trainers.exchange.config import ThresholdConfig

#: A measured density may leave its plan by this factor before lambda is found anew.
DRIFT = 2.0
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
    wanted: float | None = None  # share of entries at or above the threshold in the last step; mean over ranks


class HardThreshold:
    """Keeps lambda and the capacity of the next payload. Mutable: `state`."""

    def __init__(self, config: ThresholdConfig, sizes: Sequence[int]) -> None:
        self.config = config
        self._sizes = tuple(sizes)  # of the buckets
        self.state = ThresholdState()

    def sends_all(self, level: float) -> bool:
        """Whether `level` asks for dense training."""
        return level == (1.0 if self.config.search == "density" else 0.0)

    def needs_calibration(self, level: float) -> bool:
        """Whether lambda must be found anew before a step at `level`."""
        if self.config.search == "absolute":
            return False
        state = self.state
        if state.level != level:
            return True
        if self.config.hold == "run" or state.wanted is None:
            return False
        # At the least lambda only zeros stay behind; a lower one would send no more.
        is_sparser = state.wanted * DRIFT < level and state.threshold > LEAST_THRESHOLD
        return is_sparser or state.wanted > DRIFT * level

    def calibrate(self, level: float, threshold: float) -> None:
        """Take `threshold`, agreed by all ranks, as lambda for `level`."""
        self.state = ThresholdState(
            level, max(threshold, LEAST_THRESHOLD), self._room([level * d for d in self._sizes])
        )

    def use_absolute(self, threshold: float) -> None:
        """Take the level itself as lambda."""
        capacities = self.state.capacities or self._room([FIRST_CAPACITY * d for d in self._sizes])
        self.state = replace(self.state, level=threshold, threshold=threshold, capacities=capacities)

    def forget(self, level: float) -> None:
        """Drop lambda for a dense step that `level` asks for; a sparse level is then calibrated anew."""
        self.state = ThresholdState(level=level)

    def observe(self, *, most_wanted: Sequence[float], mean_wanted: float) -> None:
        """Size the next payloads by the fullest rank's wish for each bucket; `mean_wanted` is of all together."""
        self.state = replace(self.state, capacities=self._room(most_wanted), wanted=mean_wanted / sum(self._sizes))

    def _room(self, wanted: Sequence[float]) -> tuple[int, ...]:
        return tuple(cost.capacity_for(most, d) for most, d in zip(wanted, self._sizes, strict=True))

    def scalars(self) -> dict[str, Any]:
        return asdict(self.state)

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self.state = ThresholdState(**scalars | {"capacities": tuple(scalars["capacities"])})
