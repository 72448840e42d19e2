"""1-bit Adam on one worker: first Adam's steps, to the bit, and then steps of about the same length."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.exchange import Exchange
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.exchange.step_result import Exchanged
from trainers.methods import build
from trainers.methods.exchange.onebit_adam.spec import OneBitAdamConfig, SignsOfAdamConfig
from trainers.methods.exchange.zero_one_adam.spec import ZeroOneAdamConfig

D, FREEZE_STEPS = 300, 5
BETAS = (0.8, 0.99)
CONFIG = OneBitAdamConfig(freeze_steps=FREEZE_STEPS, betas=BETAS, block=50)
#: Dense in steps 0, 1, 3, 5, 9, 13, 21, 29, and no more from 32 on.
REFRESHED = ZeroOneAdamConfig(refreshes=2, freeze_steps=32, betas=BETAS, block=50)
both = pytest.mark.parametrize("config", [CONFIG, REFRESHED], ids=lambda config: config.kind)


class Worker:
    """A worker of its own, and what Adam of torch does with the same gradients."""

    def __init__(self, config: SignsOfAdamConfig = CONFIG) -> None:
        self._buffer = GradientBuffer(((D,),), config, torch.device("cpu"))
        self.exchange: Exchange = build.exchange(config, self._buffer, Connection(1, Unpaced(), Ledger()))
        self._parameter = Parameter(torch.zeros(D))
        self._adam = torch.optim.Adam([self._parameter], lr=1.0, betas=BETAS)

    def step(self, gradient: Tensor) -> tuple[Tensor, Exchanged]:
        self._buffer.gradient.copy_(gradient)
        self._buffer.finish()
        outcome = self.exchange.step(torch.ones(()), None, 0.1)
        return self._buffer.gradient.clone(), outcome

    def adam_step(self, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            self._parameter.zero_()  # so that it becomes the direction, to the bit
        self._parameter.grad = gradient.clone()
        self._adam.step()
        return -self._parameter.detach()


def gradient(step: int) -> Tensor:
    """Return a gradient whose entries differ by orders of magnitude."""
    draws = torch.Generator().manual_seed(step)
    return torch.randn(D, generator=draws) * torch.logspace(-6, 2, D)


def test_before_it_freezes_the_direction_has_the_bits_of_torchs_adam():
    worker = Worker()

    for step in range(FREEZE_STEPS):
        assert torch.equal(worker.step(gradient(step))[0], worker.adam_step(gradient(step)))


@both
def test_of_a_gradient_that_stays_so_does_the_direction_whenever_the_variance_freezes(config: SignsOfAdamConfig):
    worker, constant = Worker(config), gradient(0)
    constant = constant.sign() * constant.abs().clamp(min=1e-3)  # far above eps: |m| / sqrt(v) is 1

    for _ in range(40):
        torch.testing.assert_close(worker.step(constant)[0], constant.sign(), atol=1e-3, rtol=0)


def test_directions_stay_short_however_small_a_variance_froze():
    worker = Worker()
    for step in range(FREEZE_STEPS):
        worker.step(1e-6 * gradient(step))

    longest = max(float(worker.step(gradient(step))[0].abs().max()) for step in range(FREEZE_STEPS, 40))

    assert longest < 2 / math.sqrt(1 - BETAS[1])


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 7])
def test_what_is_not_finite_stops_a_frozen_step_also_where_there_is_no_variance(bad: float, place: int):
    worker = Worker()
    for step in range(FREEZE_STEPS + 1):
        given = gradient(step)
        given[0] = 0
        worker.step(given)
    before = {name: tensor.clone() for name, tensor in worker.exchange.tensors().items()}

    given = gradient(99)
    given[place] = bad

    assert worker.step(given)[1].diverged
    assert all(torch.equal(tensor, before[name]) for name, tensor in worker.exchange.tensors().items())


def test_intervals_between_refreshes_double_until_the_variance_freezes():
    dense = [step for step in range(100) if REFRESHED.is_dense(step)]

    assert dense == [0, 1, 3, 5, 9, 13, 21, 29]
    assert REFRESHED.num_dense(100) == len(dense)


def test_a_refresh_takes_in_the_dense_gradient_and_no_other_step_changes_the_variance():
    worker, expected = Worker(REFRESHED), torch.zeros(D)

    for step in range(40):
        worker.step(gradient(step))
        if REFRESHED.is_dense(step):
            expected = expected * BETAS[1] + (1 - BETAS[1]) * gradient(step) ** 2
        torch.testing.assert_close(worker.exchange.tensors()["second"], expected)


def test_what_was_not_sent_yet_keeps_its_length_when_a_refresh_changes_the_units():
    worker, kept = Worker(REFRESHED), []
    for step in range(31):
        worker.step(gradient(step))
        state = worker.exchange.tensors()
        root = (state["second"] / (1 - BETAS[1] ** REFRESHED.num_dense(step + 1))).sqrt() + 1e-8
        kept.append(root * (state["residual"] + state["server.0"][:D]))

    assert kept[28].any()
    torch.testing.assert_close(kept[29], kept[28])
    assert not torch.equal(kept[30], kept[29])
