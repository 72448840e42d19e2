"""Hard threshold: send entries of at least lambda in magnitude (Sahu et al., NeurIPS 2021, section 4).

If lambda is given, or held for the run, it is the paper's: it never changes, and the density is an average over the
run. If it is held for a stage, the density is kept instead: lambda is the magnitude that the planned share of the
entries reached one step ago, or a larger share while less is sent than planned. All ranks decide the same, since
decisions depend only on numbers that every rank has seen.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.aggregate import Report
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.quantile import LEAST_THRESHOLD, reached_by
from trainers.exchange.level import Level, common
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.selector import Count
from trainers.exchange.sparse import SparseExchange
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.spec.levels import CalibratedConfig
from trainers.traffic import collectives
from trainers.traffic.buckets import Bucket


def threshold_for(num_entries: float) -> float:
    """Return lambda = 1 / (2 sqrt(k)) for `num_entries` k of the whole gradient per step.

    The authors' code sets lambda for images like this. It is a rule of thumb and depends on scale: it assumes mean
    gradients of losses of about 1.
    """
    return 1 / (2 * math.sqrt(num_entries))


#: Lambda is for at most so many times the plan. While gradients become smaller, it must be for more than the plan: what
#: the last lambda let through is gone, and less than half of the plan may reach the next.
MOST_AIM = 4.0
#: The aim changes by less than this factor a step; where little is missing, by about the fourth root of that.
LARGEST_CORRECTION = 1.6
#: First capacity, as a share of d, where no density is planned.
FIRST_CAPACITY = 1 / 64


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
        """Return whether lambda changes so that the density does not."""
        return self.config.search == "density" and self.config.hold == "stage"

    def sends_all(self, level: float) -> bool:
        """Return whether `level` asks for dense training."""
        return level == (1.0 if self.config.search == "density" else 0.0)

    def needs_calibration(self, level: float) -> bool:
        """Return whether a step at `level` needs a lambda of its own gradient: those before had another level."""
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
        return tuple(collectives.capacity_for(most, d) for most, d in zip(wanted, self._sizes, strict=True))

    def scalars(self) -> dict[str, Any]:
        return asdict(self.state)

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self.state = self.current = ThresholdState(**scalars | {"capacities": tuple(scalars["capacities"])})


#: A sample says where a payload is full if it has so many entries of that payload.
FEWEST_SAMPLES = 16


class ByThreshold:
    """Selects entries of at least lambda, which is given or found for a density, and equal on all ranks.

    To keep a density, each rank samples its gradient while it selects, bucket by bucket. With the last bucket it sends
    the magnitude that the planned share reaches; the mean is the next step's lambda, at no extra round. Only the first
    lambda of a level waits for the whole gradient and for an agreement. If there is not room for all entries, a rank
    leaves out the smallest. In the order of the indices, it would always leave out those of a bucket's last layer.
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

    def prepare(self, level: Level, buffer: Gradients, memory: Memory, connection: Connection) -> bool:
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

    def _calibrate(self, buffer: Gradients, memory: Memory, connection: Connection) -> bool:
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
            sample, room = self._sample(bucket, gradient, memory), capacity / len(gradient)
            if room * len(sample) >= FEWEST_SAMPLES:  # else it is too small to tell where the payload is full
                threshold = torch.maximum(threshold, reached_by(sample, room))
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


def build(config: ThresholdConfig, buffer: Gradients, connection: Connection, *, seed: int) -> SparseExchange:
    """Return the exchange of `config`."""
    return SparseExchange(config, ByThreshold(config, buffer.buckets), buffer, connection)
