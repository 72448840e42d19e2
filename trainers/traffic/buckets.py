"""Cut the flat gradient into buckets that are sent as soon as backward has filled them. Pure Python."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

Shape = Sequence[int]

#: More buckets than this cost latency and gain little overlap.
MAX_BUCKETS = 8
BYTES_PER_MIB = 2**20


class Bucketed(Protocol):
    """A configuration that says how much is sent together."""

    @property
    def bucket_mib(self) -> float: ...


@dataclass(frozen=True)
class Layer:
    """One parameter's range of the flat gradient."""

    start: int
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.num_elements


@dataclass(frozen=True)
class Bucket:
    """Neighbouring layers that are exchanged together; `index` counts in the order of the exchange."""

    index: int
    layers: tuple[Layer, ...]

    @property
    def start(self) -> int:
        return self.layers[0].start

    @property
    def stop(self) -> int:
        return self.layers[-1].stop

    @property
    def num_elements(self) -> int:
        return self.stop - self.start

    @property
    def span(self) -> slice:
        return slice(self.start, self.stop)

    def within(self, part: "Layer | Bucket") -> slice:
        """Return where one of its layers, or all of it, lies in the bucket."""
        return slice(part.start - self.start, part.stop - self.start)


def split(shapes: Sequence[Shape], config: Bucketed) -> tuple[Bucket, ...]:
    """Cut parameters of these shapes, in the model's order, into buckets in the order that backward fills them.

    Backward comes to the last layers first. A layer is never cut. The last bucket starts at the gradient's entry 0.
    """
    starts = [0, *accumulate(math.prod(shape) for shape in shapes)]
    layers = [Layer(start, tuple(shape)) for start, shape in zip(starts, shapes, strict=False)]
    least = max(config.bucket_mib * BYTES_PER_MIB / 4, starts[-1] / MAX_BUCKETS)
    groups: list[list[Layer]] = [[]]
    num_elements = 0  # in the last group
    for layer in reversed(layers):
        if num_elements >= least:
            groups.append([])
            num_elements = 0
        groups[-1].append(layer)
        num_elements += layer.num_elements
    return tuple(Bucket(index, tuple(reversed(group))) for index, group in enumerate(groups))
