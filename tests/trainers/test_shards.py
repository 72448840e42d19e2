import pytest
import torch

from trainers.exchange.shards import Shards

LAYOUTS = pytest.mark.parametrize(("d", "num_owners"), [(1, 3), (64, 2), (1000, 3), (1024, 4), (4 * 64 + 1, 4)])


@LAYOUTS
def test_the_pieces_of_a_selection_join_to_it(d: int, num_owners: int):
    indices = torch.arange(0, d, 3, dtype=torch.int32)
    shards = Shards(d, num_owners)

    pieces = shards.split(indices)

    assert sorted(torch.cat([piece.places for piece in pieces]).tolist()) == list(range(len(indices)))
    for owner, piece in enumerate(pieces):
        assert torch.equal(shards.join(piece.indices, owner), indices[piece.places])
        assert torch.all(piece.indices < shards.size)


@LAYOUTS
def test_a_whole_shard_is_added_where_its_entries_lie(d: int, num_owners: int):
    shards, values, expected = Shards(d, num_owners), torch.zeros(d), torch.zeros(d)

    for owner, piece in enumerate(shards.split(torch.arange(d, dtype=torch.int32))):
        shard = torch.randn(shards.size, generator=torch.Generator().manual_seed(owner))
        shards.add(values, owner, shard)
        expected[shards.join(piece.indices, owner).long()] = shard[piece.indices.long()]

    assert torch.equal(values, expected)
