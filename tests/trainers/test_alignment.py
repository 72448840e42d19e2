"""The cosine between a descent direction and the update before it."""

from pathlib import Path

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
from trainers.training.checkpoint import commit_manifest
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


def test_an_update_counts_until_something_else_moves_the_parameters() -> None:
    parameter = Parameter(torch.ones(3))
    aligned = Alignment([parameter])
    parameter.grad = torch.ones(3)
    with aligned.following(), torch.no_grad():
        parameter -= 0.1

    aligned.begin_if_moved()
    assert aligned.measure() == pytest.approx(1.0)
    with torch.no_grad():
        parameter += 0.1
    aligned.begin_if_moved()
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


def _replica(**changes: LocalSgdConfig) -> Replica:
    config = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig(), **changes)
    return Replica(config, 0, 1, device="cpu")


def _run(replica: Replica, num_steps: int, rate: float = 0.1) -> tuple[float, ...]:
    return replica.run(Segment(num_steps=num_steps, learning_rate=rate)).alignments


def test_steps_that_are_told_one_by_one_show_the_cosines_of_one_long_segment() -> None:
    whole, pieces = _replica(), _replica()

    expected = _run(whole, 6)
    found = [cosine for _ in range(6) for cosine in _run(pieces, 1)]

    assert expected[0] == 0.0 and all(expected[1:])
    assert tuple(found) == expected


def test_a_state_that_is_gone_back_to_shows_the_cosines_that_followed_it(tmp_path: Path) -> None:
    replica, resumed = _replica(), _replica()
    _run(replica, 3)
    replica.snapshot("stage")
    commit_manifest(str(tmp_path), replica.save(str(tmp_path)))
    expected = _run(replica, 3)

    _run(replica, 2, rate=0.7)
    replica.restore("stage")
    resumed.load(str(tmp_path))

    assert all(expected)
    assert [_run(each, 3) for each in (replica, resumed)] == [expected] * 2


def test_a_checkpoint_of_a_release_without_updates_goes_on_without_the_first_cosine(tmp_path: Path) -> None:
    old, new = _replica(), _replica()
    del old.state.shared["alignment"]  # which earlier releases did not write
    _run(old, 3)
    commit_manifest(str(tmp_path), old.save(str(tmp_path)))
    _run(new, 2)

    new.load(str(tmp_path))
    first, *others = _run(new, 3)

    assert first == 0.0
    assert others == list(_run(old, 3))[1:]


@pytest.mark.parametrize("period", [1, 2, 3])
def test_of_workers_that_train_apart_none_is_measured(period: int) -> None:
    replica = _replica(sync=LocalSgdConfig(period=period))

    apart = replica.run(Segment(num_steps=7, learning_rate=0.1)).alignments

    assert apart == (0.0,) * 7
