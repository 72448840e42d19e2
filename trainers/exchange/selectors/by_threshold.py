"""Entries that reach one threshold (Sahu et al., 2021)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.aggregate import Report
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.compressors.threshold import HardThreshold
from trainers.exchange.config import ThresholdConfig
from trainers.exchange.connection import Connection
from trainers.exchange.kernels.quantile import reached_by
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.selectors.selector import Count
from trainers.methods.levels.calibrated import threshold_for
from trainers.methods.levels.level import Level, common
from trainers.methods.levels.spec import CalibratedConfig
from trainers.traffic.buckets import Bucket

#: A sample says where a payload is full if it has so many entries of that payload.
FEWEST_SAMPLES = 16


class ByThreshold:
    """Entries of at least lambda, found for a density or given, the same on all ranks.

    Where the density is to hold, each rank samples its gradient bucket by bucket as it selects, and tells the others
    with the last one what the planned share reaches. The mean is the next step's lambda, which costs no round of its
    own; only the first lambda of a level waits for the whole gradient, and for an agreement. A rank with more than
    there is room for leaves out the smallest: in the order of the indices, it would be those of a bucket's last layer,
    step after step.
    """

    def __init__(self, config: ThresholdConfig, buckets: Sequence[Bucket]) -> None:
        self._compressor = HardThreshold(config, [bucket.num_elements for bucket in buckets])
        self._num_elements = sum(bucket.num_elements for bucket in buckets)
        self._level = 0.0
        self._samples: list[Tensor] = []  # of the running step's corrected gradient

    @property
    def threshold(self) -> float | None:
        return self._compressor.current.threshold

    @property
    def sends_all(self) -> bool:
        return self._compressor.sends_all(self._level)

    def prepare(self, level: Level, buffer: GradientBuffer, memory: Memory, connection: Connection) -> bool:
        compressor = self._compressor
        self._level, self._samples = compressor.config.check_level(common(level)), []
        if self.sends_all:
            compressor.forget(self._level)
        elif compressor.config.search == "absolute":
            compressor.use_absolute(self._level)
        elif compressor.needs_calibration(self._level):
            return self._calibrate(buffer, memory, connection)
        elif compressor.holds_density:
            compressor.follow()
        else:
            compressor.hold()
        return True

    def _calibrate(self, buffer: GradientBuffer, memory: Memory, connection: Connection) -> bool:
        """Agree on lambda; unless a formula has it, this waits for the whole gradient."""
        if isinstance(self._compressor.config.levels, CalibratedConfig):
            self._compressor.calibrate(self._level, threshold_for(self._level * self._num_elements))
            return True
        agreed = connection.mean(float(reached_by(memory.sample(buffer.wait_for_all(), slice(None)), self._level)))
        if not math.isfinite(agreed):
            return False
        self._compressor.calibrate(self._level, agreed)
        return True

    def capacity(self, bucket: Bucket) -> int:
        return bucket.num_elements if self.sends_all else self._compressor.current.capacities[bucket.index]

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        threshold = self._threshold(gradient)
        if self._compressor.holds_density:
            cutoff = _cutoff(self._sample(bucket, gradient, memory), capacity / len(gradient))
            threshold = torch.maximum(threshold, cutoff)
        selection = memory.select(gradient, bucket.span, threshold=threshold, capacity=capacity)
        return selection._replace(note=self._reached(bucket, gradient))

    def count(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> Count:
        if self._compressor.holds_density:
            self._sample(bucket, gradient, memory)
        wanted = (memory.corrected(gradient, bucket.span).abs() >= self._threshold(gradient)).sum()
        return Count(wanted, self._reached(bucket, gradient))

    def _threshold(self, gradient: Tensor) -> Tensor:
        """Return lambda as a scalar beside the gradient."""
        return torch.full_like(gradient[0], self._compressor.current.threshold)

    def _reached(self, bucket: Bucket, gradient: Tensor) -> Tensor:
        """Return what the planned share of all buckets' entries reaches, behind the last one; before it, 0."""
        if bucket.start != 0 or not self._samples:
            return gradient.new_zeros(())
        return self._compressor.reached(torch.cat(self._samples))

    def _sample(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> Tensor:
        self._samples.append(memory.sample(gradient, bucket.span, of=self._num_elements))
        return self._samples[-1]

    def observe(self, reports: Sequence[Report]) -> None:
        wanted = [report.most_wanted for report in reports]
        if self._samples:
            density = sum(report.sent for report in reports) / self._num_elements
            self._compressor.observe_density(wanted, density=density, reached=reports[-1].note)
        elif not self.sends_all:
            self._compressor.observe(wanted)

    def scalars(self) -> dict[str, Any]:
        return self._compressor.scalars()

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._compressor.load_scalars(scalars)


def _cutoff(sample: Tensor, room: float) -> Tensor:
    """Return the magnitude that the share `room` of `sample` `(n,)` reaches; 0: the sample is too small to tell."""
    return reached_by(sample, room) if room * len(sample) >= FEWEST_SAMPLES else sample.new_zeros(())
