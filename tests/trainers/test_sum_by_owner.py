import pytest
import torch

from trainers.exchange.connection import Connection
from trainers.exchange.kernels import operators
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.exchange.sum_by_owner import Sharded, Shards
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.traffic.buckets import split

LAYOUTS = pytest.mark.parametrize(("d", "num_owners"), [(1, 3), (64, 2), (1000, 3), (1024, 4), (4 * 64 + 1, 4)])
BY = pytest.mark.parametrize("by_operators", [False, True])


@BY
@LAYOUTS
def test_the_pieces_of_a_selection_join_to_it(
    monkeypatch: pytest.MonkeyPatch, d: int, num_owners: int, by_operators: bool
):
    monkeypatch.setattr(operators, "needed_for", lambda vector: by_operators)
    indices = torch.arange(0, d, 3, dtype=torch.int32)
    with_unused_slots = torch.cat([indices, torch.full((5,), d, dtype=torch.int32)])
    shards, found = Shards(d, num_owners), []

    pieces = shards.split(with_unused_slots, room=d)

    for owner, piece in enumerate(pieces):
        used = piece.places < len(with_unused_slots)
        assert used.sum() == piece.wanted
        assert torch.all((piece.indices < shards.size) == used)
        joined = shards.join(piece.indices, owner)
        assert torch.equal(joined[used], with_unused_slots[piece.places[used]])
        assert torch.all(joined[~used] >= d)
        found += joined[used].tolist()
    assert sorted(found) == indices.tolist()


@BY
def test_a_piece_has_as_much_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch, by_operators: bool):
    monkeypatch.setattr(operators, "needed_for", lambda vector: by_operators)
    shards, indices = Shards(1000, 2), torch.arange(1000, dtype=torch.int32)

    for whole, cut in zip(shards.split(indices, room=1000), shards.split(indices, room=7), strict=True):
        assert cut.wanted == whole.wanted > 7
        assert torch.equal(cut.places, whole.places[:7])
        assert torch.equal(cut.indices, whole.indices[:7])


@LAYOUTS
def test_a_whole_shard_is_added_where_its_entries_lie(d: int, num_owners: int):
    shards, values, expected = Shards(d, num_owners), torch.zeros(d), torch.zeros(d)

    for owner, piece in enumerate(shards.split(torch.arange(d, dtype=torch.int32), room=d)):
        shard = torch.randn(shards.size, generator=torch.Generator().manual_seed(owner))
        shards.add(values, owner, shard)
        expected[shards.join(piece.indices, owner).long()] = shard[piece.indices.long()]

    assert torch.equal(values, expected)


def test_what_an_owner_has_kept_is_released_as_it_is_after_a_step_that_rescaled_it():
    config = TopKConfig(density=0.1)
    [bucket] = split([(100,)], config)
    owner, values = Sharded(config, bucket, Connection(1, Unpaced(), Ledger()), torch.device("cpu")), torch.zeros(100)

    owner.rescale(0.5)
    owner.commit()
    owner.tensors()["kept"].fill_(1.0)
    owner.release(values)

    assert torch.equal(values, torch.ones(100))
