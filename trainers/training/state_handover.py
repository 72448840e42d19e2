"""Send one rank's state to another rank that joins the group.

It goes in pieces. As long as each of them arrives within the group's timeout, the whole may take any time.
"""

import json
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.connection import Connection, pieces
from trainers.snapshot import Image, State

#: The parts that are not sent: each rank keeps its own residuals and random state.
OWN = ("exchange", "random")
#: The name of each exchange inside a policy that has several of them. These are not sent either.
OWN_OF_POLICY = ".exchange."


def give(state: State, connection: Connection, to: int, *, without: str) -> None:
    """Send the live `state` and its slots, except the slot `without`, to rank `to`. Raises PeerLost."""
    images = {slot: _without_own(image) for slot, image in state.images().items() if slot != without}
    header = torch.tensor(list(json.dumps({slot: _described(each) for slot, each in images.items()}).encode()))
    tensors = [torch.tensor([len(header)]), header.byte()]
    tensors += [tensor for image in images.values() for tensor in image.tensors.values()]
    for tensor in tensors:
        for piece in pieces(tensor.contiguous()):
            connection.send(piece, to, {"state": piece.nbytes})


def take(state: State, connection: Connection, source: int) -> None:
    """Receive the state that rank `source` sends, and take it over. Raises PeerLost."""
    (length,) = _received(torch.tensor([0]), connection, source).tolist()
    header = json.loads(bytes(_received(torch.empty(length, dtype=torch.uint8), connection, source).tolist()))
    images = {}
    for slot, described in header.items():
        tensors = {name: _received(_like(*each), connection, source) for name, each in described["tensors"].items()}
        images[slot] = Image(tensors, described["scalars"])
    state.adopt(images)


def _received(room: Tensor, connection: Connection, source: int) -> Tensor:
    """Fill `room` with the tensor of its shape that rank `source` sends, and return it."""
    for piece in pieces(room):
        piece.copy_(connection.receive(piece, source))
    return room


def _without_own(image: Image) -> Image:
    return Image(
        {name: tensor for name, tensor in image.tensors.items() if not _is_own(*name.split(".", 1))},
        {part: scalars for part, scalars in image.scalars.items() if part not in OWN},
    )


def _is_own(part: str, name: str) -> bool:
    return part in OWN or (part == "sync" and OWN_OF_POLICY in name)


def _described(image: Image) -> dict[str, Any]:
    shapes = {name: (list(each.shape), str(each.dtype).removeprefix("torch.")) for name, each in image.tensors.items()}
    return {"scalars": image.scalars, "tensors": shapes}


def _like(shape: list[int], dtype: str) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype))
