"""The state of one rank on its way to another."""

from collections import deque

import torch
from torch import Tensor

from trainers.exchange.connection import PIECE_BYTES, BytesByPurpose, Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.snapshot import State, Tensors
from trainers.training.state_handover import give, take


class Loop(Connection):
    """What it sends it receives, in the order of sending."""

    def __init__(self) -> None:
        super().__init__(2, Unpaced(), Ledger())
        self.sent: list[int] = []
        self._underway = deque[Tensor]()

    def send(self, tensor: Tensor, to: int, parts: BytesByPurpose) -> None:
        self.sent.append(tensor.nbytes)
        assert sum(parts.values()) == tensor.nbytes
        self._underway.append(tensor)

    def receive(self, like: Tensor, source: int) -> Tensor:
        received = self._underway.popleft()
        assert (received.shape, received.dtype) == (like.shape, like.dtype)
        return received


def _state(value: float) -> State:
    shapes = {"large": (3, PIECE_BYTES // 4), "columns": (5, 7), "number": (), "none": (0, 2)}
    tensors = {name: torch.full(shape, value) for name, shape in shapes.items()}
    tensors["columns"] = torch.arange(35.0).view(7, 5).T * value
    return State(shared={"model": Tensors(tensors)}, own={})


def test_a_state_arrives_whole_in_messages_that_a_slow_link_passes_within_the_timeout() -> None:
    giver, taker, loop = _state(2.0), _state(1.0), Loop()
    giver.snapshot("stage")

    give(giver, loop, 1, without="before the average")
    take(taker, loop, 0)

    for slot, image in giver.images().items():
        received = taker.images()[slot].tensors
        assert all(torch.equal(tensor, received[name]) for name, tensor in image.tensors.items())
    assert max(loop.sent) == PIECE_BYTES


def test_slots_that_the_others_have_forgotten_are_forgotten() -> None:
    giver, taker, loop = _state(2.0), _state(1.0), Loop()
    giver.snapshot("stage")
    taker.snapshot("earlier stage")

    give(giver, loop, 1, without="before the average")
    take(taker, loop, 0)

    assert taker.images().keys() == giver.images().keys()
