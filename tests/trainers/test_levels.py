"""Level policies, as pure functions and on a single worker."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from exchange_harness import SHAPES, Bench, D, Place, gradients
from hypothesis import given, strategies as st

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.dense import DenseExchange
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.pack import pack, unpack
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.dgc.spec import DgcConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.threshold.exchange import threshold_for
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.levels.accordion import Accordion
from trainers.methods.levels.cat import (
    Numbers,
    best_count,
    gain_of_drawn,
    gain_of_largest,
    gain_of_signs,
    scale_of_draws,
)
from trainers.methods.levels.prices import payload_bits, stated
from trainers.methods.levels.regimes import is_critical
from trainers.methods.levels.steered import with_epoch
from trainers.methods.levels.warmup import density_at
from trainers.methods.sync.accordion_batch.policy import Holding
from trainers.methods.sync.accordion_batch.spec import AccordionBatchConfig
from trainers.snapshot import Kept
from trainers.spec.levels import (
    AccordionConfig,
    AffineCost,
    CalibratedConfig,
    CatConfig,
    PacketCost,
    PayloadCost,
    WarmupConfig,
)
from trainers.traffic import cost
from trainers.traffic.payload_layout import PayloadLayout
from trainers.workload import WorkloadError

# -- warm-up ------------------------------------------------------------------------------------------------


def test_the_warm_up_to_a_thousandth_has_the_published_densities():
    config = WarmupConfig(steps=8)

    densities = [density_at(step, 0.001, config) for step in range(9)]

    assert densities[::2] == pytest.approx([0.2512, 0.0631, 0.01585, 0.00398, 0.001], rel=1e-3)
    assert densities[1::2] == densities[:8:2]


@given(st.floats(1e-4, 1.0), st.integers(1, 50), st.integers(1, 9))
def test_a_warm_up_falls_and_is_never_below_its_target(target: float, steps: int, stages: int):
    densities = [density_at(step, target, WarmupConfig(steps=steps, stages=stages)) for step in range(steps + 3)]

    assert densities == sorted(densities, reverse=True)
    assert densities[-3:] == [target] * 3 and min(densities) == target


def _densities(config: ExchangeConfig, num_steps: int) -> list[float]:
    bench = Bench(config, Place(0, 1))
    return [bench.step(gradients(0, step), None).density or 0.0 for step in range(num_steps)]


def test_an_exchange_warms_up():
    config = TopKConfig(density=0.01, selection="exact", levels=WarmupConfig(steps=4, stages=2))

    assert _densities(config, 5) == pytest.approx([0.215, 0.215, 0.0464, 0.0464, 0.01], abs=0.002)


# -- a calibrated threshold ---------------------------------------------------------------------------------


def test_the_thresholds_of_the_authors_table_are_those_of_the_formula():
    assert [threshold_for(0.001 * d) for d in (11_173_962, 6_166_250)] == pytest.approx([4.73e-3, 6.37e-3], rel=1e-3)


def test_a_calibrated_threshold_follows_from_the_density_and_holds_for_the_run():
    bench = Bench(ThresholdConfig(density=0.02, hold="run", levels=CalibratedConfig()), Place(0, 1))

    held = []
    for step in range(4):
        bench.step(gradients(0, step), None)
        held.append(bench.exchange.threshold)

    assert held == [1 / (2 * math.sqrt(0.02 * D))] * 4


# -- Accordion ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [(None, 1.0, True), (0.0, 1.0, True), (2.0, 1.0, True), (2.0, 3.0, True), (2.0, 1.01, False), (2.0, 2.9, False)],
)
def test_a_regime_is_critical_at_first_and_when_the_norm_has_changed_by_eta(before, now, expected: bool):
    assert is_critical(before, now, 0.5) is expected


WIRE = Connection(1, Unpaced(), Ledger())


def _levels(scales: Sequence[float], rates: Callable[[int], float] = lambda _: 0.1, **changes: Any) -> list[float]:
    """Return the level of each step on gradients of so many epochs, which have `scales`; 3 steps are an epoch."""
    config = TopKConfig(density=0.1, levels=AccordionConfig(critical=0.5, epoch_steps=3, **changes))
    bench, levels = Bench(config, Place(0, 1)), []
    policy = Accordion(config.levels, [bench.buffer.layers], bench.buffer.gradient)
    for step in range(3 * len(scales)):
        levels.append(policy.level(0.1, rates(step)))
        for bucket in bench.buffer.buckets:
            policy.watch(bucket, torch.full((bucket.num_elements,), scales[step // 3]))
        policy.commit(WIRE)
    return levels


def test_accordion_compares_at_the_ends_of_epochs_0_10_20_and_between_them_nothing_changes():
    scales = [1.0] * 22
    scales[15] = 100.0  # not looked at
    scales[20] = 2.0

    levels = _levels([*scales, 1.0], interval=10)

    assert levels == [0.5] * 33 + [0.1] * 30 + [0.5] * 6


def test_accordion_adds_up_gradients_only_in_epochs_that_it_compares():
    levels = AccordionConfig(critical=0.5, epoch_steps=3, interval=2)
    bench, is_summed = Bench(TopKConfig(density=0.1, levels=levels), Place(0, 1)), []
    policy = Accordion(levels, [bench.buffer.layers], bench.buffer.gradient)
    for _ in range(9):
        policy.level(0.1, 0.1)
        for bucket in bench.buffer.buckets:
            policy.watch(bucket, torch.ones(bucket.num_elements))
        policy.commit(WIRE)
        is_summed.append(bool(policy.tensors()["sum"].any()))

    assert is_summed == [True, True, False] + [False] * 3 + [True, True, False]


def test_a_fall_of_the_learning_rate_makes_all_critical_until_the_next_comparison():
    def fall(step: int) -> float:
        return 0.1 if step < 8 else 0.01

    kept = {"interval": 2}

    assert _levels([1.0] * 8, **kept) == [0.5] * 9 + [0.1] * 15
    assert _levels([1.0] * 8, lambda step: 0.1 if step < 13 else 0.01, **kept) == (
        [0.5] * 9 + [0.1] * 4 + [0.5] * 2 + [0.1] * 9
    )
    assert _levels([1.0] * 8, lambda step: 0.1 + step, **kept) == _levels([1.0] * 8, **kept)
    assert _levels([1.0] * 8, fall, follow_decay=False, **kept) == _levels([1.0] * 8, **kept)


def _with_one_restless_layer(config: ExchangeConfig) -> Bench:
    """Return an exchange after two epochs of one step, in the second of which the last layer's gradients grow."""
    bench, start = Bench(config, Place(0, 1)), D - math.prod(SHAPES[-1])
    for scale in (1.0, 3.0):
        gradient = gradients(0, 0)
        gradient[start:] *= scale
        bench.step(gradient, None)
    return bench


LAYERED = AccordionConfig(critical=2, interval=1, epoch_steps=1)
LAYERED_POWERSGD = PowerSgdConfig(rank=1, values="float32", levels=LAYERED)


def test_layers_have_ranks_of_their_own():
    bench = _with_one_restless_layer(LAYERED_POWERSGD)

    bench.step(gradients(0, 7), None)

    by_layer = [bench.buffer.of(layer) for layer in bench.buffer.layers]
    ranks = [int(torch.linalg.matrix_rank(by_layer[index].view(SHAPES[index][0], -1))) for index in (0, 1, 3)]
    assert ranks == [1, 1, 2]


def test_layers_have_densities_of_their_own():
    levels = LAYERED.model_copy(update={"critical": 0.5})
    bench = _with_one_restless_layer(TopKConfig(density=0.1, selection="exact", scope="layer", levels=levels))

    bench.step(gradients(0, 7), None)

    sent = [int(bench.buffer.of(layer).count_nonzero()) for layer in bench.buffer.layers]
    assert sent == [40, 120, 3, 180]


def test_a_step_that_is_not_finite_changes_nothing_that_accordion_knows():
    bench = _with_one_restless_layer(PowerSgdConfig(rank=1, levels=LAYERED))
    tensors, scalars = bench.state()

    assert bench.step(gradients(0, 3) * math.inf, None, rate=0.01).diverged

    after = bench.state()
    assert after[1] == scalars and all(torch.equal(after[0][name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    "config", [TopKConfig(density=0.1, levels=WarmupConfig(steps=9)), LAYERED_POWERSGD], ids=["warm-up", "accordion"]
)
def test_other_workers_take_over_what_the_first_one_knew(config: ExchangeConfig):
    first, second = (_with_one_restless_layer(config) for _ in range(2))
    new = Bench(config, Place(0, 1))
    second.step(gradients(1, 5), None)

    for index, old in enumerate((first, second)):
        new.exchange.inherit(Kept(old.exchange.tensors(), old.exchange.scalars(), index=index, of=2))

    assert new.exchange.scalars()["levels"] == first.exchange.scalars()["levels"]
    taken, known = (
        {name: tensor.tolist() for name, tensor in bench.exchange.tensors().items() if name.startswith("levels.")}
        for bench in (new, first)
    )
    assert taken == known


def test_an_epoch_is_that_of_the_data_unless_the_job_gives_one():
    config = TopKConfig(density=0.1, levels=AccordionConfig(critical=0.5))
    given = TopKConfig(density=0.1, levels=AccordionConfig(critical=0.5, epoch_steps=7))

    assert with_epoch(config, 22).levels == AccordionConfig(critical=0.5, epoch_steps=22)
    assert with_epoch(given, 22) == given
    with pytest.raises(WorkloadError, match="epoch_steps"):
        Bench(with_epoch(config, None), Place(0, 1))


@pytest.mark.parametrize("exchange", [NoneConfig(), TopKConfig(density=0.1)], ids=["none", "topk"])
def test_a_batch_that_has_grown_sends_what_one_step_did(exchange: ExchangeConfig):
    shared = {"num_workers": 3, "exchange": exchange, "level": exchange.level}

    assert AccordionBatchConfig().meeting_traffic(SHAPES, **shared) == cost.step_traffic(SHAPES, **shared)


def test_before_a_batch_grows_a_step_writes_nothing_of_what_is_held():
    buffer = GradientBuffer(SHAPES, NoneConfig(), torch.device("cpu"))
    holding = Holding(DenseExchange(buffer, Connection(1, Unpaced(), Ledger())), buffer)
    held = holding.tensors()["held"]
    before = held._version

    holding.commit()

    assert holding.tensors()["held"] is held and held._version == before


# -- CAT ----------------------------------------------------------------------------------------------------

COSTS = (
    PayloadCost(),
    AffineCost(),
    AffineCost(fixed=5000),
    PacketCost(),
    PacketCost(fixed=0, packet_bytes=40),
)


def _falling(d: int) -> Numbers:
    """Return `d` magnitudes, the last tenth of which are zeros."""
    magnitudes = np.sort(np.abs(np.random.default_rng(d).standard_normal(d) ** 3))[::-1]
    magnitudes[d - d // 10 :] = 0.0
    return magnitudes


def _alpha(m: Numbers, count: int) -> float:
    return float(sum(m[:count] ** 2) / sum(m**2))


def _beta(m: Numbers, count: int) -> float:
    """Return <g, q>^2 / (||g||^2 ||q||^2) for q, the signs of the largest."""
    signs = np.where(np.arange(len(m)) < count, np.sign(m), 0.0)
    return float(np.dot(m, signs) ** 2 / (np.dot(m, m) * count))


def _probabilities(m: Numbers, count: int) -> Numbers:
    """Return min(1, c m_j) that add up to `count`, c found by bisection."""
    low, high = 0.0, 1e9
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1.0, middle * m).sum() < count else (low, middle)
    return np.minimum(1.0, high * m)


def _omega(m: Numbers, count: int) -> float:
    chances = _probabilities(m, count)
    return float(sum(m**2) / sum(m[m > 0] ** 2 / chances[m > 0]))


GAINS = {"largest": (gain_of_largest, _alpha), "signs": (gain_of_signs, _beta), "drawn": (gain_of_drawn, _omega)}


@pytest.mark.parametrize("name", GAINS)
@pytest.mark.parametrize("d", [1, 2, 9, 50])
def test_gains_are_those_of_their_definitions(name: str, d: int):
    gain, definition = GAINS[name]
    magnitudes = _falling(d)

    np.testing.assert_allclose(gain(magnitudes), [definition(magnitudes, 1 + n) for n in range(d)], rtol=1e-6)


@pytest.mark.parametrize("values", ["float16", "sign"])
@pytest.mark.parametrize("price", COSTS, ids=str)
@pytest.mark.parametrize("name", GAINS)
def test_no_static_count_is_more_efficient_than_the_chosen_one(name: str, price, values):
    for d in range(1, 201):
        magnitudes = _falling(d)
        gains, costs = GAINS[name][0](magnitudes), stated(price, payload_bits(np.arange(1.0, d + 1), values))

        chosen = best_count(gains, costs)

        efficiency = gains[chosen - 1] / costs[chosen - 1]
        assert all(efficiency >= (1 - 1e-9) * gain / paid for gain, paid in zip(gains, costs, strict=True))


@pytest.mark.parametrize("d", range(20, 200, 20))
def test_where_only_bits_cost_one_entry_is_sent_and_a_constant_makes_it_more(d: int):
    counts, gains = np.arange(1.0, d + 1), gain_of_largest(_falling(d))

    chosen = [best_count(gains, constant + payload_bits(counts, "float32")) for constant in (0, 50, 500, 5000, 1e6)]

    assert chosen[0] == 1 and chosen == sorted(chosen) and chosen[-1] > d / 3


def test_of_flat_gradients_the_smallest_of_equally_good_counts_is_taken():
    assert best_count(gain_of_largest(np.ones(200)), payload_bits(np.arange(1.0, 201), "float32")) == 1


@pytest.mark.parametrize("d", range(20, 201, 20))
def test_packets_are_filled(d: int):
    config, counts = PacketCost(packet_bytes=40), np.arange(1.0, d + 1)

    chosen = best_count(gain_of_largest(_falling(d)), stated(config, payload_bits(counts, "float32")))

    filling = {math.floor(packets * 320 / 48) for packets in range(1, d)} | {d - d // 10}  # the last that is not zero
    assert chosen in filling


@pytest.mark.parametrize("count", [1, 7, 40])
def test_entries_are_drawn_as_often_as_there_is_room_for(count: int):
    magnitudes = _falling(60)

    chances = np.minimum(1.0, scale_of_draws(magnitudes, count) * magnitudes)

    assert chances.sum() == pytest.approx(count)
    np.testing.assert_allclose(chances, _probabilities(magnitudes, count), rtol=1e-6)


def test_each_bucket_sends_the_entries_that_are_most_efficient():
    price = AffineCost(fixed=200)
    bench = Bench(TopKConfig(density=1.0, values="float32", levels=CatConfig(cost=price)), Place(0, 1))
    bench.exchange.load_scalars(_roomy(bench))  # or the first step would be dense

    bench.step(gradients(0, 0), None)

    for bucket in bench.buffer.buckets:
        magnitudes = gradients(0, 0)[bucket.span].abs().sort(descending=True).values.double().numpy()
        counts = np.arange(1.0, len(magnitudes) + 1)
        best = best_count(gain_of_largest(magnitudes), stated(price, payload_bits(counts, "float32")))
        assert int(bench.buffer.gradient[bucket.span].count_nonzero()) == best < len(magnitudes) / 2


def _roomy(bench: Bench) -> dict[str, Any]:
    scalars = bench.exchange.scalars()
    rooms = [bucket.num_elements // 2 for bucket in bench.buffer.buckets]
    return scalars | {"selector": scalars["selector"] | {"capacities": rooms}}


def test_drawn_entries_are_right_on_average():
    levels = CatConfig(cost=AffineCost(fixed=200), variant="drawn")
    bench = Bench(TopKConfig(density=0.5, values="float32", memory="none", levels=levels), Place(0, 1))
    gradient, errors = gradients(0, 0), []

    for step in range(1, 201):
        bench.step(gradient, None)
        errors.append(float((bench.received / step - gradient).norm() / gradient.norm()))

    assert errors[-1] < 0.12 * errors[0]


def test_zeros_and_what_is_not_finite_are_no_trouble():
    bench = Bench(TopKConfig(density=0.1, levels=CatConfig(cost=PacketCost())), Place(0, 1))

    assert bench.step(torch.zeros(D), None).density == 0.0
    assert bench.step(gradients(0, 0) * math.nan, None).diverged
    assert not bench.step(gradients(0, 0), None).diverged


def test_one_worker_pays_nothing_and_takes_the_most():
    assert _densities(TopKConfig(density=0.1, levels=CatConfig()), 3) == pytest.approx([0.1] * 3, rel=0.1)


# -- signs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [40, 70_000])
def test_signs_stand_for_the_mean_magnitude_and_leave_the_rest(d: int):
    entries = Entries(torch.arange(0, d, 7, dtype=torch.int32), torch.randn(len(range(0, d, 7))))
    layout = PayloadLayout(d, len(entries.indices) + 5, "sign")
    payload = torch.full((layout.num_bytes,), 255, dtype=torch.uint8)

    errors = pack(entries, layout, payload)
    unpacked = unpack(payload, layout).used(d)

    assert torch.equal(unpacked.indices, entries.indices)
    torch.testing.assert_close(unpacked.values, entries.values.sign() * entries.values.abs().mean())
    torch.testing.assert_close(unpacked.values + errors, entries.values)


def test_a_sign_takes_a_bit():
    signs, halves = (PayloadLayout(10**6, 8000, values).num_bytes for values in ("sign", "float16"))

    assert halves - signs == 15 * 1000


def test_the_density_of_dgc_falls_as_that_of_any_kind():
    config = DgcConfig(density=0.01, levels=WarmupConfig(steps=2, stages=1))

    first, second, third = _densities(config, 3)

    assert first == pytest.approx(0.1, rel=0.2) and second == pytest.approx(0.1, rel=0.2)
    assert third == pytest.approx(0.01, rel=0.5)
