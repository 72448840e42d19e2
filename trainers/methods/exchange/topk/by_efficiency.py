"""As many of a bucket's largest entries as promise the most descent per unit of cost (CAT: Khirirat et al., 2021)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trainers.exchange.aggregate import Report
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.quantile import LEAST_THRESHOLD
from trainers.exchange.level import Level, common
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.selector import Count, next_capacities
from trainers.exchange.step_result import all_finite
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.levels import prices
from trainers.methods.levels.cat import (
    Numbers,
    best_count,
    gain_of_drawn,
    gain_of_largest,
    gain_of_signs,
    scale_of_draws,
)
from trainers.spec.levels import CatConfig
from trainers.traffic.buckets import Bucket


class EfficientShare(NamedTuple):
    """The share of a bucket to send."""

    magnitudes: Numbers  # (n,) of a sample, falling
    best: int  # of the sample, at least 1
    scale: float  # entries of the bucket for one of the sample

    @property
    def num_entries(self) -> int:
        return round(self.best * self.scale)


class ByEfficiency:
    """Each rank chooses for itself in each step, at most the density; capacities follow what the ranks wanted.

    Sampled, it goes by the magnitudes of a sample.
    """

    threshold = None
    sends_all = False

    def __init__(self, config: TopKConfig, levels: CatConfig, buckets: Sequence[Bucket], *, seed: int) -> None:
        self._config, self._seed, self._draws = config, seed, levels.variant == "drawn"
        self._price = prices.build(config, levels)
        self._sizes = [bucket.num_elements for bucket in buckets]
        self._capacities = list(self._sizes)
        self._density, self._taken = 1.0, 0

    def prepare(self, level: Level, buffer: Gradients, memory: Memory, connection: Connection) -> bool:
        self._density, self._connection = self._config.check_level(common(level)), connection
        return True

    def capacity(self, bucket: Bucket) -> int:
        return min(self._capacities[bucket.index], self._config.capacity(bucket, self._density))

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        choice = self._choose(bucket, gradient, memory)
        if self._draws:
            return self._drawn(bucket, memory.corrected(gradient, bucket.span), choice, capacity)
        threshold = max(float(choice.magnitudes[choice.best - 1]), LEAST_THRESHOLD)
        cutoff = torch.full_like(gradient[0], threshold)
        return memory.select(gradient, bucket.span, threshold=cutoff, capacity=capacity)

    def count(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> Count:
        return Count.of(self._choose(bucket, gradient, memory).num_entries, gradient)

    def _choose(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> EfficientShare:
        look = memory.corrected if self._config.selection == "exact" else memory.sample
        magnitudes = np.sort(look(gradient, bucket.span).abs().double().cpu().numpy())[::-1]
        scale = len(gradient) / len(magnitudes)
        most = max(1, int(self._density * len(magnitudes)))
        costs = self._price.of(len(gradient), scale * np.arange(1, most + 1, dtype=np.float64), self._connection)
        if costs is not None:
            return EfficientShare(magnitudes, best_count(self._gains(magnitudes)[:most], costs), scale)
        # Messages of another size will tell what size costs.
        return EfficientShare(magnitudes, max(1, int(self.capacity(bucket) / (2 * scale))), scale)

    def _gains(self, magnitudes: Numbers) -> Numbers:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):  # zeros, and what is not finite
            if self._draws:
                return gain_of_drawn(magnitudes)
            return gain_of_signs(magnitudes) if self._config.values == "sign" else gain_of_largest(magnitudes)

    def _drawn(self, bucket: Bucket, corrected: Tensor, choice: EfficientShare, capacity: int) -> Selection:
        """Draw entries, divided by their probabilities; of too many some are left out, and the others count more."""
        rng = np.random.default_rng((self._seed, self._taken, bucket.index, self._connection.rank))
        chances = (corrected.abs() * scale_of_draws(choice.magnitudes, choice.best)).nan_to_num().clamp(max=1.0)
        lots = torch.from_numpy(rng.random(len(corrected), dtype=np.float32)).to(corrected.device)
        drawn = (lots < chances).nonzero().flatten()
        wanted = len(drawn)
        if wanted > capacity:
            drawn = drawn[torch.from_numpy(np.sort(rng.choice(wanted, capacity, replace=False))).to(drawn.device)]
        values = corrected[drawn] / chances[drawn] * (wanted / max(1, len(drawn)))
        return Selection.of(Entries(drawn.int(), values), wanted, all_finite(corrected))

    def observe(self, reports: Sequence[Report]) -> None:
        self._capacities = next_capacities(reports, self._sizes)
        self._taken += 1

    def scalars(self) -> dict[str, Any]:
        return {"capacities": self._capacities, "taken": self._taken, "price": self._price.scalars()}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._capacities, self._taken = list(scalars["capacities"]), scalars["taken"]
        self._price.load_scalars(scalars["price"])
