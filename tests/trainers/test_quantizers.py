from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError
from torch import Tensor

from trainers.exchange.kernels.codes import (
    add_levels,
    added_by_torch,
    nearest_by_torch,
    pack,
    round_at_random,
    round_to_nearest,
    rounded_by_torch,
    unpack,
)
from trainers.exchange.quantizer import Quantizer, Segments
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.methods.exchange.doublesqueeze.spec import DoubleSqueezeConfig
from trainers.methods.exchange.onebit.exchange import OneBit
from trainers.methods.exchange.onebit.spec import OneBitConfig
from trainers.methods.exchange.qsgd.exchange import Qsgd
from trainers.methods.exchange.qsgd.spec import QsgdConfig
from trainers.methods.exchange.signsgd.exchange import MajoritySign, ScaledSign
from trainers.methods.exchange.signsgd.spec import SignSgdConfig
from trainers.methods.exchange.terngrad.exchange import TernGrad
from trainers.methods.exchange.terngrad.spec import TernGradConfig
from trainers.spec.quantized import QuantizedBase
from trainers.traffic import sizes

SEGMENTS = ((0, 300), (300, 301), (301, 1000))
D = 1000


def layout_of(config: QuantizedBase, segments: Segments) -> sizes.CodedLayout:
    return config.layout(segments[-1][1], len(segments))


def majority(segments: Segments = SEGMENTS) -> Quantizer:
    return MajoritySign(segments, layout_of(SignSgdConfig(feedback=False), segments))


def scaled_sign(segments: Segments = SEGMENTS) -> Quantizer:
    return ScaledSign(segments, layout_of(SignSgdConfig(), segments))


def onebit(segments: Segments = SEGMENTS) -> Quantizer:
    return OneBit(segments, layout_of(OneBitConfig(), segments))


def terngrad(segments: Segments = SEGMENTS, *, clip: float = 2.5) -> Quantizer:
    return TernGrad(segments, layout_of(TernGradConfig(), segments), clip=clip)


def qsgd(segments: Segments = SEGMENTS, **knobs: Any) -> Quantizer:
    config = QsgdConfig(**knobs)
    return Qsgd(segments, layout_of(config, segments), levels=config.levels, bucket=config.bucket, norm=config.norm)


QUANTIZERS: dict[str, Callable[[Segments], Quantizer]] = {
    "majority": majority,
    "scaled sign": scaled_sign,
    "onebit": onebit,
    "terngrad": terngrad,
    "terngrad unclipped": partial(terngrad, clip=float("inf")),
    "qsgd": partial(qsgd, norm="l2"),
    "qsgd max 5": partial(qsgd, levels=5),
    "qsgd ternary": partial(qsgd, levels=1, bucket=1000, norm="l2"),
}
KINDS = pytest.mark.parametrize("kind", QUANTIZERS)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(sum(shape)))


def encoded(quantizer: Quantizer, values: Tensor, seed: int = 0) -> Tensor:
    payload = torch.full((quantizer.num_bytes,), 0xFF, dtype=torch.uint8)
    quantizer.encode(values, payload, generator(seed))
    return payload


def sent(quantizer: Quantizer, values: Tensor, seed: int = 0) -> Tensor:
    """Return what the peers make of `values` `(d,)`."""
    out = torch.zeros_like(values)
    quantizer.add_decoded(encoded(quantizer, values, seed), out)
    return out


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=70), st.sampled_from([1, 2, 4, 8]))
def test_codes_survive_packing(given_codes: list[int], bits: int):
    codes = torch.tensor([code % 2**bits for code in given_codes], dtype=torch.uint8)
    packed, back = torch.empty(-(-len(codes) * bits // 8), dtype=torch.uint8), torch.empty_like(codes)

    pack(codes, bits, packed)
    unpack(packed, bits, back)

    assert torch.equal(back, codes)


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_a_gpu_would_round_as_the_cpu_does(levels: int):
    values, scales = 3 * normal(1000), normal(8).abs()
    scales[2] = 0.0
    seed = int(torch.randint(2**63 - 1, (), generator=generator(4)))

    codes = round_at_random(values, scales, group=128, levels=levels, generator=generator(4))

    assert torch.equal(codes, rounded_by_torch(values, scales.repeat_interleave(128)[:1000], levels, seed))
    assert codes.max() <= 2 * levels


@pytest.mark.parametrize("levels", [7, 127])
def test_a_gpu_would_round_to_the_nearest_as_the_cpu_does(levels: int):
    values, steps = normal(1000), normal(8).abs().half().float()
    steps[2], values[3:6] = 0.0, torch.tensor([1.5, 2.5, -2.5]) * steps[0]  # half-way: to the even one

    codes = round_to_nearest(values, steps, group=128, levels=levels)

    assert torch.equal(codes, nearest_by_torch(values, steps.repeat_interleave(128)[:1000], levels))
    assert codes[3:6].tolist() == [levels + 2, levels + 2, levels - 2]
    assert codes.max() <= 2 * levels


@pytest.mark.parametrize("zero", [1, 2.5, 127])
def test_a_gpu_would_add_levels_as_the_cpu_does(zero: float):
    codes = torch.arange(256, dtype=torch.uint8).repeat(4)[:1000]
    steps, sums = normal(8), normal(1000)
    by_torch = sums.clone()

    add_levels(codes, steps, sums, group=128, zero=zero)
    added_by_torch(codes, steps.repeat_interleave(128)[:1000], by_torch, zero)

    assert torch.equal(by_torch, sums)


@KINDS
@pytest.mark.parametrize("segments", [SEGMENTS, ((0, 1),), ((0, 128), (128, 256)), ((0, 3), (3, 129))])
def test_payloads_have_whole_words_and_are_reproducible(kind: str, segments: Segments):
    quantizer = QUANTIZERS[kind](segments)
    values = normal(segments[-1][1])

    payload = encoded(quantizer, values, seed=3)

    assert quantizer.num_bytes % 4 == 0
    assert torch.equal(payload, encoded(quantizer, values, seed=3))


@KINDS
def test_decoding_accumulates_and_can_take_away(kind: str):
    quantizer, values = QUANTIZERS[kind](SEGMENTS), normal(D)
    payload, out = encoded(quantizer, values), torch.full((D,), 0.5)

    quantizer.add_decoded(payload, out)
    assert torch.equal(out, 0.5 + sent(quantizer, values))
    quantizer.add_decoded(payload, out, factor=-1.0)

    torch.testing.assert_close(out, torch.full((D,), 0.5))


@KINDS
@pytest.mark.parametrize("values", [torch.zeros(D), -normal(D).abs(), torch.full((D,), -2.0), 1e-30 * normal(D)])
def test_what_is_sent_points_the_same_way(kind: str, values: Tensor):
    q = sent(QUANTIZERS[kind](SEGMENTS), values)

    assert torch.all(torch.isfinite(q))
    assert torch.all(q * values.sign() >= 0)


@pytest.mark.parametrize("kind", ["scaled sign", "onebit", "terngrad", "terngrad unclipped", "qsgd", "qsgd ternary"])
def test_zeros_are_sent_as_zeros(kind: str):
    assert torch.equal(sent(QUANTIZERS[kind](SEGMENTS), torch.zeros(D)), torch.zeros(D))


@pytest.mark.parametrize("kind", ["scaled sign", "onebit", "terngrad"])
def test_a_loud_layer_does_not_drown_out_the_others(kind: str):
    values = normal(D)
    louder = values.clone()
    louder[:300] *= 1e6

    quantizer = QUANTIZERS[kind](SEGMENTS)

    assert torch.equal(sent(quantizer, louder)[300:], sent(quantizer, values)[300:])


@pytest.mark.parametrize("kind", ["qsgd", "qsgd max 5", "qsgd ternary", "terngrad unclipped"])
def test_the_mean_of_what_is_sent_is_right(kind: str):
    values = normal(40)
    quantizer = QUANTIZERS[kind](((0, 40),))

    draws = torch.stack([sent(quantizer, values, seed) for seed in range(1000)]).double()

    error_std = draws.std(0) / 1000**0.5
    assert torch.all((draws.mean(0) - values).abs() <= 5 * error_std + 1e-6)


def test_qsgd_s_error_stays_below_its_bound():
    values, levels = normal(128), 4
    quantizer = qsgd(((0, 128),), levels=levels, norm="l2")

    errors = torch.stack([(sent(quantizer, values, seed) - values).square().sum() for seed in range(100)])

    bound = min(128 / levels**2, 128**0.5 / levels)  # Alistarh et al., lemma 3.1
    assert 0 < errors.mean() <= bound * values.square().sum()


def test_qsgd_of_all_levels_loses_less_than_one_of_them():
    values = normal(D)

    error = (sent(qsgd(), values) - values).abs()

    assert error.max() < values.abs().max() / 127 * (1 + 1e-5)


def test_terngrad_sends_three_values_a_layer_and_clips():
    values = normal(D)
    values[0] = 100.0

    layer = sent(terngrad(), values)[:300]

    clip = 2.5 * values[:300].square().mean().sqrt().item()
    assert layer.unique().tolist() == pytest.approx([-clip, 0.0, clip])
    assert layer[0] == layer.max()


def test_terngrad_clips_no_layer_to_nothing():
    assert sent(terngrad(((0, 5), (5, 6))), torch.full((6,), -3.0)).tolist() == [-3.0] * 6


def test_the_scaled_sign_keeps_each_layer_s_mean_magnitude():
    values = normal(D)

    q = sent(scaled_sign(), values)

    for start, stop in SEGMENTS:
        layer = values[start:stop]
        torch.testing.assert_close(q[start:stop], layer.abs().mean() * layer.sign())


def test_the_scaled_sign_contracts_by_its_formula():
    p = normal(D)

    error = p - sent(scaled_sign(((0, D),)), p)

    expected = (1 - p.abs().sum() ** 2 / (D * p.square().sum())) * p.square().sum()
    torch.testing.assert_close(error.square().sum(), expected, rtol=1e-5, atol=0.0)


def test_onebit_sends_each_layer_s_sum():
    values = normal(D) + 0.3

    q = sent(onebit(), values)

    for start, stop in SEGMENTS:
        torch.testing.assert_close(q[start:stop].sum(), values[start:stop].sum(), rtol=1e-5, atol=1e-4)
        assert len(q[start:stop].unique()) <= 2
        assert torch.equal(q[start:stop] >= 0, values[start:stop] >= 0)


@pytest.mark.parametrize("kind", ["scaled sign", "onebit"])
def test_what_a_quantizer_with_memory_leaves_is_at_right_angles_to_what_it_sends(kind: str):
    values = normal(D) + 0.3

    q = sent(QUANTIZERS[kind](SEGMENTS), values).double()

    # So the square that is left is that of the values less that of what is sent: never more than there was.
    assert abs(q @ (values.double() - q)) < 1e-5 * q.square().sum()


@pytest.mark.parametrize("kind", ["scaled sign", "onebit"])
def test_with_memory_what_was_sent_and_what_is_kept_add_up(kind: str):
    quantizer, gradients = QUANTIZERS[kind](SEGMENTS), normal(20, D)
    residual, all_sent = torch.zeros(D), torch.zeros(D)

    for gradient in gradients:
        residual += gradient
        payload = encoded(quantizer, residual)
        quantizer.add_decoded(payload, all_sent)
        quantizer.add_decoded(payload, residual, factor=-1.0)

    assert quantizer.uses_memory
    torch.testing.assert_close(all_sent + residual, gradients.sum(0), rtol=1e-5, atol=1e-4)


def test_the_majority_decides_and_a_draw_is_none():
    quantizer, total = majority(((0, 3),)), torch.zeros(3)
    workers = torch.tensor([[1.0, -1.0, 5.0], [-0.1, -0.0, -9.0], [-3.0, -2.0, 0.0], [-1.0, 4.0, -1.0]])

    for values in workers:
        quantizer.add_decoded(encoded(quantizer, values), total)
    quantizer.combine(total, len(workers))

    assert total.tolist() == [-1.0, 0.0, 0.0]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_votes_on_noise_lead_nowhere(num_workers: int):
    noise, quantizer = normal(200, num_workers, 100), majority(((0, 100),))
    mean = torch.zeros(100)

    for of_step in noise:
        total = torch.zeros(100)
        for values in of_step:
            quantizer.add_decoded(encoded(quantizer, values), total)
        quantizer.combine(total, num_workers)
        mean += total / len(noise)

    assert abs(float(mean.mean())) < 4 / (200 * 100) ** 0.5  # four standard errors; a draw that counts gives 0.5 of two


@pytest.mark.parametrize("kind", ["scaled sign", "onebit", "terngrad", "qsgd"])
def test_others_are_averaged(kind: str):
    total = torch.tensor([6.0, -3.0])

    QUANTIZERS[kind](((0, 2),)).combine(total, 3)

    assert total.tolist() == [2.0, -1.0]


@pytest.mark.parametrize(
    ("layout", "num_bytes"),
    [
        (SignSgdConfig(feedback=False).layout(1001, 3), 128),  # 125.125, in whole words
        (SignSgdConfig().layout(1000, 3), 128 + 12),
        (OneBitConfig().layout(1000, 3), 128 + 24),
        (TernGradConfig().layout(1000, 3), 252 + 12),
        (QsgdConfig(levels=127, bucket=128).layout(1000, 3), 1000 + 32),
        (QsgdConfig(levels=7, bucket=64).layout(1000, 3), 500 + 64),
        (DoubleSqueezeConfig().layout(1001, 100), 128 + 44),
        (BlockwiseConfig(bits=4).layout(1000, 64), 4 + 500 + 32),
        (BlockwiseConfig(bits=8).layout(960, 64), 4 + 960 + 32),  # 15 scales of two bytes, in whole words
    ],
)
def test_a_payload_takes_as_many_bits_as_its_codes(layout: sizes.CodedLayout, num_bytes: int):
    assert layout.num_bytes == num_bytes


@pytest.mark.parametrize(("levels", "bits"), [(1, 2), (2, 4), (7, 4), (8, 8), (127, 8)])
def test_a_code_has_room_for_every_level(levels: int, bits: int):
    assert sizes.code_bits(levels) == bits


@pytest.mark.parametrize(("field", "value"), [("levels", 0), ("levels", 128), ("bucket", 0)])
def test_qsgd_names_a_field_outside_its_range(field: str, value: int):
    with pytest.raises(ValidationError, match=rf"(?s){field}.*input_value={value},"):
        QsgdConfig(**{field: value})
