"""LARS moves each layer by a share of its own norm; without that, plain SGD remains."""

import pytest
import torch
from torch.nn import Parameter

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.lars import Lars
from trainers.methods.optimizer.spec import LarsConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp
from trainers.training.replica import Replica


def _stepped(start: torch.Tensor, gradients: list[torch.Tensor], **options: float) -> torch.Tensor:
    parameter = Parameter(start.clone())
    optimizer = Lars([parameter], **options)  # type: ignore[arg-type]
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_first_step_is_the_trusted_share_of_the_layers_length_whatever_the_gradients(scale: float):
    weight, gradient = torch.randn(5, 4), scale * torch.randn(5, 4)

    moved = _stepped(weight, [gradient], lr=2.0, trust=0.01) - weight

    assert moved.norm() == pytest.approx(2.0 * 0.01 * float(weight.norm()), rel=1e-5)
    assert torch.nn.functional.cosine_similarity(moved.flatten(), -gradient.flatten(), dim=0) == pytest.approx(1.0)


def test_two_steps_are_those_of_the_published_formula():
    weight = torch.randn(3, 4, dtype=torch.float64)
    gradients = [torch.randn(3, 4, dtype=torch.float64) for _ in range(2)]
    momentum, decay, trust, rate = 0.9, 0.1, 0.02, 0.5

    expected, velocity = weight.clone(), torch.zeros_like(weight)
    for gradient in gradients:
        local = trust * expected.norm() / (gradient.norm() + decay * expected.norm())
        velocity = momentum * velocity + rate * local * (gradient + decay * expected)
        expected = expected - velocity

    found = _stepped(weight, gradients, lr=rate, momentum=momentum, weight_decay=decay, trust=trust)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("start", [torch.ones(6), torch.zeros(2, 3)], ids=["a bias", "weights of length 0"])
def test_what_has_no_length_to_go_by_takes_the_steps_of_sgd_at_the_trusted_rate(start: torch.Tensor):
    gradients = [torch.full_like(start, 0.5)]

    torch.testing.assert_close(_stepped(start, gradients, lr=10.0, trust=0.01), start - 0.05)


def test_a_replica_learns_with_it_and_goes_back_bit_for_bit():
    config = ReplicaConfig(workload=DigitsMlp(), optimizer=LarsConfig(), exchange=NoneConfig())
    replica, segment = Replica(config, 0, 1, device="cpu"), Segment(num_steps=100, learning_rate=10.0)
    before = replica.evaluate().loss
    replica.snapshot("start")

    losses = replica.run(segment).losses
    after = replica.evaluate().loss
    replica.restore("start")

    assert after < before / 3
    assert replica.run(segment).losses == losses
