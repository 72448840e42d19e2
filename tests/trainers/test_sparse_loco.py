"""Messages of the largest entries of each chunk, and the memory of the rest."""

import math

import pytest
import torch
from torch import Tensor

from trainers.exchange.kernels.chunks import LEAST_CHUNK, by_torch, largest_of_each
from trainers.methods.exchange.sparse_loco.exchange import LARGER, ChunkCode
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.traffic.buckets import split
from trainers.traffic.chunk_layout import ChunkLayout
from trainers.traffic.sizes import num_selected


def normal(d: int, seed: int = 0) -> Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(seed))


def laplace(d: int) -> Tensor:
    uniform = torch.rand(d, generator=torch.Generator().manual_seed(1)) - 0.5
    return -uniform.sign() * torch.log1p(-2 * uniform.abs())


def message(values: Tensor, layout: ChunkLayout) -> Tensor:
    payload = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    ChunkCode(layout).encode(values, payload)
    return payload


def sent(values: Tensor, layout: ChunkLayout) -> Tensor:
    """Return what the others decode `(d,)`."""
    indices, decoded = ChunkCode(layout).decoded(message(values, layout))
    return torch.zeros_like(values).index_put((indices,), decoded)


def chosen(values: Tensor, layout: ChunkLayout) -> list[int]:
    """Return what a message is to hold: of each chunk the largest entries, of equal ones the first."""
    found = []
    for start in range(0, len(values), layout.chunk):
        magnitudes = values[start : start + layout.chunk].abs().tolist()
        order = sorted(range(len(magnitudes)), key=lambda place: (-magnitudes[place], place))
        found += sorted(start + place for place in order[: num_selected(len(magnitudes), layout.density)])
    return found


@pytest.mark.parametrize("d", [1, 7, 99, 100, 101, 1000, 1037])
@pytest.mark.parametrize("density", [0.001, 0.05, 1.0])
def test_of_each_chunk_the_largest_entries_are_sent_and_of_the_last_one_its_share(d: int, density: float):
    layout, values = ChunkLayout(d, 100, density), normal(d)

    indices, _ = ChunkCode(layout).decoded(message(values, layout))

    assert indices.tolist() == chosen(values, layout)
    assert len(indices) == layout.num_sent


def test_of_equal_magnitudes_those_that_come_first_are_sent():
    values = torch.tensor([1.0, -2.0, 2.0, 2.0, -2.0, 1.0, 0.0, -0.0])

    assert largest_of_each(values.unsqueeze(0), 2).tolist() == [[1, 2]]
    assert largest_of_each(torch.zeros(1, 8), 3).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("length", [LEAST_CHUNK, 1001, 4096])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_the_compiled_loop_takes_exactly_the_entries_that_torch_does(length: int, share: float):
    chunks, count = normal(8 * length).view(length, 8).t(), max(1, round(share * length))  # not contiguous
    chunks[0], chunks[1], chunks[2, ::2] = 0.0, (chunks[1] * 2).round(), -0.0  # many of them equal
    chunks[3, 5], chunks[3, 9], chunks[4, 3::7] = math.nan, -math.inf, math.inf
    chunks[5], chunks[6] = chunks[5] * 1e-42, chunks[6].sign()

    assert torch.equal(largest_of_each(chunks, count), by_torch(chunks, count))


@pytest.mark.parametrize("d", [1, 4095, 4096, 4097, 301_066])
def test_an_entry_takes_14_bits_and_a_chunk_two_magnitudes(d: int):
    layout = ChunkLayout(d, 4096, 1 / 64)
    exact = 14 * layout.num_sent / 8 + 4 * math.ceil(d / 4096) + 4

    assert exact <= layout.num_bytes < exact + 6  # whole bytes of codes and of places, and whole words


def test_a_whole_bucket_takes_exactly_its_entries_and_its_tables():
    assert ChunkLayout(8 * 4096, 4096, 1 / 64).num_bytes == 8 * 64 * 14 // 8 + 8 * 4 + 4


def test_the_forecast_follows_the_density_asked_for():
    config = SparseLoCoConfig(density=(0.01, 1.0))
    [bucket] = split([(100, 100)], config)

    for level in (0.01, 1.0):
        foreseen = config.bucket_traffic(bucket, 3, level)
        assert foreseen.bytes == 2 * (4 + ChunkLayout(10_000, 4096, level).num_bytes)
    with pytest.raises(ValueError, match="must be given where it is searched"):
        config.bucket_traffic(bucket, 3, None)


@pytest.mark.parametrize(("values", "wrong"), [(normal(2**20), 0.07), (laplace(2**20), 0.125)])
def test_both_bits_of_a_value_are_used_and_say_more_than_a_sign_and_one_magnitude(values: Tensor, wrong: float):
    layout = ChunkLayout(len(values), 4096, 1 / 64)
    payload = message(values, layout)
    indices, decoded = ChunkCode(layout).decoded(payload)
    selected = values[indices]
    codes = payload[layout.sections.codes]
    counts = torch.stack([codes >> shift & 3 for shift in (0, 2, 4, 6)]).flatten().bincount(minlength=4)
    with_one_bit = selected.sign() * selected.abs().mean()

    relative = (selected - decoded).norm() / selected.norm()
    assert relative < wrong
    assert relative < 0.7 * (selected - with_one_bit).norm() / selected.norm()
    assert counts.min() > 0.1 * layout.num_sent
    assert int(counts[LARGER:].sum()) < layout.num_sent


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**-30, 2.0**100])
def test_magnitudes_have_the_precision_of_float16_at_any_scale(scale: float):
    layout, values = ChunkLayout(1000, 100, 0.1), normal(1000)

    assert torch.equal(sent(scale * values, layout), scale * sent(values, layout))


def test_what_two_magnitudes_can_say_arrives_and_nothing_is_left():
    values = torch.zeros(300)
    values[torch.arange(0, 300, 50)] = torch.tensor([2.0, -0.5, 2.0, 0.5, -2.0, -0.5])

    assert torch.equal(sent(values, ChunkLayout(300, 100, 0.02)), values)


def test_a_message_of_what_is_not_finite_can_be_decoded():
    values = normal(1000)
    values[7], values[450] = math.nan, math.inf

    assert not sent(values, ChunkLayout(1000, 100, 0.1)).isfinite().all()


def test_a_message_never_leaves_more_than_there_was():
    for seed in range(20):
        values = normal(1000, seed) ** 3
        for density in (0.001, 0.1, 1.0):
            assert (values - sent(values, ChunkLayout(1000, 128, density))).norm() < values.norm()
