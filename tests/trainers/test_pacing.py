import time

import pytest

from trainers.exchange import pacing
from trainers.exchange.ledger import Ledger
from trainers.spec.link import EmulateLink, MeasureLink
from trainers.traffic.collectives import Traffic


def seconds_of(pacer: pacing.Pacer, traffic: Traffic) -> float:
    started = time.monotonic()
    pacer.finish(started, traffic)
    return time.monotonic() - started


@pytest.mark.parametrize("num_bytes", [0, 10_000, 100_000])
def test_a_collective_lasts_at_least_as_long_as_the_link_needs(num_bytes: int):
    link = EmulateLink(mbps=50, latency_ms=2)
    traffic = Traffic(bytes=num_bytes, rounds=3)

    assert seconds_of(pacing.build(link), traffic) >= traffic.seconds(link) >= 0.006


def test_time_already_spent_counts():
    pacer, traffic = pacing.build(EmulateLink(mbps=1000, latency_ms=1000)), Traffic(bytes=0, rounds=1)
    before = time.monotonic()

    pacer.finish(before - 0.9, traffic)

    assert 0.1 <= time.monotonic() - before < 1.0


def test_a_measured_link_is_not_slowed_down():
    assert seconds_of(pacing.build(MeasureLink()), Traffic(bytes=10**12, rounds=10**6)) < 1.0


def test_purposes_add_up_to_what_the_collective_sent():
    ledger = Ledger()

    ledger.charge({"gradient": 100, "control": 7}, lambda num_bytes: (num_bytes * 4 + 2) // 3)

    assert ledger.take() == {"gradient": 134, "control": 9}
    assert ledger.take() == {}
