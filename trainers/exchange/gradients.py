"""A step's gradients as an exchange reads them: bucket by bucket, after all that they pass on the way."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from trainers.exchange.node_links import LEADER, NodeLinks
from trainers.traffic.buckets import Bucket, Layer


class Gradients(Protocol):
    """Gradients of a step in one vector `gradient` `(d,)`, float32, which comes in buckets. Exchanges overwrite it."""

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets, in the order of the exchange; the last one begins at entry 0."""

    @property
    def layers(self) -> Sequence[Layer]:
        """The ranges of the parameters, in their order."""

    @property
    def gradient(self) -> Tensor:
        """The vector `(d,)`, whose buckets are complete once `wait` has returned them."""

    @property
    def num_elements(self) -> int:
        """The length d of the vector."""

    @property
    def step(self) -> int:
        """The number of steps begun, this one included."""

    def of(self, layer: Layer) -> Tensor:
        """Return a layer's gradient, a view."""

    def wait(self, bucket: Bucket) -> Tensor:
        """Return the bucket's gradient, a view, once it is complete; raises BackwardFailed."""

    def wait_for_all(self) -> Tensor:
        """Return the whole gradient once it is complete; raises BackwardFailed."""

    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradient, which is complete, so that its 2-norm is at most `max_norm`. Returns the factor."""

    def led_by(self, numbers: Tensor, bucket: Bucket) -> Tensor:
        """Return a few `numbers` `(n,)`, and behind them the gradient of the bucket that starts at 0: a view."""


class Passed(ABC):
    """The gradients of `source`, each bucket of which passes something once a step, before anybody gets it."""

    def __init__(self, source: Gradients) -> None:
        self._source = source
        self.buckets, self.layers = source.buckets, source.layers
        self.gradient, self.num_elements = source.gradient, source.num_elements
        self._passed_in = [-1] * len(source.buckets)  # the last step in which each bucket has passed; -1: none

    @property
    def step(self) -> int:
        return self._source.step

    def of(self, layer: Layer) -> Tensor:
        return self._source.of(layer)

    def clip(self, max_norm: float) -> Tensor:
        return self._source.clip(max_norm)

    def led_by(self, numbers: Tensor, bucket: Bucket) -> Tensor:
        return self._source.led_by(numbers, bucket)

    def wait(self, bucket: Bucket) -> Tensor:
        gradient = self._source.wait(bucket)
        if self._passed_in[bucket.index] != self.step:
            self._passed_in[bucket.index] = self.step
            self._pass(bucket, gradient)
        return gradient

    def wait_for_all(self) -> Tensor:
        for bucket in self.buckets:
            self.wait(bucket)
        return self.gradient

    @abstractmethod
    def _pass(self, bucket: Bucket, gradient: Tensor) -> None:
        """See the bucket's gradient, a view, or change it in place."""


class Pooled(Passed):
    """The sums over a node's ranks, each of whose parts is scaled by nodes / ranks; its leader has them."""

    def __init__(self, source: Gradients, node_links: NodeLinks) -> None:
        super().__init__(source)
        self._node_links = node_links

    def _pass(self, bucket: Bucket, gradient: Tensor) -> None:
        if self._node_links.share != 1:  # else it would be a pass over the gradient for nothing
            gradient.mul_(self._node_links.share)
        self._node_links.within.reduce_sum(gradient, LEADER, {"gradient": gradient.nbytes})


class Watched(Passed):
    """The gradients of `source`, which `see` is shown bucket by bucket."""

    def __init__(self, source: Gradients, see: Callable[[Bucket, Tensor], None]) -> None:
        super().__init__(source)
        self._see = see

    def _pass(self, bucket: Bucket, gradient: Tensor) -> None:
        self._see(bucket, gradient)
