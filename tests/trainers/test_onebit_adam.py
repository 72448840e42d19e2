"""The directions of one worker's 1-bit Adam: Adam's own, to the bit, and then about as long."""

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
from trainers.methods.exchange.onebit_adam.spec import OneBitAdamConfig

D, FREEZE_STEPS = 300, 5
BETAS = (0.8, 0.99)
CONFIG = OneBitAdamConfig(freeze_steps=FREEZE_STEPS, betas=BETAS, block=50)


class Worker:
    """A worker of its own, and what Adam of torch does with the same gradients."""

    def __init__(self) -> None:
        self._buffer = GradientBuffer(((D,),), CONFIG, torch.device("cpu"))
        self.exchange: Exchange = build.exchange(CONFIG, self._buffer, Connection(1, Unpaced(), Ledger()))
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


def test_of_a_gradient_that_stays_so_does_the_direction_through_the_freeze():
    worker, constant = Worker(), gradient(0)
    constant = constant.sign() * constant.abs().clamp(min=1e-3)  # far above eps: |m| / sqrt(v) is 1

    for _ in range(4 * FREEZE_STEPS):
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
