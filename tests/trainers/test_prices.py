"""The message prices that CAT assumes on the job's link, stated or measured."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import distributed as dist

from trainers.exchange.connection import MOST_TIMINGS, Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import LinkPacer, Unpaced
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.levels.prices import LinkFit, LinkPrice
from trainers.spec.levels import CatConfig
from trainers.spec.link import EmulateLink
from trainers.traffic import collectives


def test_on_an_emulated_link_a_message_costs_its_bytes_and_rounds():
    config, link = TopKConfig(density=0.1, levels=CatConfig(), aggregate="gather"), EmulateLink(mbps=8, latency_ms=2)
    d = 5 * 65_536

    costs = LinkPrice(config).of(d, np.array([1.0, d]), Connection(3, LinkPacer(link), Ledger()))

    exact = [collectives.gather(d, room, "float16", 3).seconds(link) for room in (1, d)]
    np.testing.assert_allclose(costs, exact)


@given(st.floats(1e-6, 1e-2), st.floats(1e-10, 1e-6), st.integers(0, 9))
@settings(max_examples=30)
def test_a_link_is_fitted_to_what_it_took(round_s: float, byte_s: float, seed: int):
    fit, sizes = LinkFit(), np.random.default_rng(seed).integers(1000, 100_000, 30)

    fit.add(collectives.Traffic(500, 3), 1e-3)
    assert fit.rates() is None  # what a round takes, and what a byte, cannot be told from one message
    for size in sizes:
        fit.add(collectives.Traffic(int(size), 3), 3 * round_s + int(size) * byte_s)
    for size in [*sizes] * 20:
        fit.add(collectives.Traffic(int(size), 3), 3 * round_s + int(size) * byte_s)

    assert fit.rates() == pytest.approx((round_s, byte_s), rel=0.05, abs=1e-9)


@given(st.floats(0.0, 0.05), st.integers(0, 9))
@settings(max_examples=30)
def test_times_that_vary_more_than_sizes_say_nothing_of_a_link(spread: float, seed: int):
    fit, draws = LinkFit(), np.random.default_rng(seed)

    for _ in range(200):
        fit.add(
            collectives.Traffic(int(50_000 * draws.uniform(1 - spread, 1 + spread)), 3), 1e-3 * draws.uniform(0.5, 1.5)
        )

    assert fit.rates() is None


def test_now_and_then_a_message_of_half_the_size_tells_a_noisy_link():
    fit, draws = LinkFit(), np.random.default_rng(0)

    for number in range(400):
        size = 50_000 if number % 10 else 25_000
        fit.add(collectives.Traffic(size, 3), (3e-4 + size * 2e-8) * draws.uniform(0.95, 1.05))

    assert fit.rates() == pytest.approx((1e-4, 2e-8), rel=0.35)


def test_a_fitted_link_is_never_negative():
    for seconds in ((1e-3, 5e-4), (1e-3, 1.0)):
        fit = LinkFit()
        for size, took in zip((1000, 100_000), seconds, strict=True):
            fit.add(collectives.Traffic(size, 3), took)
        rates = fit.rates()
        assert rates is not None and min(rates) >= 0 and max(rates) > 0


def test_a_measured_link_gets_its_price_from_the_gathers_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo")
    monkeypatch.setattr(dist, "all_gather_single", lambda *_, **__: None)
    connection = Connection(3, Unpaced(), Ledger())
    price, sizes = LinkPrice(TopKConfig(density=0.1, levels=CatConfig())), np.array([1.0, 1000.0])

    before = price.of(1000, sizes, connection)
    for length in (10, 100_000):
        connection.all_gather(torch.zeros(length), {"gradient": 4 * length})

    assert before is None
    assert price.of(1000, sizes, connection) is not None


def test_timings_that_nobody_takes_are_forgotten():
    connection = Connection(1, Unpaced(), Ledger())

    for length in range(1, 100):
        connection.all_gather(torch.zeros(length), {"gradient": length})

    assert len(connection.take_timings()) == MOST_TIMINGS
    assert connection.take_timings() == []
