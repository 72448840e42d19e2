"""Which entries of a bucket are sent, and how much room they get. All ranks decide alike."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from trainers import cost
from trainers.exchange.aggregate import Report
from trainers.exchange.buckets import Bucket
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.compressors.threshold import HardThreshold
from trainers.exchange.config import ThresholdConfig
from trainers.exchange.kernels.quantile import sampled_threshold
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.wire import Wire


class Selector(Protocol):
    """Chooses entries of the corrected gradient."""

    @property
    def threshold(self) -> float | None:
        """The cut-off in force, if there is one that all ranks share."""

    def prepare(self, level: float | None, buffer: GradientBuffer, memory: Memory, wire: Wire) -> bool:
        """Get ready for a step at `level`; collective. False: a gradient is not finite.

        Raises ValueError for a level that the configuration does not allow.
        """

    def capacity(self, bucket: Bucket) -> int:
        """Return for how many entries to make room; all of the bucket: it is to be sent densely."""

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        """Return the entries to send, at most `capacity` of them."""

    def count(self, bucket: Bucket, corrected: Tensor) -> int:
        """Return how many entries of `corrected` would be selected: what a dense exchange reports as wanted."""

    def observe(self, reports: Sequence[Report]) -> None:
        """Learn what the ranks wanted to send of each bucket."""

    def scalars(self) -> dict[str, Any]: ...
    def load_scalars(self, scalars: dict[str, Any]) -> None: ...


class ByThreshold:
    """Entries of at least lambda, found for a density or given, the same on all ranks."""

    def __init__(self, config: ThresholdConfig, buckets: Sequence[Bucket]) -> None:
        self._compressor = HardThreshold(config, [bucket.num_elements for bucket in buckets])
        self._level = 0.0

    @property
    def threshold(self) -> float | None:
        return self._compressor.state.threshold

    def prepare(self, level: float | None, buffer: GradientBuffer, memory: Memory, wire: Wire) -> bool:
        compressor = self._compressor
        self._level = compressor.config.check_level(level)
        if compressor.sends_all(self._level):
            compressor.forget(self._level)
        elif compressor.config.search == "absolute":
            compressor.use_absolute(self._level)
        elif compressor.needs_calibration(self._level):
            return self._calibrate(buffer, memory, wire)
        return True

    def _calibrate(self, buffer: GradientBuffer, memory: Memory, wire: Wire) -> bool:
        """Agree on lambda; this waits for the whole gradient."""
        corrected = memory.corrected(buffer.wait_for_all(), slice(None))
        # A sum over all ranks, of which one may have an infinity that its sample misses.
        agreed = wire.mean(sampled_threshold(corrected, self._level) if _is_finite(corrected) else math.nan)
        if not math.isfinite(agreed):
            return False
        self._compressor.calibrate(self._level, agreed)
        return True

    def capacity(self, bucket: Bucket) -> int:
        if self._compressor.sends_all(self._level):
            return bucket.num_elements
        return self._compressor.state.capacities[bucket.index]

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        return memory.select(gradient, bucket.span, threshold=self._compressor.state.threshold, capacity=capacity)

    def count(self, bucket: Bucket, corrected: Tensor) -> int:
        if self._compressor.sends_all(self._level):
            return bucket.num_elements
        return int((corrected.abs() >= self._compressor.state.threshold).sum())

    def observe(self, reports: Sequence[Report]) -> None:
        if not self._compressor.sends_all(self._level):
            self._compressor.observe(
                most_wanted=[report.most_wanted for report in reports],
                mean_wanted=sum(report.mean_wanted for report in reports),
            )

    def scalars(self) -> dict[str, Any]:
        return self._compressor.scalars()

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._compressor.load_scalars(scalars)


def _is_finite(values: Tensor) -> bool:
    return bool(torch.isfinite(values.sum()))
