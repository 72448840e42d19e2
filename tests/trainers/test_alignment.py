"""The cosine between a descent direction and the update before it."""

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp
from trainers.training import alignment
from trainers.training.alignment import Alignment
from trainers.training.replica import Replica


def _cosines(rate: float, num_steps: int = 5) -> list[float]:
    """Descend on a quadratic bowl, whose minimum a step at rate 1 just reaches."""
    parameter = Parameter(torch.tensor([3.0, -2.0]))
    aligned, found = Alignment([parameter]), []
    for _ in range(num_steps):
        parameter.grad = parameter.detach().clone()
        found.append(float(aligned.measure()))
        with aligned.following(), torch.no_grad():
            parameter -= rate * parameter.grad
    return found


@pytest.mark.parametrize(("rate", "cosine"), [(0.1, 1.0), (1.5, -1.0)])
def test_it_is_positive_where_a_longer_step_would_have_got_further(rate: float, cosine: float) -> None:
    first, *others = _cosines(rate)

    assert first == 0.0  # there was no update before
    assert others == pytest.approx([cosine] * 4)


def test_an_update_that_was_forgotten_counts_for_nothing() -> None:
    parameter = Parameter(torch.ones(3))
    aligned = Alignment([parameter])
    parameter.grad = torch.ones(3)
    with aligned.following(), torch.no_grad():
        parameter -= 0.1
    assert aligned.measure() == pytest.approx(1.0)
    aligned.begin()

    assert aligned.measure() == 0.0


def test_of_large_models_evenly_spaced_entries_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def cosine() -> Tensor:
        generator = torch.Generator().manual_seed(0)
        parameters = [Parameter(torch.randn(size, generator=generator)) for size in ((300, 40), (999,))]
        aligned = Alignment(parameters)
        with aligned.following(), torch.no_grad():
            for each in parameters:
                each -= 0.1 * torch.randn(each.shape, generator=generator) + 0.1
        for each in parameters:
            each.grad = torch.randn(each.shape, generator=generator) + 1.0
        return aligned.measure()

    whole = cosine()
    monkeypatch.setattr(alignment, "MOST_ENTRIES", 1000)

    assert cosine() == pytest.approx(float(whole), abs=0.1)


def test_a_parameter_without_a_gradient_counts_as_one_that_does_not_move() -> None:
    moved, idle = Parameter(torch.ones(2)), Parameter(torch.ones(2))
    aligned = Alignment([moved, idle])
    moved.grad = torch.ones(2)
    with aligned.following(), torch.no_grad():
        moved -= 0.1

    assert aligned.measure() == pytest.approx(1.0)


@pytest.mark.parametrize("period", [2, 3])
def test_of_workers_that_train_apart_none_is_measured(period: int) -> None:
    config = ReplicaConfig(
        workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig(), sync=LocalSgdConfig(period=period)
    )
    replica = Replica(config, 0, 1, device="cpu")

    apart = replica.run(Segment(num_steps=7, learning_rate=0.1)).alignments

    assert apart == (0.0,) * 7
