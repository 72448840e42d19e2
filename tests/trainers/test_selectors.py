import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.largest import largest
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.ledger import Ledger
from trainers.exchange.memory import Residual
from trainers.exchange.pacing import Unpaced
from trainers.methods import build
from trainers.methods.exchange.adacomp import exchange as adacomp
from trainers.methods.exchange.adacomp.exchange import ByBins
from trainers.methods.exchange.adacomp.spec import ENTRIES_PER_BIN, AdaCompConfig
from trainers.methods.exchange.gtopk.exchange import merge, merge_rounds
from trainers.methods.exchange.randomk.exchange import random_block, random_entries
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.traffic import collectives, cost
from trainers.traffic.buckets import split
from trainers.traffic.sizes import num_selected

FEW = st.lists(st.floats(-10, 10, width=32, allow_subnormal=False), min_size=1, max_size=60)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(sum(shape)))


def assert_ascending(indices: Tensor) -> None:
    assert indices.dtype == torch.int32
    assert torch.all(indices.diff() > 0)


@settings(deadline=None, max_examples=50)
@given(given_values=FEW, share=st.floats(0, 1))
def test_the_largest_entries_are_found(given_values: list[float], share: float):
    values = torch.tensor(given_values)
    count = num_selected(len(values), share)

    found = largest(values, count)

    assert_ascending(found)
    wanted = values[values != 0].abs().sort(descending=True).values[:count]
    assert torch.equal(values[found.long()].abs().sort(descending=True).values, wanted)


@pytest.mark.parametrize("values", [normal(300_000), normal(300_000).sign(), -normal(300_000).exp()])
@pytest.mark.parametrize("count", [1, 3000, 299_999])
def test_the_largest_of_many_are_found_from_a_sample(values: Tensor, count: int):
    found = largest(values, count)

    assert_ascending(found)
    assert torch.equal(values[found.long()].abs().sort().values, values.abs().topk(count).values.flip(0))


def test_a_sample_that_misses_the_large_entries_does_no_harm():
    values = torch.zeros(300_000)
    values[[1, 10, 299_998]] = torch.tensor([1.0, -2.0, 3.0])  # the sample's stride is 3

    assert largest(values, 2).tolist() == [10, 299_998]
    assert largest(values, 5).tolist() == [1, 10, 299_998]


@settings(deadline=None, max_examples=50)
@given(given_values=FEW, share=st.floats(0, 1))
def test_of_the_square_the_largest_entries_leave_no_more_than_the_share_not_sent(
    given_values: list[float], share: float
):
    values = torch.tensor(given_values, dtype=torch.float64)
    count = num_selected(len(values), share)
    rest = values.clone()

    rest[largest(values.float(), count).long()] = 0.0

    assert rest.square().sum() <= (1 - count / len(values)) * values.square().sum() * (1 + 1e-6) + 1e-30


def test_of_the_square_random_entries_leave_the_share_not_sent_on_average():
    values, left = normal(50), []

    for step in range(2000):
        rest = values.clone()
        rest[random_entries(50, 10, seed=(step,)).long()] = 0.0
        left.append(rest.square().sum())

    assert float(torch.stack(left).mean() / values.square().sum()) == pytest.approx(1 - 10 / 50, rel=0.02)


@pytest.mark.parametrize(("num_entries", "ratio", "expected"), [(30, 0.1, 3), (31, 0.1, 4), (5, 0.001, 1), (7, 1.0, 7)])
def test_a_ratio_is_rounded_up_to_entries(num_entries: int, ratio: float, expected: int):
    assert num_selected(num_entries, ratio) == expected


def sent_by_topk(gradient: Tensor, **knobs: object) -> Tensor:
    """Return what a single rank sends of its first gradient `(d,)`, in one bucket."""
    config = TopKConfig.model_validate({"values": "float32", "selection": "exact"} | knobs)
    buffer = GradientBuffer([gradient.shape], config, torch.device("cpu"))
    buffer.gradient.copy_(gradient)
    buffer.finish()
    build.exchange(config, buffer, Connection(1, Unpaced(), Ledger())).step(torch.zeros(()), config.density, 0.1)
    return buffer.gradient.clone()


@settings(deadline=None, max_examples=30)
@given(d=st.integers(50, 300), percent=st.integers(1, 50), aggregate=st.sampled_from(["gather", "sharded"]))
@example(d=100, percent=7, aggregate="gather")  # as floating-point numbers their product is above 7
def test_of_one_bucket_the_scopes_send_the_same_entries(d: int, percent: int, aggregate: str):
    gradient, density = normal(d), percent / 100

    of_scopes = [
        sent_by_topk(gradient, density=density, scope=scope, aggregate=aggregate) for scope in ("bucket", "global")
    ]

    assert torch.equal(*of_scopes)
    assert of_scopes[0].count_nonzero() == num_selected(d, density)


@pytest.mark.parametrize("draw", [random_entries, random_block])
@pytest.mark.parametrize(("num_entries", "count"), [(1, 1), (10, 10), (1000, 1), (100_000, 1000)])
def test_random_entries_are_distinct_and_the_same_for_the_same_seed(draw, num_entries: int, count: int):
    drawn = draw(num_entries, count, seed=(0, 5, 1))

    assert_ascending(drawn)
    assert len(drawn) == count
    assert 0 <= drawn.min() <= drawn.max() < num_entries
    assert torch.equal(drawn, draw(num_entries, count, seed=(0, 5, 1)))
    if count < num_entries:
        assert not torch.equal(drawn, draw(num_entries, count, seed=(0, 6, 1)))


@pytest.mark.parametrize("count", [1, 99, 100, 5000, 10_000])
def test_drawn_entries_are_those_of_the_generator_whatever_their_share(count: int):
    drawn = np.random.default_rng((0, 5, 1)).choice(10_000, count, replace=False, shuffle=False)

    assert random_entries(10_000, count, seed=(0, 5, 1)).tolist() == sorted(drawn)


@pytest.mark.parametrize("draw", [random_entries, random_block])
def test_every_entry_is_drawn_equally_often(draw):
    times = torch.zeros(20)

    for step in range(2000):
        times[draw(20, 5, seed=(step,)).long()] += 1

    assert torch.all((times / 2000 - 5 / 20).abs() < 5 * (0.25 * 0.75 / 2000) ** 0.5)


def sent_by_adacomp(corrected: Tensor, gradient: Tensor, bin_size: int) -> tuple[list[int], float]:
    """The definition, entry by entry."""
    most = [corrected[start : start + bin_size].abs().max().item() for start in range(0, len(corrected), bin_size)]
    ahead = (corrected + gradient).abs().tolist()
    indices = [index for index in range(len(ahead)) if ahead[index] >= most[index // bin_size] > 0]
    return indices, sum(most) / len(most)


@settings(deadline=None, max_examples=50)
@given(FEW, st.integers(2, 70))
def test_adacomp_sends_what_its_definition_says(given_values: list[float], bin_size: int):
    corrected = torch.tensor(given_values)
    gradient = normal(len(corrected))

    (indices, values), wanted = adacomp.select(corrected, gradient, bin_size=bin_size, room=3)

    expected, scale = sent_by_adacomp(corrected, gradient, bin_size)
    assert indices.dtype == torch.int32
    assert indices.tolist() == expected[:3]
    assert wanted == len(expected)
    assert adacomp.select_by_torch(corrected, gradient, bin_size)[0].nonzero().flatten().tolist() == expected
    torch.testing.assert_close(values, torch.where(corrected[expected[:3]] >= 0, scale, -scale))


@pytest.mark.parametrize(
    ("shape", "bin_size"),
    [((2000,), 500), ((40, 50), 500), ((20, 20, 5), 50), ((20, 4, 5, 5), 50), ((10, 8, 1, 5, 5), 50)],
    ids=["bias", "linear", "conv1d", "conv2d", "conv3d"],
)
def test_adacomp_has_small_bins_in_convolutions_along_any_axes_where_it_sends_and_where_it_foresees(shape, bin_size):
    config, gradient = AdaCompConfig(conv_bin=50, other_bin=500), normal(2000)
    [bucket] = split([shape], config)

    sent = ByBins(config, [bucket]).select(bucket, gradient, Residual(gradient), capacity=2000)

    assert sent.entries.indices.tolist() == sent_by_adacomp(gradient, gradient, bin_size)[0]
    room = collectives.capacity_for(ENTRIES_PER_BIN * 2000 / bin_size, 2000)
    foreseen = cost.step_traffic([shape], num_workers=2, exchange=config)
    assert foreseen == collectives.gather(2000, room, config.values, 2)


def test_adacomp_sends_nothing_of_nothing():
    entries, wanted = adacomp.select(torch.zeros(70), torch.zeros(70), bin_size=50, room=70)

    assert len(entries.indices) == wanted == 0


def dense(entries: Entries, d: int) -> Tensor:
    out = torch.zeros(d)
    scatter_add(out, entries)
    return out


def merged_over_a_tree(selected: list[Entries], memories: list[Tensor], count: int) -> Entries:
    """Play all ranks: `memories` get what merges drop, and rank 0's entries are returned."""
    held = list(selected)
    for transfers in merge_rounds(len(held)):
        for sender, receiver in transfers:
            held[receiver], dropped = merge(held[receiver], held[sender], count, len(memories[receiver]))
            memories[receiver] += dense(dropped, len(memories[receiver]))
    return held[0]


@pytest.mark.parametrize("num_workers", range(1, 9))
def test_a_global_top_k_loses_nothing(num_workers: int):
    d, count = 64, 6
    memories, gradients = [torch.zeros(d) for _ in range(num_workers)], normal(5, num_workers, d)
    total = torch.zeros(d)

    for step in range(5):
        selected = []
        for memory, gradient in zip(memories, gradients[step], strict=True):
            memory += gradient
            indices = largest(memory, count)
            selected.append(Entries(indices, memory[indices]))
            memory[indices] = 0.0
        result = merged_over_a_tree(selected, memories, count)
        assert_ascending(result.indices)
        assert len(result.indices) <= count
        total += dense(result, d)

    torch.testing.assert_close(total + sum(memories), gradients.sum((0, 1)), rtol=1e-5, atol=1e-5)


def test_with_room_for_all_a_global_top_k_is_the_sum():
    vectors = normal(5, 30)
    memories = [torch.zeros(30) for _ in vectors]

    result = merged_over_a_tree(
        [Entries(torch.arange(30, dtype=torch.int32), vector) for vector in vectors], memories, 30
    )

    torch.testing.assert_close(dense(result, 30), vectors.sum(0))
    assert not any(memory.any() for memory in memories)


@pytest.mark.parametrize("num_workers", range(1, 18))
def test_every_rank_but_the_first_sends_once_and_as_late_as_needed(num_workers: int):
    rounds = merge_rounds(num_workers)

    senders = [transfer.sender for transfers in rounds for transfer in transfers]
    assert sorted(senders) == list(range(1, num_workers))
    assert len(rounds) == (num_workers - 1).bit_length()
    for number, transfers in enumerate(rounds):
        done = {transfer.sender for earlier in rounds[:number] for transfer in earlier}
        ranks = [rank for transfer in transfers for rank in transfer]
        assert len(set(ranks)) == len(ranks)
        assert done.isdisjoint(ranks)


def test_a_global_top_k_of_nothing_is_nothing():
    nothing = Entries.room(5, 100)

    kept, dropped = merge(nothing, nothing, 5, 100)

    assert [len(each.used(100).indices) for each in (kept, dropped)] == [0, 0]
