"""Padding on the bill: the room in a payload that its entries do not use, known once the step ends."""

from collections import Counter

import pytest
import torch

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import BytesByPurpose, Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.methods import build
from trainers.methods.exchange.gtopk.spec import GTopKConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.spec.sparse import SparseConfig
from trainers.traffic import collectives
from trainers.traffic.payload_layout import PayloadLayout
from trainers.traffic.sizes import num_selected

D, DENSITY = 6400, 0.1
COUNT = num_selected(D, DENSITY)
EXACT = {"density": DENSITY, "values": "float32", "selection": "exact"}
#: By the room in the payloads of a single rank.
AGGREGATES: dict[str, tuple[SparseConfig, list[int]]] = {
    "gather": (TopKConfig(**EXACT, aggregate="gather"), [COUNT]),
    "sharded": (TopKConfig(**EXACT, aggregate="sharded"), [collectives.capacity_for(COUNT, D), COUNT]),
    "tree": (GTopKConfig(density=DENSITY, values="float32"), [COUNT]),
}


class Billed(Connection):
    """Adds up what is to be charged, of which a single rank sends nothing."""

    def __init__(self) -> None:
        super().__init__(1, Unpaced(), Ledger())
        self.bytes: Counter[str] = Counter()

    def charge(self, parts: BytesByPurpose, traffic: collectives.Collective) -> None:
        self.bytes.update(parts)


@pytest.mark.parametrize("used", [1, 100, COUNT])
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_padding_is_the_room_that_entries_leave(aggregate: str, used: int):
    config, rooms = AGGREGATES[aggregate]
    buffer, connection = GradientBuffer([(80, 80)], config, torch.device("cpu")), Billed()
    buffer.gradient[:used] = 1.0
    buffer.finish()

    outcome = build.exchange(config, buffer, connection).step(torch.zeros(()), DENSITY, 0.1)

    layouts = [PayloadLayout(D, room, "float32") for room in rooms]
    assert outcome.density == used / D
    assert connection.bytes["padding"] == sum(layout.unused_bytes(layout.capacity - used) for layout in layouts)
    assert connection.bytes["gradient"] == sum(layout.num_bytes for layout in layouts) - connection.bytes["padding"]
    assert connection.bytes["control"] == collectives.HEADER_BYTES * len(rooms)
