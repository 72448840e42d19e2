"""Two-way compression on one rank, and its pure functions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError
from torch import Tensor

from trainers.exchange.block_sign import BlockSign
from trainers.exchange.connection import Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.exchange.server import Server
from trainers.methods.exchange.blockwise.exchange import BlockIntegers, half_above
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.methods.exchange.cser.spec import CserConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.dist_ef_sgd.spec import DistEfSgdConfig
from trainers.methods.exchange.doublesqueeze.spec import DoubleSqueezeConfig
from trainers.methods.exchange.liec_sgd.spec import LiecSgdConfig
from trainers.methods.exchange.zero_one_adam.spec import ZeroOneAdamConfig
from trainers.methods.optimizer.spec import FromExchangeConfig, LarsConfig, ScheduleFreeSgdConfig, SgdConfig
from trainers.methods.sync.accordion_batch.spec import AccordionBatchConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.segment import Segment
from trainers.traffic import collectives, cost
from trainers.traffic.block_shards import BlockShards
from trainers.traffic.buckets import split
from trainers.training.replica import Replica

#: A million parameters in two buckets.
SHAPES = ((1000, 500), (500, 1000), (1000,))


@given(st.integers(1, 5000), st.integers(1, 9), st.integers(8, 6000))
def test_shards_are_whole_blocks_and_together_the_bucket(d: int, num_owners: int, most: int):
    shards = BlockShards(d, num_owners, most)
    spans = [shards.span(owner) for owner in range(num_owners)]

    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == d
    assert shards.block <= most
    for span in spans:
        assert span.start % shards.block == 0 or span.start == d
        assert span.stop - span.start <= shards.size
        for config in (DoubleSqueezeConfig(), BlockwiseConfig()):
            assert config.layout(span.stop - span.start, shards.block).num_bytes <= config.row_bytes(shards)


@given(st.integers(1, 5000), st.integers(1, 9))
def test_no_shard_is_much_larger_than_its_share(d: int, num_owners: int):
    shards = BlockShards(d, num_owners, most=64)

    assert shards.size < d / num_owners + shards.num_blocks + 1


@pytest.mark.parametrize("d", [0, 1, 31, 32, 33, 1000])
def test_a_block_is_sent_as_its_signs_times_its_mean_magnitude(d: int):
    values, block = torch.randn(d, generator=torch.Generator().manual_seed(d)), 32
    values[::7] = 0.0  # whose sign is +1
    signs, got = BlockSign(DoubleSqueezeConfig().layout(d, block), block), torch.zeros(d)
    payload = torch.full((signs.num_bytes,), 0xFF, dtype=torch.uint8)

    signs.encode(values, payload)
    signs.add_decoded(payload, got)

    parts = zip(values.split(block), got.split(block), strict=True)
    for given_part, got_part in parts if d else ():
        expected = torch.where(given_part >= 0, 1.0, -1.0) * given_part.abs().mean()
        torch.testing.assert_close(got_part, expected)


def test_what_a_server_has_kept_is_released_as_it_is_after_a_step_that_rescaled_it():
    config = DistEfSgdConfig(block=8)
    [bucket] = split([(100,)], config)
    server = Server(config, BlockSign, bucket, Connection(1, Unpaced(), Ledger()), torch.device("cpu"))
    values = torch.zeros(100)

    server.rescale(0.5)
    server.commit()
    server.error.fill_(1.0)
    server.release(values)

    assert torch.equal(values, torch.ones(100))


#: What float16 scales have to hold: nothing, what is below their smallest number, what is close to their largest.
SCALES = [0.0, 1e-38, 1e-9, 1e-6, 1.0, 1e4]
BITS = pytest.mark.parametrize("bits", [4, 8])


def integers(values: Tensor, block: int, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what is received of `values` `(d,)`, what is left of them, and the scale of each entry."""
    code = BlockIntegers(BlockwiseConfig(bits=bits).layout(len(values), block), block)
    got, left = torch.zeros_like(values), values.clone()
    payload = torch.full((code.num_bytes,), 0xFF, dtype=torch.uint8)
    code.encode(values, payload)
    code.add_decoded(payload, got)
    code.add_decoded(payload, left, factor=-1.0)
    num_blocks = -(-len(values) // block)
    scales = payload[:4].view(torch.float32) * payload[4 : 4 + 2 * num_blocks].view(torch.float16).float()
    return got, left, scales.repeat_interleave(block)[: len(values)]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 300),
    st.integers(8, 70),
    st.sampled_from([4, 8]),
    st.lists(st.sampled_from(SCALES), min_size=1, max_size=4),
    st.sampled_from([1.0, 1e3, -3e4]),
    st.integers(0, 2**31),
)
def test_an_integer_is_wrong_by_no_more_than_half_its_blocks_scale(d, block, bits, sizes_of_runs, outlier, seed):
    values = torch.randn(d, generator=torch.Generator().manual_seed(seed))
    values *= torch.tensor(sizes_of_runs)[torch.arange(d) // 40 % len(sizes_of_runs)]
    values[seed % d] = outlier

    got, left, scales = integers(values, block, bits)

    wrong = values.double() - got.double()
    assert torch.isfinite(got).all()
    assert torch.all(2 * wrong.abs() <= scales)
    assert torch.equal(left.double(), wrong)  # bit for bit: the residual loses nothing


@BITS
@pytest.mark.parametrize("exponent", [-100, -40, -20, 20, 60, 120])
def test_entries_of_any_size_are_sent_with_the_same_precision(bits: int, exponent: int):
    values = torch.randn(200, generator=torch.Generator().manual_seed(bits))

    got, scaled = (integers(size * values, 64, bits)[0] / size for size in (1.0, 2.0**exponent))

    assert torch.equal(got, scaled)


@BITS
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_reaches_the_others_as_such_and_leaves_other_blocks_alone(bits: int, bad: float):
    values = torch.randn(100, generator=torch.Generator().manual_seed(bits))
    expected = integers(values, 32, bits)[0]
    values[40] = bad

    got = integers(values, 32, bits)[0]

    assert not torch.isfinite(got[32:64]).any()
    assert torch.equal(got[:32], expected[:32]) and torch.equal(got[64:], expected[64:])


@given(st.floats(0, 65_504.0, width=32))
def test_a_scale_is_the_least_float16_that_is_not_too_small(value: float):
    scale = half_above(torch.tensor([value])).numpy()[0]

    assert float(scale) >= value
    assert scale == 0 or float(np.nextafter(scale, np.float16(0))) < value


@pytest.mark.parametrize(("bits", "most"), [(4, 0.12), (8, 0.007)])
def test_the_fewer_bits_the_more_is_left_of_normal_entries(bits: int, most: float):
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(bits))

    left = integers(values, 64, bits)[1]

    assert most / 2 < left.norm() / values.norm() < most


@BITS
def test_one_worker_in_blockwise_integers_trains_nearly_as_in_dense_steps(make_config, bits: int):
    ends = []
    for exchange in (BlockwiseConfig(bits=bits), NoneConfig()):
        replica = Replica(make_config(exchange=exchange, optimizer=SgdConfig(momentum=0.9)), 0, 1, device="cpu")
        ends.append(replica.run(Segment(num_steps=20, learning_rate=0.05)).losses[-1])

    assert ends[0] == pytest.approx(ends[1], rel={4: 0.05, 8: 0.002}[bits])


@pytest.mark.parametrize("num_workers", [2, 4, 8])
@BITS
def test_blockwise_integers_send_their_bits_each_way_and_16_more_for_each_block(num_workers: int, bits: int):
    sent = cost.step_traffic(SHAPES, num_workers=num_workers, exchange=BlockwiseConfig(bits=bits)).bytes

    share = (num_workers - 1) / num_workers
    both_ways = 2 * (bits + 16 / 64) * share
    assert 8 * sent / collectives.num_elements(SHAPES) == pytest.approx(both_ways, rel=0.001)


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_a_step_of_two_way_compression_sends_a_bit_each_way(num_workers: int):
    share = (num_workers - 1) / num_workers
    for exchange in (DoubleSqueezeConfig(), DistEfSgdConfig(), LiecSgdConfig()):
        sent = cost.step_traffic(SHAPES, num_workers=num_workers, exchange=exchange).bytes
        assert 8 * sent / collectives.num_elements(SHAPES) == pytest.approx(2 * share, rel=0.01)


@pytest.mark.parametrize(("period", "bits"), [(100, 3.26), (32, 5.94), (1, 64.0)])
def test_liec_sends_the_published_bits_a_parameter(period: int, bits: float):
    num_workers = 8
    sent = LiecSgdConfig(period=period).mean_traffic(SHAPES, num_workers=num_workers).bytes

    both_ways = 8 * sent / collectives.num_elements(SHAPES) * num_workers / (num_workers - 1)
    assert both_ways == pytest.approx(bits, rel=0.01)


def test_liec_that_averages_in_every_step_costs_what_dense_training_does():
    meeting = LiecSgdConfig(period=1).meeting_traffic(SHAPES, num_workers=4)

    assert meeting == cost.step_traffic(SHAPES, num_workers=4, exchange=NoneConfig())


def test_with_schedule_free_two_iterates_are_averaged():
    plain, two = (LiecSgdConfig().meeting_traffic(SHAPES, num_workers=4, num_iterates=count).bytes for count in (1, 2))

    assert two - plain == collectives.all_reduce(4 * collectives.num_elements(SHAPES), 4).bytes


def test_cser_sends_its_errors_once_a_period():
    exchange = CserConfig(period=8)
    step = cost.step_traffic(SHAPES, num_workers=4, exchange=exchange).bytes

    assert exchange.mean_traffic(SHAPES, num_workers=4).bytes == pytest.approx(step * 9 / 8, rel=1e-4)


def test_workers_of_drifting_exchanges_have_parameters_of_their_own(make_config):
    plain = SgdConfig(momentum=0.0)
    apart = [
        make_config(optimizer=plain, **parts).apart_under
        for parts in ({"exchange": LiecSgdConfig()}, {"exchange": CserConfig()}, {"sync": LocalSgdConfig()}, {})
    ]

    assert apart == [("liec_sgd",), ("cser",), ("local_sgd",), ()]


@pytest.mark.parametrize(
    ("parts", "averages", "may_differ", "apart_under"),
    [
        ({}, False, False, ()),
        ({"sync": AccordionBatchConfig()}, False, False, ("accordion_batch",)),  # gradients are held, for a round
        ({"exchange": CserConfig()}, False, True, ("cser",)),
        ({"sync": LocalSgdConfig()}, True, True, ("local_sgd",)),
    ],
    ids=["every_step", "accordion_batch", "cser", "local_sgd"],
)
def test_ranks_that_average_parameters_those_that_may_differ_and_those_that_hold_back_are_told_apart(
    make_config, parts, averages, may_differ, apart_under
):
    config = make_config(optimizer=SgdConfig(momentum=0.0), **parts)

    assert (config.averages_parameters, config.parameters_may_differ) == (averages, may_differ)
    assert config.apart_under == apart_under
    assert not may_differ or config.apart_under == (config.differ_under,)


@pytest.mark.parametrize(("max_interval", "apart"), [(1, ()), (2, ("zero_one_adam",))])
def test_workers_of_zero_one_adam_are_apart_only_where_they_leave_out_exchanges(make_config, max_interval, apart):
    exchange = ZeroOneAdamConfig(max_interval=max_interval)

    assert make_config(optimizer=FromExchangeConfig(), exchange=exchange).apart_under == apart


def test_the_state_of_a_drifting_exchange_is_each_ranks_own(make_config):
    replica = Replica(make_config(optimizer=SgdConfig(momentum=0.0), exchange=CserConfig()), 0, 1, device="cpu")

    assert replica.state.shared.keys() == {"steps", "average"}
    assert not replica.state.shared["average"].tensors()
    assert {"parameters", "optimizer", "exchange", "sync"} <= replica.state.own.keys()


@pytest.mark.parametrize(
    "parts",
    [
        {"exchange": LiecSgdConfig(), "optimizer": LarsConfig()},
        {"exchange": LiecSgdConfig(), "optimizer": SgdConfig(momentum=0.9)},
        {"exchange": CserConfig(), "optimizer": ScheduleFreeSgdConfig()},
        {"exchange": CserConfig(), "optimizer": SgdConfig(momentum=0.0, weight_decay=0.1)},
        {"exchange": CserConfig(), "optimizer": SgdConfig(momentum=0.0), "clip": 1.0},
    ],
)
def test_a_replica_refuses_what_would_not_cancel_out(make_config, parts):
    with pytest.raises(ValidationError, match=r"give .*`exchange: \{kind: doublesqueeze\}`"):
        make_config(**parts)


@pytest.mark.parametrize(
    ("exchange", "optimizer"),
    [
        (LiecSgdConfig(period=4), ScheduleFreeSgdConfig()),
        (LiecSgdConfig(period=4), SgdConfig(momentum=0.0, weight_decay=0.01)),
        (CserConfig(period=4), SgdConfig(momentum=0.0)),
        (DistEfSgdConfig(momentum=0.9), SgdConfig(momentum=0.0)),
    ],
)
def test_a_replica_whose_rate_changes_trains_and_its_loss_falls(make_config, exchange, optimizer):
    replica = Replica(make_config(exchange=exchange, optimizer=optimizer), 0, 1, device="cpu")

    result = replica.run(Segment(num_steps=12, learning_rate=0.02, final_learning_rate=0.2))

    assert not result.diverged
    assert result.losses[-1] < result.losses[0]
