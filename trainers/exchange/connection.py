"""Collectives between ranks. Each call is paced like the emulated link, and its bytes go into the ledger."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import zip_longest
from typing import Literal, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Pacer
from trainers.segment import Purpose
from trainers.spec.link import EmulateLink
from trainers.traffic import collectives
from trainers.traffic.sizes import WORD_BYTES

#: The bytes of a rank's tensor, by purpose.
BytesByPurpose = Mapping[Purpose, int]
#: Of a step's collectives, kept for who asks for them: those of eight buckets are fewer.
MOST_TIMINGS = 64
#: A gather and the handover of a state send no larger message. On a slow link a whole vector takes longer than the
#: group's timeout, which holds for each message; and NCCL wants each on a GPU, whose memory is the training's.
PIECE_BYTES = 1 << 20


class Timing(NamedTuple):
    """The bytes that a collective sent from this rank, and its seconds."""

    sent: collectives.Traffic
    seconds: float


class PeerLost(Exception):
    """A collective failed: a peer, or the network, is gone or silent."""


@contextmanager
def among_peers() -> Iterator[None]:
    """Turn errors of torch.distributed into PeerLost."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(str(error)) from error


def place_of(device_type: str, config: str) -> Literal["cpu", "cuda"]:
    """Return where a tensor on a device of this type must lie for a group whose backends are as `config` says.

    `config` is that of `dist.get_backend_config`, such as `cpu:gloo,cuda:nccl`. On a GPU only NCCL is used.
    """
    backends = dict(each.split(":") for each in config.split(","))
    is_reached = "cpu" not in backends or (device_type == "cuda" and backends.get("cuda") == "nccl")
    return "cuda" if is_reached else "cpu"


def pieces(tensor: Tensor) -> Sequence[Tensor]:
    """Return flat views of a contiguous `tensor` of at most `PIECE_BYTES` each, in order; none of an empty one."""
    return torch.split(tensor.view(-1), PIECE_BYTES // tensor.element_size()) if tensor.numel() else ()


class Connection:
    """A rank's connection to its peers. A single worker has no peers, and sends nothing.

    `group` is the process group to use; None: the default group. Tensors on a device that the backend does not reach
    are copied, and so are tensors that are not contiguous. All collectives raise PeerLost.
    """

    def __init__(self, num_workers: int, pacer: Pacer, ledger: Ledger) -> None:
        self.num_workers = num_workers
        self.ledger = ledger
        self.group: dist.ProcessGroup | None = None
        #: The GPU to stage host tensors on for NCCL; without a number, the one that the calling thread has set.
        self.gpu = torch.device("cuda")
        self._timings = deque[Timing](maxlen=MOST_TIMINGS)
        self._pacer = pacer

    def apart(self) -> Self:
        """Return this connection with its own ledger, for another thread. Never use both at the same time."""
        twin = copy(self)
        twin.ledger, twin._timings = Ledger(), deque(maxlen=MOST_TIMINGS)
        return twin

    def take_timings(self) -> list[Timing]:
        """Return the latest gathers and all-to-alls since the last call, oldest first, at most `MOST_TIMINGS`."""
        return [self._timings.popleft() for _ in range(len(self._timings))]

    @property
    def link(self) -> EmulateLink | None:
        """The link that is emulated, if one is."""
        return self._pacer.link

    @property
    def rank(self) -> int:
        """This rank's number in its process group."""
        return dist.get_rank(self.group) if self.num_workers > 1 else 0

    def all_reduce_sum(self, tensor: Tensor, parts: BytesByPurpose) -> None:
        """Sum `tensor` over the ranks in place, with equal bits on all. `parts` are its bytes by purpose."""
        started = self._now(tensor)
        if self.num_workers > 1:
            with self._in_place(tensor) as staged:
                if collectives.swaps(staged.nbytes, self.num_workers) and not staged.is_cuda:
                    self._add_swapped(staged)
                else:
                    dist.all_reduce(staged, group=self.group)
        self._account(started, parts, collectives.all_reduce)

    def _add_swapped(self, tensor: Tensor) -> None:
        """Replace `tensor` by the sum over both ranks, in one round instead of a ring's two (docs/decisions/0046).

        The result has the bits of an all-reduce, since a + b has the bits of b + a.
        """
        mine = tensor.detach().view(-1)
        both = mine.new_empty(2 * len(mine))
        dist.all_gather_single(both, mine, group=self.group)
        torch.add(both[: len(mine)], both[len(mine) :], out=mine)

    def reduce_sum(self, tensor: Tensor, to: int, parts: BytesByPurpose) -> None:
        """Sum `tensor` over the ranks, in place on rank `to`. On the other ranks its content is undefined."""
        started = self._now(tensor)
        if self.num_workers > 1:
            with self._in_place(tensor) as staged:
                dist.reduce(staged, group=self.group, group_dst=to)
        self._account(started, parts, collectives.reduce)

    def all_gather(self, tensor: Tensor, parts: BytesByPurpose) -> Tensor:
        """Return the ranks' tensors `(n,)` as rows `(N, n)`; `parts` are the bytes of one by purpose."""
        started = self._now(tensor)
        rows = tensor.unsqueeze(0)
        if self.num_workers > 1:
            staged = self._staged(tensor)
            flat = staged.new_empty(self.num_workers * len(staged))  # gloo wants one dimension
            with among_peers():
                dist.all_gather_single(flat, staged, group=self.group)
            rows = flat.view(self.num_workers, -1)
        self._account(started, parts, collectives.all_gather)
        self._note_timing(started, parts, collectives.all_gather)
        return rows.to(tensor.device)

    def gather(self, vector: Tensor, purpose: Purpose = "control") -> list[Tensor]:
        """Return the ranks' vectors, of any lengths, on rank 0, which receives them in turns; [] on the others."""
        if self.rank > 0:
            for message in [torch.tensor([len(vector)]), *pieces(vector)]:
                self.send(message, 0, {purpose: message.nbytes})
            return []
        sources = range(1, self.num_workers)
        lengths = [int(self.receive(torch.empty(1, dtype=torch.int64), source).item()) for source in sources]
        vectors = [vector.new_empty(length) for length in lengths]
        self._receive_in_turns(vectors)
        return [vector, *vectors]

    def _receive_in_turns(self, vectors: Sequence[Tensor]) -> None:
        """Fill `vectors`, those of the ranks from 1 on, by a piece of each in turn. Whose are all here drops out."""
        for turn in zip_longest(*map(pieces, vectors)):
            started, received = time.monotonic(), 0
            for source, piece in enumerate(turn, start=1):
                if piece is not None:
                    piece.copy_(self.receive(piece, source))
                    received += piece.nbytes
            # Each source paces its own, but all of them pass the link of this rank. In every turn, not at the end: the
            # sources must not be done long before this rank, since they wait for it in the next collective.
            self._pacer.finish(started, collectives.Traffic(0, 1, received))

    def all_to_all(self, rows: Tensor, parts: BytesByPurpose) -> Tensor:
        """Send row i of `rows` `(N, n)` to rank i; returns what the ranks sent here, as rows `(N, n)`.

        `parts` are the bytes of all rows by purpose; the row to oneself is not charged.
        """
        started = self._now(rows)
        received = rows
        if self.num_workers > 1:
            staged = self._staged(rows.reshape(-1))
            flat = torch.empty_like(staged)
            with among_peers():
                dist.all_to_all_single(flat, staged, group=self.group)
            received = flat.view_as(rows)
        self._account(started, parts, collectives.all_to_all)
        self._note_timing(started, parts, collectives.all_to_all)
        return received.to(rows.device)

    def send(self, tensor: Tensor, to: int, parts: BytesByPurpose) -> None:
        """Send `tensor` to rank `to`, which receives one of the same shape."""
        # Pace before sending: a receiver that already waits must not get the tensor too early.
        started = self._now(tensor)
        self._pace(started, parts, collectives.point_to_point)
        with among_peers():
            dist.send(self._staged(tensor), group=self.group, group_dst=to)
        self.charge(parts, collectives.point_to_point)
        self._note_seconds(started)

    def receive(self, like: Tensor, source: int) -> Tensor:
        """Return the tensor that rank `source` sends. Its shape must be that of `like`."""
        started = self._now(like)
        staged = torch.empty(like.shape, dtype=like.dtype, device=self._reached(like))
        with among_peers():
            dist.recv(staged, group=self.group, group_src=source)
        self._note_seconds(started)
        return staged.to(like.device)

    def broadcast(self, tensor: Tensor, source: int, parts: BytesByPurpose) -> None:
        """Overwrite `tensor` with that of rank `source`. It is sent as bytes, so any type works."""
        started = self._now(tensor)
        if self.rank == source:
            self._pace(started, parts, collectives.broadcast)  # before it leaves, as in `send`
        if self.num_workers > 1:
            with self._in_place(tensor) as staged:
                # As bytes: gloo knows neither complex numbers nor int16. Flat: a scalar has no view of another type.
                dist.broadcast(staged.detach().view(-1).view(torch.uint8), group=self.group, group_src=source)
        self.charge(parts, collectives.broadcast)
        self._note_seconds(started)

    def mean(self, number: float, purpose: Purpose = "control") -> float:
        """Return the mean of one float32 over the ranks, with equal bits on all."""
        word = torch.tensor([number])
        self.all_reduce_sum(word, {purpose: WORD_BYTES})
        return word.item() / self.num_workers

    def _now(self, tensor: Tensor) -> float:
        """Return the time. If a link is emulated, wait until a GPU has computed `tensor`, which cannot leave before."""
        if tensor.is_cuda and self.link is not None:
            torch.cuda.current_stream(tensor.device).synchronize()
        return time.monotonic()

    def _staged(self, tensor: Tensor) -> Tensor:
        """Return `tensor` where a backend of the group reaches it."""
        return tensor.to(self._reached(tensor)).contiguous()  # gloo takes as many as there are, whatever the strides

    def _reached(self, tensor: Tensor) -> torch.device:
        """Return where a backend of the group reaches what `tensor` holds: NCCL on a GPU, gloo in host memory."""
        if place_of(tensor.device.type, dist.get_backend_config(self.group)) == "cpu":
            return torch.device("cpu")
        return tensor.device if tensor.is_cuda else self.gpu

    @contextmanager
    def _in_place(self, tensor: Tensor) -> Iterator[Tensor]:
        """Yield `tensor` where the backend reaches it, for a collective that overwrites it."""
        staged = self._staged(tensor)
        with among_peers():
            yield staged
        if staged is not tensor:
            tensor.copy_(staged)

    def _account(self, started: float, parts: BytesByPurpose, traffic: "collectives.Collective") -> None:
        self.charge(parts, traffic)
        self._pace(started, parts, traffic)
        self._note_seconds(started)

    def _note_seconds(self, started: float) -> None:
        if self.num_workers > 1:
            self.ledger.wire_s += time.monotonic() - started

    def _note_timing(self, started: float, parts: BytesByPurpose, traffic: "collectives.Collective") -> None:
        sent = traffic(sum(parts.values()), self.num_workers)
        self._timings.append(Timing(sent, time.monotonic() - started))

    def charge(self, parts: BytesByPurpose, traffic: "collectives.Collective") -> None:
        """Charge the ledger for a tensor sent by a collective; `parts` are its bytes by purpose."""
        self.ledger.charge(parts, lambda num_bytes: traffic(num_bytes, self.num_workers).bytes)

    def _pace(self, started: float, parts: BytesByPurpose, traffic: "collectives.Collective") -> None:
        self._pacer.finish(started, traffic(sum(parts.values()), self.num_workers))
