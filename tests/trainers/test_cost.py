import pytest

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.gtopk.spec import GTopKConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.spec.link import EmulateLink
from trainers.traffic import collectives, cost

SHAPES = ((100, 10), (24,))  # d = 1024


def test_dense_ring_sends_each_byte_less_than_twice():
    traffic = cost.step_traffic(SHAPES, num_workers=4, exchange=NoneConfig())

    assert traffic == collectives.Traffic(bytes=2 * 3 * 4 * (1024 + 1) // 4, rounds=6)


def test_sparse_gather_sends_header_and_padded_entries_to_every_peer():
    exchange = ThresholdConfig(density=0.03125, hold="run", aggregate="gather")  # 32 entries, 40 with the margin

    traffic = cost.step_traffic(SHAPES, num_workers=3, exchange=exchange, level=0.03125)

    # A header of 20 bytes, the values' unit, the count of the one block; an index and a value of 16 bits each.
    assert traffic == collectives.Traffic(bytes=2 * (20 + 4 + 4 + 40 * 4), rounds=2)


@pytest.mark.parametrize("num_workers", [2, 3, 8])
def test_a_step_never_costs_more_than_a_dense_one(num_workers: int):
    exchange, dense = ThresholdConfig(density=0.5, hold="run"), collectives.dense_instead(1024, num_workers)

    *costs, full = [
        cost.step_traffic(SHAPES, num_workers=num_workers, exchange=exchange, level=k / 64).bytes for k in range(1, 65)
    ]

    assert max(costs) == dense.bytes
    assert costs == sorted(costs)
    assert full == collectives.dense_step(1024, num_workers).bytes


@pytest.mark.parametrize("level", [0.1, 1.0])
def test_to_hold_a_density_takes_no_round_and_no_byte_more(level: float):
    held, free = (ThresholdConfig(density=0.1, hold=hold) for hold in ("stage", "run"))
    both = [cost.step_traffic(SHAPES, num_workers=3, exchange=each, level=level) for each in (held, free)]

    assert both[0] == both[1]


def test_one_worker_sends_nothing():
    assert cost.step_traffic(SHAPES, num_workers=1, exchange=NoneConfig()) == collectives.Traffic(bytes=0, rounds=0)


def test_within_a_node_all_but_one_send_the_gradient_up_and_receive_the_mean():
    traffic = cost.within_node(SHAPES, num_workers=4, exchange=NoneConfig())

    assert traffic.bytes == 2 * 3 * 4 * 1024 // 4 + 3 * (4 + 24) // 4
    assert cost.within_node(SHAPES, num_workers=1, exchange=NoneConfig()) == collectives.NOTHING


@pytest.mark.parametrize(("num_workers", "levels"), [(1, 0), (2, 1), (3, 2), (4, 2), (8, 3)])
def test_a_payload_waits_for_the_one_before_it_on_every_level_of_a_tree(num_workers: int, levels: int):
    exchange, link = GTopKConfig(density=0.03125), EmulateLink(mbps=8)
    payload = collectives.payload_bytes(1024, 32, exchange.values)
    traffic = exchange.selected_traffic(1024, num_workers, 32)

    assert traffic.bytes == 2 * -(-(num_workers - 1) * payload // num_workers)  # the bill: all but one send, either way
    assert 1e6 * traffic.seconds(link) == pytest.approx(2 * levels * payload)
    assert 1e6 * (traffic + traffic).over(4).seconds(link) == pytest.approx(levels * payload)


def test_a_sum_at_one_rank_takes_as_long_as_at_all():
    link = EmulateLink(mbps=8)

    assert collectives.reduce(1000, 4).seconds(link) == collectives.all_reduce(1000, 4).seconds(link)


@pytest.mark.parametrize(("num_bytes", "rounds"), [(4, 1), (65_536, 1), (65_540, 2)])
def test_two_ranks_swap_small_tensors_in_one_round_and_bill_as_a_ring_does(num_bytes: int, rounds: int):
    assert collectives.all_reduce(num_bytes, 2) == collectives.Traffic(num_bytes, rounds)
    assert collectives.all_reduce(num_bytes, 4).rounds == 6


def test_seconds_add_transfer_and_latency():
    traffic = collectives.Traffic(bytes=1_250_000, rounds=4)

    assert traffic.seconds(EmulateLink(mbps=100, latency_ms=5)) == pytest.approx(0.1 + 0.02)


@pytest.mark.parametrize("density", [None, 0.0, 1.5])
def test_a_density_outside_its_range_is_named(density: float | None):
    with pytest.raises(ValueError, match=r"`level` must be a density in \(0, 1\].*got"):
        cost.step_traffic(SHAPES, num_workers=2, exchange=ThresholdConfig(density=0.1), level=density)
