"""Averages in float16 on one rank, with magnitudes that change from step to step."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.exchange.rounding import Rounded
from trainers.methods.exchange.powersgd.exchange import PowerSgdExchange
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig


def _averaged(rounded: Rounded, value: float) -> Tensor:
    """Return what becomes of a group of one tensor in a step that counts."""
    tensor = torch.full((3,), value)
    assert rounded.average(0, [[tensor]])
    rounded.commit()
    return tensor


@pytest.mark.parametrize("before", [0.0, 1e-38, 1.0, 1e30])
@pytest.mark.parametrize("value", [1e-38, 1e-9, 1.0, 1e30])
def test_a_sum_comes_back_however_much_smaller_or_0_the_one_before_was(before: float, value: float):
    rounded = Rounded(Connection(1, Unpaced(), Ledger()), "float16")
    for _ in range(2):
        _averaged(rounded, before)

    _averaged(rounded, value)  # which may be too small for the scale of the last

    torch.testing.assert_close(_averaged(rounded, value), torch.full((3,), value), rtol=1e-3, atol=0.0)


def _begun(rounded: Rounded) -> None:
    rounded.begin()


def _put_back(rounded: Rounded) -> None:
    rounded.load_scalars(rounded.scalars())


@pytest.mark.parametrize("afterwards", [_begun, _put_back])
def test_a_step_that_does_not_count_leaves_no_scale_behind(afterwards: Callable[[Rounded], None]):
    rounded = Rounded(Connection(1, Unpaced(), Ledger()), "float16")
    _averaged(rounded, 1.0)
    before = rounded.scalars()

    rounded.average(0, [[torch.ones(3)], [torch.full((3,), torch.inf)]])
    afterwards(rounded)
    assert rounded.scalars() == before

    _averaged(rounded, 1.0)
    assert rounded.scalars() == before


def test_a_probe_that_diverged_at_another_rank_changes_no_bit_of_powersgd():
    def trained(*, probes: bool) -> list[Tensor]:
        config = PowerSgdConfig(rank=(1, 16))
        buffer = GradientBuffer([(40, 30), (30,)], config, torch.device("cpu"))
        exchange = PowerSgdExchange(config, buffer, Connection(1, Unpaced(), Ledger()))
        draw, seen = torch.Generator().manual_seed(1), list[Tensor]()

        def step(level: int, factor: float = 1.0) -> bool:
            buffer.expect()
            buffer.gradient.copy_(factor * torch.randn(buffer.num_elements, generator=draw))
            buffer.finish()
            return exchange.step(torch.zeros(()), level, 0.1).diverged

        assert not step(16)  # no factors are worth it
        saved, drawn = exchange.scalars(), draw.get_state()
        if probes:
            assert step(1, torch.inf)
            exchange.load_scalars(saved)
            draw.set_state(drawn)
        for level in (16, 1, 1):
            assert not step(level)
            seen.append(buffer.gradient.clone())
        return seen

    assert all(map(torch.equal, trained(probes=True), trained(probes=False)))


def test_powersgd_in_float16_loses_of_factorised_layers_nothing_and_of_dense_ones_what_is_rounded_off():
    config = PowerSgdConfig(rank=1)
    buffer = GradientBuffer([(40, 30), (30,)], config, torch.device("cpu"))
    exchange = PowerSgdExchange(config, buffer, Connection(1, Unpaced(), Ledger()))
    draw, lost = torch.Generator().manual_seed(1), torch.zeros(buffer.num_elements, dtype=torch.float64)

    for _ in range(4):
        given = torch.randn(buffer.num_elements, generator=draw)
        buffer.expect()
        buffer.gradient.copy_(given)
        buffer.finish()
        exchange.step(torch.zeros(()), None, 0.1)
        lost += given - buffer.gradient
    lost -= exchange.tensors()["residual"]

    vector, matrix = (lost.abs()[len(lost) - 30 :], lost.abs()[: len(lost) - 30])
    assert matrix.max() < 1e-5
    assert 1e-5 < vector.max() < 4 * 4 * 2**-11  # of four steps whose entries are below 4
