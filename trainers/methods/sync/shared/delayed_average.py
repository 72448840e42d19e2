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
    """All ranks launch and wait in the same order. Bytes are billed at the launch, so they depend on no clock."""

    def __init__(self, node_links: NodeLinks, device: torch.device, *, threads: int) -> None:
        self._node_links = node_links
        self._thread = BackgroundThread[None](device, threads=threads)

    def launch(self, vector: Tensor) -> None:
        """Begin to average `vector` over the ranks, in place; it is not to be touched before `wait` has returned."""
        parts: BytesByPurpose = {"parameters": vector.nbytes}
        self._node_links.charge_sum(parts)
        self._thread.launch(partial(self._average, vector, parts, self._node_links.apart()))

    def _average(self, vector: Tensor, parts: BytesByPurpose, node_links: NodeLinks) -> None:
        vector.div_(self._node_links.topology.num_workers)
        node_links.all_reduce_sum(vector, parts)

    def wait(self) -> None:
        """Return when what was launched is averaged, at once if nothing was; raises PeerLost."""
        self._thread.wait()


class DelayedAverage(Local):
    """Keeps the vector that the ranks average; before the first round it is the common start.

    Its bits are the same on all ranks when it has arrived, and so is the verdict whether it is finite.
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
        """Use the `average` that has arrived, and write over it what is to be averaged next."""

    def settle(self) -> None:
        self._background.wait()

    def tensors(self) -> dict[str, Tensor]:
        self._background.wait()  # whoever reads or writes the state must not meet what is under way
        return {"average": self._average}
