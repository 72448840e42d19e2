"""Hard threshold: send what is at least lambda in magnitude (Sahu et al., NeurIPS 2021, section 4).

Here lambda follows from a density by a sampled quantile, or is given. All decisions depend on numbers that
every rank has seen, so all ranks decide alike.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainers import cost
from trainers.config import ThresholdConfig

#: Entries sampled for a quantile: 65 of them are beyond a density of 0.1 %.
SAMPLES = 65_536
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
    capacity: int = 0
    wanted: float | None = None  # share of entries at or above the threshold in the last step; mean over ranks


class HardThreshold:
    """Keeps lambda and the capacity of the next payload. Mutable: `state`."""

    def __init__(self, config: ThresholdConfig, num_elements: int) -> None:
        self.config = config
        self.num_elements = num_elements
        self.state = ThresholdState()

    def check_level(self, level: float | None) -> float:
        """Return the level to use: `level`, or the configured one; raises ValueError outside its range."""
        wanted = self.config.level if level is None else level
        searches_density = self.config.search == "density"
        if isinstance(wanted, tuple):
            raise ValueError(f"`level` must be given where it is searched, got None for the range {wanted}")
        if wanted < 0 or (searches_density and not 0 < wanted <= 1):
            allowed = "(0, 1] for a density" if searches_density else ">= 0 for a threshold"
            raise ValueError(f"`level` must be {allowed}, got {wanted}")
        return wanted

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
        capacity = cost.capacity_for(level * self.num_elements, self.num_elements)
        self.state = ThresholdState(level, max(threshold, LEAST_THRESHOLD), capacity)

    def use_absolute(self, threshold: float) -> None:
        """Take the level itself as lambda."""
        capacity = self.state.capacity or cost.capacity_for(FIRST_CAPACITY * self.num_elements, self.num_elements)
        self.state = replace(self.state, level=threshold, threshold=threshold, capacity=capacity)

    def forget(self, level: float) -> None:
        """Drop lambda after a dense step that `level` asked for; a sparse level is then calibrated anew."""
        self.state = ThresholdState(level=level)

    def observe(self, *, most_wanted: float, mean_wanted: float) -> None:
        """Size the next payload by the fullest rank's wish; both are numbers of entries."""
        capacity = cost.capacity_for(most_wanted, self.num_elements)
        self.state = replace(self.state, capacity=capacity, wanted=mean_wanted / self.num_elements)

    def scalars(self) -> dict[str, Any]:
        return asdict(self.state)

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self.state = ThresholdState(**scalars)


def sampled_threshold(values: Tensor, density: float) -> float:
    """Return the magnitude that a share `density` of `values` `(d,)` reaches, from a sample."""
    # Odd, since a stride that divides a layer's width (mostly even) would only ever meet the same columns.
    stride = max(1, (len(values) // SAMPLES - 1) | 1)
    sample = values[::stride].abs()
    rank = max(1, round(density * len(sample)))
    return sample.kthvalue(len(sample) - rank + 1).values.item()
