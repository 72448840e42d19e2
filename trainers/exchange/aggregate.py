"""The two collectives, each one ordered call: paced as the link asks, counted in the ledger."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from trainers import cost
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Pacer
from trainers.segment import Purpose


class PeerLost(Exception):
    """This rank and its peers could not do something together: one of them is gone or silent, or the network is."""


@contextmanager
def among_peers() -> Iterator[None]:
    """Raise PeerLost for what torch.distributed raises inside."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(str(error)) from error


class Wire:
    """What connects this rank with its peers. A single worker has no peers, and sends nothing.

    Tensors on a GPU go through host memory when the backend is gloo. Both collectives raise PeerLost.
    """

    def __init__(self, num_workers: int, pacer: Pacer, ledger: Ledger) -> None:
        self.num_workers = num_workers
        self.ledger = ledger
        self._pacer = pacer

    def all_reduce_sum(self, tensor: Tensor, parts: Mapping[Purpose, int]) -> None:
        """Sum `tensor` over the ranks, in place, with equal bits on all; `parts` are its bytes by purpose."""
        started = time.monotonic()
        if self.num_workers > 1:
            staged = self._staged(tensor)
            with among_peers():
                dist.all_reduce(staged)
            tensor.copy_(staged)
        self._account(started, parts, cost.all_reduce)

    def all_gather(self, tensor: Tensor, parts: Mapping[Purpose, int]) -> Tensor:
        """Return the ranks' tensors `(n,)` as rows `(N, n)`; `parts` are the bytes of one by purpose."""
        started = time.monotonic()
        rows = tensor.unsqueeze(0)
        if self.num_workers > 1:
            staged = self._staged(tensor)
            flat = staged.new_empty(self.num_workers * len(staged))  # gloo wants one dimension
            with among_peers():
                dist.all_gather_single(flat, staged)
            rows = flat.view(self.num_workers, -1)
        self._account(started, parts, cost.all_gather)
        return rows.to(tensor.device)

    def mean(self, number: float, purpose: Purpose = "control") -> float:
        """Return the mean of one float32 over the ranks, with equal bits on all."""
        word = torch.tensor([number])
        self.all_reduce_sum(word, {purpose: cost.WORD_BYTES})
        return word.item() / self.num_workers

    def _staged(self, tensor: Tensor) -> Tensor:
        return tensor if dist.get_backend() == "nccl" else tensor.cpu()

    def _account(self, started: float, parts: Mapping[Purpose, int], traffic: "cost.Collective") -> None:
        self.ledger.charge(parts, lambda num_bytes: traffic(num_bytes, self.num_workers).bytes)
        self._pacer.finish(started, traffic(sum(parts.values()), self.num_workers))
