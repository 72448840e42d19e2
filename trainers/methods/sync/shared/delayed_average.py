"""Average a vector over the ranks while they take the next round's steps."""

from abc import abstractmethod
from functools import partial

import torch
from torch import Tensor

from trainers.exchange.connection import BytesByPurpose
from trainers.exchange.exchange import Exchange
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.step_result import DIVERGED, Exchanged, is_finite
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.averaging import Iterate
from trainers.methods.sync.shared.background_thread import BackgroundThread
from trainers.methods.sync.shared.local import Local
from trainers.spec.ranges import first
from trainers.spec.sync import DelayedAverageConfig


class Background:
    """Averages a vector in a background thread. All ranks must launch and wait in the same order.

    Bytes are charged at the launch, so the bill does not depend on timing.
    """

    def __init__(self, node_links: NodeLinks, device: torch.device, *, threads: int) -> None:
        self._node_links = node_links
        self._thread = BackgroundThread[None](device, threads=threads)

    def launch(self, vector: Tensor) -> None:
        """Begin to average `vector` over the ranks in place. Do not touch it before `wait` has returned."""
        parts: BytesByPurpose = {"parameters": vector.nbytes}
        self._node_links.charge_sum(parts)
        self._thread.launch(partial(self._average, vector, parts, self._node_links.apart()))

    def _average(self, vector: Tensor, parts: BytesByPurpose, node_links: NodeLinks) -> None:
        vector.div_(self._node_links.topology.num_workers)
        node_links.all_reduce_sum(vector, parts)

    def wait(self) -> None:
        """Wait until the launched vector is averaged; return at once if there is none. Raises PeerLost."""
        self._thread.wait()


class DelayedAverage(Local):
    """Base of policies that average a vector in the background. Before the first round it is the common start.

    When the average has arrived, its bits are equal on all ranks, so all agree on whether it is finite.
    """

    agrees = False

    def __init__(
        self, config: DelayedAverageConfig, iterate: Iterate, background: Background, *, gradients: Exchange
    ) -> None:
        super().__init__(first(config.period), iterate, gradients=gradients, exchange=gradients)
        self._background, self._average = background, iterate.read()

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        self._background.wait()
        if not is_finite(self._average):
            return DIVERGED
        self._take(self._average, update)
        self._background.launch(self._average)
        return outcome

    @abstractmethod
    def _take(self, average: Tensor, update: Update) -> None:
        """Use the `average` that has arrived, then overwrite it with the vector to average next."""

    def settle(self) -> None:
        self._background.wait()

    def tensors(self) -> dict[str, Tensor]:
        self._background.wait()  # nobody may read or write the state while an average is under way
        return {"average": self._average}
