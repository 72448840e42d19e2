"""DeMo: tiles of DCT coefficients, messages of the largest ones, and the resulting step."""

import math

import pytest
import torch
from torch import Tensor

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.methods import build
from trainers.methods.exchange.demo.exchange import TileCode, cosines, restore, restore_alike, transform
from trainers.methods.exchange.demo.layout import TileLayout, Tiling
from trainers.methods.exchange.demo.spec import DemoConfig
from trainers.traffic.buckets import Bucket, Layer, split

CPU = torch.device("cpu")
SHAPES = ((64, 64), (1,), (), (7,), (130,), (65, 3), (200, 100), (257, 5, 3))
#: Layers whose sides tiles of 64 divide, and others.
LAYERS = ((128, 64), (70,), (64, 65))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [1, 2, 33, 64])
def test_the_waves_are_orthonormal(size: int):
    waves = cosines(size, CPU)

    torch.testing.assert_close(waves @ waves.t(), torch.eye(size), atol=2e-6, rtol=0)
    torch.testing.assert_close(waves[0], torch.full((size,), size**-0.5))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layer_comes_back_from_its_coefficients_which_have_its_energy(shape: tuple[int, ...]):
    tiling = Tiling.of(shape)
    matrix = normal(tiling.rows, tiling.columns)

    coefficients = transform(matrix, tiling)

    assert coefficients.shape == (tiling.num_tiles, tiling.size)
    torch.testing.assert_close(coefficients.norm(), matrix.norm())
    for restored in (restore, restore_alike):
        torch.testing.assert_close(restored(coefficients, tiling), matrix, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tiles_fit_and_pad_less_than_one_entry_each(shape: tuple[int, ...]):
    tiling = Tiling.of(shape)

    assert tiling.rows * tiling.columns == math.prod(shape)
    assert max(tiling.height, tiling.width) <= 64
    assert 0 <= tiling.height * tiling.down - tiling.rows < tiling.down
    assert 0 <= tiling.width * tiling.across - tiling.columns < tiling.across


def test_a_wave_is_one_coefficient():
    tiling = Tiling.of((128, 64))
    matrix = torch.zeros(128, 64)
    matrix[64:] = 3 * torch.outer(cosines(64, CPU)[5], cosines(64, CPU)[9])

    coefficients = transform(matrix, tiling)

    assert coefficients[1, 5 * 64 + 9] == pytest.approx(3, abs=1e-5)
    coefficients[1, 5 * 64 + 9] = 0
    assert coefficients.abs().max() < 1e-5


def test_a_message_holds_the_largest_coefficients_of_each_tile_in_the_precision_of_float16():
    [bucket] = split(LAYERS, DemoConfig())
    layout, values = TileLayout(bucket, 0.01), normal(bucket.num_elements)
    code, payload = TileCode(layout, CPU), torch.zeros(layout.num_bytes, dtype=torch.uint8)

    code.encode(values, payload)
    indices, decoded = code.decoded(payload)

    begin, expected = 0, torch.zeros(layout.num_coefficients)
    for layer, tiling, per_tile in layout.parts:
        every = transform(values[bucket.within(layer)].view(tiling.rows, tiling.columns), tiling)
        largest = every.abs().topk(per_tile, dim=1).indices
        kept = torch.zeros_like(every).scatter(1, largest, every.gather(1, largest))
        expected[begin : begin + every.numel()] = kept.flatten()
        begin += every.numel()
    assert torch.equal(indices.sort().values, indices)
    found = torch.zeros_like(expected).index_put((indices,), decoded)
    torch.testing.assert_close(found, expected, rtol=2**-10, atol=1e-3)
    assert torch.equal(found != 0, expected != 0)


def test_a_coefficient_takes_28_bits():
    [bucket] = split(((640, 640),), DemoConfig())
    bytes_of_all = 100 * 32 * 28 // 8 + 4

    assert TileLayout(bucket, 1 / 128).num_bytes == bytes_of_all
    assert DemoConfig().bucket_traffic(bucket, 3, None).bytes == 2 * (4 + bytes_of_all)
    assert TileLayout(Bucket(0, (Layer(0, (10,)),)), 1 / 128).num_sent == 1


def stepped(config: DemoConfig, gradient: Tensor) -> Tensor:
    """Return the direction that one worker makes of `gradient` `(d,)`."""
    buffer = GradientBuffer(LAYERS, config, CPU)
    buffer.gradient.copy_(gradient)
    buffer.finish()
    build.exchange(config, buffer, Connection(1, Unpaced(), Ledger())).step(torch.ones(()), None, 0.1)
    return buffer.gradient


@pytest.mark.parametrize("scale", [2.0**-60, 1.0, 2.0**60])
def test_a_direction_is_of_signs_and_has_no_scale(scale: float):
    gradient = normal(sum(map(math.prod, LAYERS)))

    direction = stepped(DemoConfig(), scale * gradient)

    assert torch.equal(direction.abs(), torch.ones_like(direction))
    assert torch.equal(direction, stepped(DemoConfig(), gradient))


def test_tiles_without_a_gradient_stay():
    gradient = normal(sum(map(math.prod, LAYERS)))
    gradient[: 64 * 64] = 0

    direction = stepped(DemoConfig(), gradient)

    assert not direction[: 64 * 64].any()
    assert direction[64 * 64 :].all()
