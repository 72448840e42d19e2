"""Entries that reach one threshold (Sahu et al., 2021)."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trainers.exchange.aggregate import Report
from trainers.exchange.buckets import Bucket
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.compressors.threshold import HardThreshold
from trainers.exchange.config import ThresholdConfig
from trainers.exchange.kernels.quantile import reached_by
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.wire import Wire


class ByThreshold:
    """Entries of at least lambda, found for a density or given, the same on all ranks."""

    def __init__(self, config: ThresholdConfig, buckets: Sequence[Bucket]) -> None:
        self._compressor = HardThreshold(config, [bucket.num_elements for bucket in buckets])
        self._level = 0.0

    @property
    def threshold(self) -> float | None:
        return self._compressor.state.threshold

    @property
    def sends_all(self) -> bool:
        return self._compressor.sends_all(self._level)

    def prepare(self, level: float | None, buffer: GradientBuffer, memory: Memory, wire: Wire) -> bool:
        compressor = self._compressor
        self._level = compressor.config.check_level(level)
        if self.sends_all:
            compressor.forget(self._level)
        elif compressor.config.search == "absolute":
            compressor.use_absolute(self._level)
        elif compressor.needs_calibration(self._level):
            return self._calibrate(buffer, memory, wire)
        return True

    def _calibrate(self, buffer: GradientBuffer, memory: Memory, wire: Wire) -> bool:
        """Agree on lambda; this waits for the whole gradient."""
        agreed = wire.mean(reached_by(memory.sample(buffer.wait_for_all(), slice(None)), self._level))
        if not math.isfinite(agreed):
            return False
        self._compressor.calibrate(self._level, agreed)
        return True

    def capacity(self, bucket: Bucket) -> int:
        return bucket.num_elements if self.sends_all else self._compressor.state.capacities[bucket.index]

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        return memory.select(gradient, bucket.span, threshold=self._compressor.state.threshold, capacity=capacity)

    def count(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> int:
        return int((memory.corrected(gradient, bucket.span).abs() >= self._compressor.state.threshold).sum())

    def observe(self, reports: Sequence[Report]) -> None:
        if not self.sends_all:
            self._compressor.observe(
                most_wanted=[report.most_wanted for report in reports],
                mean_wanted=sum(report.mean_wanted for report in reports),
            )

    def scalars(self) -> dict[str, Any]:
        return self._compressor.scalars()

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._compressor.load_scalars(scalars)
