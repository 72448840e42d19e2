"""Which entries of a bucket are sent, and how much room they get. All ranks decide alike."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from trainers import cost
from trainers.exchange.aggregate import Report
from trainers.exchange.buckets import Bucket, Layer
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.compressors.sizes import num_selected
from trainers.exchange.compressors.threshold import LEAST_THRESHOLD, HardThreshold
from trainers.exchange.compressors.topk import largest
from trainers.exchange.config import ByDensity, DgcConfig, SparseConfig, ThresholdConfig, TopKConfig
from trainers.exchange.kernels.quantile import reached_by
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.outcome import is_finite
from trainers.exchange.wire import Wire


class Selector(Protocol):
    """Chooses entries of the corrected gradient."""

    @property
    def threshold(self) -> float | None:
        """The cut-off in force, if there is one that all ranks share."""

    @property
    def sends_all(self) -> bool:
        """Whether the level asks for everything: dense training."""

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

    def count(self, bucket: Bucket, corrected: Tensor) -> int:
        return int((corrected.abs() >= self._compressor.state.threshold).sum())

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


class ByCount:
    """The largest entries of each bucket, or of each layer, as many as the density says (Alistarh et al., 2018).

    Sampled, the cut-off is a quantile that each rank takes for itself in each step; what is above it and does not fit
    waits in the memory.
    """

    threshold = None

    def __init__(self, config: ByDensity, *, exact: bool, by_layer: bool) -> None:
        self._config, self._exact, self._by_layer = config, exact, by_layer
        self._density = 1.0

    @property
    def sends_all(self) -> bool:
        return self._density == 1.0

    def prepare(self, level: float | None, buffer: GradientBuffer, memory: Memory, wire: Wire) -> bool:
        self._density = self._config.check_level(level)
        return True

    def capacity(self, bucket: Bucket) -> int:
        return sum(self._room(part.num_elements) for part in self._parts(bucket))

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        found = [self._select(part, bucket, gradient, memory) for part in self._parts(bucket)]
        return Selection(
            torch.cat([each.indices for each in found]),
            torch.cat([each.values for each in found]),
            wanted=sum(each.wanted for each in found),
            is_finite=all(each.is_finite for each in found),
        )

    def _select(self, part: Bucket | Layer, bucket: Bucket, gradient: Tensor, memory: Memory) -> Selection:
        span, first = slice(part.start, part.stop), part.start - bucket.start
        own = gradient[first : first + part.num_elements]
        if self._exact:
            found = take_largest(memory, own, span, self._count(part.num_elements))
        else:
            threshold = max(reached_by(memory.sample(own, span), self._density), LEAST_THRESHOLD)
            found = memory.select(own, span, threshold=threshold, capacity=self._room(part.num_elements))
        return found._replace(indices=found.indices + first)

    def _parts(self, bucket: Bucket) -> Sequence[Bucket | Layer]:
        return bucket.layers if self._by_layer else (bucket,)

    def _count(self, d: int) -> int:
        return num_selected(d, self._density)

    def _room(self, d: int) -> int:
        return self._count(d) if self._exact else cost.capacity_for(self._density * d, d, cost.COUNT_MARGIN)

    def count(self, bucket: Bucket, corrected: Tensor) -> int:
        return sum(self._count(part.num_elements) for part in self._parts(bucket))

    def observe(self, reports: Sequence[Report]) -> None:
        return

    def scalars(self) -> dict[str, Any]:
        return {}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        return


class Dgc(ByCount):
    """Deep gradient compression's: the density falls to its level, and each rank clips its gradient first."""

    #: The density that the warm-up starts at.
    FIRST_DENSITY = 0.25

    def __init__(self, config: DgcConfig) -> None:
        super().__init__(config, exact=False, by_layer=False)
        self._clip, self._warmup_steps = config.clip, config.warmup_steps
        self._taken = 0

    def prepare(self, level: float | None, buffer: GradientBuffer, memory: Memory, wire: Wire) -> bool:
        super().prepare(level, buffer, memory, wire)
        if self._taken < self._warmup_steps:
            done = self._taken / self._warmup_steps
            self._density = max(self._density, self.FIRST_DENSITY ** (1 - done) * self._density**done)
        if self._clip is not None:
            buffer.wait_for_all()
            buffer.clip(self._clip / math.sqrt(wire.num_workers))
        return True

    def observe(self, reports: Sequence[Report]) -> None:
        self._taken += 1

    def scalars(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._taken = scalars["taken"]


class Global:
    """The largest entries of the whole gradient: one cut-off for all buckets, of each rank for itself."""

    threshold = None

    def __init__(self, config: TopKConfig, buckets: Sequence[Bucket]) -> None:
        self._config, self._sizes = config, [bucket.num_elements for bucket in buckets]
        self._density, self._threshold = 1.0, 0.0
        self._level: float | None = None  # that the capacities belong to
        self._capacities: list[int] = []

    @property
    def sends_all(self) -> bool:
        return self._density == 1.0

    def prepare(self, level: float | None, buffer: GradientBuffer, memory: Memory, wire: Wire) -> bool:
        self._density = self._config.check_level(level)
        gradient = buffer.wait_for_all()
        if self._config.selection == "exact":
            magnitudes = memory.corrected(gradient, slice(None)).abs()
            rank = max(1, math.ceil(self._density * len(magnitudes)))
            self._threshold = float(magnitudes.kthvalue(len(magnitudes) - rank + 1).values)
        else:
            self._threshold = reached_by(memory.sample(gradient, slice(None)), self._density)
        self._threshold = max(self._threshold, LEAST_THRESHOLD)
        if self._level != self._density:
            self._level = self._density
            self._capacities = [cost.capacity_for(self._density * d, d) for d in self._sizes]
        return True

    def capacity(self, bucket: Bucket) -> int:
        return self._capacities[bucket.index]

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        return memory.select(gradient, bucket.span, threshold=self._threshold, capacity=capacity)

    def count(self, bucket: Bucket, corrected: Tensor) -> int:
        return int((corrected.abs() >= self._threshold).sum())

    def observe(self, reports: Sequence[Report]) -> None:
        wanted = [report.most_wanted for report in reports]
        self._capacities = [cost.capacity_for(most, d) for most, d in zip(wanted, self._sizes, strict=True)]

    def scalars(self) -> dict[str, Any]:
        return {"level": self._level, "capacities": self._capacities}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._level, self._capacities = scalars["level"], list(scalars["capacities"])


def take_largest(memory: Memory, gradient: Tensor, span: slice, count: int) -> Selection:
    """Take exactly the `count` largest corrected entries, in ascending order of index."""
    corrected = memory.corrected(gradient, span)
    indices = largest(corrected, count)
    finite = is_finite(corrected)
    return Selection(indices, memory.take(span, indices), len(indices), finite)


def build(config: SparseConfig, buckets: Sequence[Bucket], *, seed: int) -> Selector:
    """Return the selector that `config` describes; what it draws at random follows from `seed`."""
    match config:
        case ThresholdConfig():
            return ByThreshold(config, buckets)
        case TopKConfig() if config.scope == "global":
            return Global(config, buckets)
        case TopKConfig():
            return ByCount(config, exact=config.selection == "exact", by_layer=config.scope == "layer")
        case DgcConfig():
            return Dgc(config)
    raise NotImplementedError
