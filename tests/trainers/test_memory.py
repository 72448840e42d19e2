"""Laws of the memories, each on one rank without a network."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from pydantic import TypeAdapter
from torch import Tensor

from trainers.exchange import memory
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.by_count import take_largest
from trainers.exchange.connection import Connection
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.ledger import Ledger
from trainers.exchange.memory import MOST_RISE, FollowedRate, Memory, Residual
from trainers.exchange.pacing import Unpaced
from trainers.methods import build
from trainers.methods.exchange.cser.spec import CserConfig
from trainers.methods.exchange.dist_ef_sgd.exchange import MomentumResidual
from trainers.methods.exchange.dist_ef_sgd.spec import DistEfSgdConfig
from trainers.methods.exchange.liec_sgd.spec import LiecSgdConfig
from trainers.methods.exchange.onebit.spec import OneBitConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.signsgd.spec import SignSgdConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.registry import union
from trainers.spec.exchange import ExchangeBase

D = 500
#: How the names end of what ranks have yet to send or to take back.
NOT_SENT = ("residual", "kept", "server.0")
ALL = slice(0, D)


def gradient(step: int) -> Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(step))


def sent(kept: Memory, given: Tensor, *, at: float = 1.5) -> Tensor:
    """Return what goes out of a step that selects by a threshold."""
    out = torch.zeros(D)
    scatter_add(out, kept.select(given, ALL, threshold=torch.tensor(at), capacity=D).entries)
    return out


def test_updates_add_up_when_the_learning_rate_changes():
    kept = memory.build(ThresholdConfig(density=0.1, lr_corrected=True), torch.zeros(D))
    updates, given, rate = torch.zeros(D), torch.zeros(D), 0.1

    for step, after in enumerate([0.1, 0.4, 0.4, 0.05, 0.2]):
        kept.rescale(rate / after)
        updates += after * sent(kept, gradient(step))
        given += after * gradient(step)
        kept.commit()
        rate = after

    torch.testing.assert_close(updates + rate * kept.tensors()["residual"], given)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.95, 1.0])
def test_of_a_residual_that_decays_its_share_and_the_gradient_are_sent_or_kept_bit_for_bit(decay: float):
    kept = Residual(torch.zeros(D), decay=decay)

    for step in range(5):
        before = kept.tensors()["residual"].clone()
        went = sent(kept, gradient(step))
        kept.commit()
        assert torch.equal(went + kept.tensors()["residual"], decay * before + gradient(step))


def test_a_residual_that_decays_follows_the_learning_rate_beside():
    kept = Residual(torch.zeros(D), decay=0.5)
    kept.corrected(gradient(0), ALL)
    kept.commit()

    kept.rescale(4.0)

    assert torch.equal(kept.corrected(torch.zeros(D), ALL), 2.0 * gradient(0))


@given(st.lists(st.just(0.0) | st.floats(1e-20, 10), max_size=20))
def test_no_rates_make_a_memory_infinite_and_all_that_are_not_0_keep_rate_times_memory(rates: list[float]):
    followed, kept = FollowedRate(), 1.0

    for rate in rates:
        before, factor = followed.last, followed.correction(rate)
        followed.commit(rate)
        kept *= factor
        assert math.isfinite(kept)
        assert 0 < factor <= MOST_RISE
        if before and followed.last == rate:
            assert factor * rate == pytest.approx(before)


def test_a_rate_of_0_that_was_saved_corrects_nothing():
    followed = FollowedRate()

    followed.load(0.0)

    assert followed.last is None
    assert followed.correction(0.1) == 1.0


@pytest.mark.parametrize(
    "config",
    [
        TopKConfig(density=0.1, lr_corrected=True, aggregate="gather"),
        TopKConfig(density=0.1, lr_corrected=True, aggregate="sharded"),
        SignSgdConfig(lr_corrected=True),
        OneBitConfig(lr_corrected=True),
        PowerSgdConfig(lr_corrected=True, rank=1),
        DistEfSgdConfig(momentum=0.9),
        CserConfig(period=3),
        LiecSgdConfig(period=3),
    ],
    ids=lambda config: config.kind,
)
def test_a_step_at_a_rate_of_0_leaves_what_was_not_sent_as_it_was(config: ExchangeBase):
    buffer = GradientBuffer(((20, D // 20),), config, torch.device("cpu"))
    exchange = build.exchange(config, buffer, Connection(1, Unpaced(), Ledger()))
    kept = []
    for step, rate in enumerate([0.1, 0.1, 0.0, 0.1, 0.0]):
        buffer.gradient.copy_(gradient(step))
        buffer.finish()
        exchange.step(torch.ones(()), config.level, rate)
        tensors = {name: each.clone() for name, each in exchange.tensors().items() if name.endswith(NOT_SENT)}
        kept.append(torch.cat([each.flatten() for each in tensors.values()]))

    assert kept[1].any()
    assert torch.equal(kept[2], kept[1])
    assert torch.equal(kept[4], kept[3])
    assert not torch.equal(kept[3], kept[2])


def test_the_momentum_of_dist_ef_sgd_goes_on_at_a_rate_of_0():
    kept = MomentumResidual(torch.zeros(D), 0.9)
    kept.corrected(gradient(0), ALL)

    kept.skip()

    assert torch.equal(kept.tensors()["momentum"], gradient(0)) and not kept.tensors()["residual"].any()


@pytest.mark.parametrize("config", [{}, {"momentum_correction": 0.9}, {"memory": "ef21"}])
def test_a_step_that_is_not_committed_never_was(config: dict[str, object]):
    kept = memory.build(ThresholdConfig(density=0.1, **config), torch.zeros(D))
    sent(kept, gradient(0))
    kept.commit()
    before = {name: tensor.clone() for name, tensor in kept.tensors().items()}
    expected = memory.build(ThresholdConfig(density=0.1, **config), torch.zeros(D))
    sent(expected, gradient(0))
    expected.commit()

    sent(kept, gradient(1) * torch.nan)

    assert all(torch.equal(tensor, before[name]) for name, tensor in kept.tensors().items())
    assert torch.equal(sent(kept, gradient(2)), sent(expected, gradient(2)))


@pytest.mark.parametrize("config", [{}, {"momentum_correction": 0.9}, {"momentum_correction": 0.9, "nesterov": True}])
def test_one_pass_selects_and_keeps_what_two_do(config: dict[str, object]):
    fused, plain = (memory.build(ThresholdConfig(density=0.1, **config), torch.zeros(D)) for _ in range(2))

    for step in range(3):
        found = fused.select(gradient(step), ALL, threshold=torch.tensor(1.5), capacity=D).entries.used(D)
        corrected = plain.corrected(gradient(step), ALL)
        indices = (corrected.abs() >= 1.5).nonzero().flatten().int()
        assert torch.equal(found.indices, indices)
        torch.testing.assert_close(found.values, plain.take(ALL, indices).values)
        fused.commit()
        plain.commit()

    torch.testing.assert_close(fused.tensors(), plain.tensors())


@pytest.mark.parametrize("config", [{}, {"momentum_correction": 0.9}, {"memory": "ef21"}, {"memory": "none"}])
def test_a_bucket_that_is_sent_whole_is_what_its_entries_are_bit_for_bit(config: dict[str, object]):
    whole, single = (memory.build(ThresholdConfig(density=0.1, **config), torch.zeros(D)) for _ in range(2))

    for step in range(4):
        given = gradient(step)
        if step % 2:
            whole.take_all(given, ALL)
            single.corrected(gradient(step), ALL)
            assert torch.equal(given, single.take(ALL, torch.arange(D, dtype=torch.int32)).values)
        else:
            assert torch.equal(sent(whole, given), sent(single, given))
        whole.commit()
        single.commit()

    assert all(torch.equal(tensor, single.tensors()[name]) for name, tensor in whole.tensors().items())


@pytest.mark.parametrize("kind", [{"kind": "none"}, {"kind": "topk", "density": 1.0, "bucket_mib": 0.001}])
def test_a_bucket_that_is_sent_whole_is_sent_from_where_it_lies(monkeypatch, kind: dict[str, object]):
    config, starts = TypeAdapter(union("exchange")).validate_python(kind), list[int]()
    monkeypatch.setattr(Connection, "all_reduce_sum", lambda self, tensor, parts: starts.append(tensor.data_ptr()))
    buffer = GradientBuffer([(D,), (D,)], config, torch.device("cpu"))
    exchange = build.exchange(config, buffer, Connection(1, Unpaced(), Ledger()), seed=0)
    buffer.expect()
    buffer.finish()

    exchange.step(torch.zeros(()), kind.get("density"), 0.1)

    lead = buffer.gradient.element_size()  # the loss
    *early, last = (buffer.gradient[bucket.span].data_ptr() for bucket in buffer.buckets)
    assert starts == [*early, last - lead]


@pytest.mark.parametrize("config", [{}, {"momentum_correction": 0.9}])
def test_a_threshold_leaves_nothing_behind_that_reaches_it(config: dict[str, object]):
    kept = memory.build(ThresholdConfig(density=0.1, **config), torch.zeros(D))

    for step in range(5):
        sent(kept, gradient(step), at=1.5)
        kept.commit()
        assert kept.tensors()["residual"].abs().max() < 1.5  # so its square is below D x 1.5^2, whatever was given


@pytest.mark.parametrize("count", [5, 50, 500])
def test_what_error_feedback_keeps_stays_bounded(count: int):
    kept, share, bound = memory.build(ThresholdConfig(density=0.1), torch.zeros(D)), count / D, 1.0

    for step in range(100):
        given = gradient(step % 3)
        take_largest(kept, bound * given / given.norm(), ALL, count)
        kept.commit()

    # Of a compressor that leaves at most 1 - share of the square (Karimireddy et al., 2019, lemma 3).
    assert kept.tensors()["residual"].square().sum() <= 4 * (1 - share) * bound**2 / share**2
