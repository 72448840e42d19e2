"""The level that an exchange sends at: one for all layers, or one for each."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainers.traffic.buckets import Bucket, Layer


@dataclass(frozen=True)
class LayerLevels:
    """A level for each layer, by the layer's first entry."""

    by_start: Mapping[int, float]


Level = float | LayerLevels | None


def level_of(part: Bucket | Layer, level: Level) -> float | None:
    """Return the level of a layer, or of a bucket where its layers have the same."""
    return level.by_start[part.start] if isinstance(level, LayerLevels) else level


def common(level: Level) -> float | None:
    """Return the one level of all layers."""
    assert not isinstance(level, LayerLevels)
    return level
