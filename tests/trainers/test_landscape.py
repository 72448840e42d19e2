"""The landscape around a new model's weights: its loss, its gradient, and how much that turns along a step."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp, OwnWorkload, StdlibLm
from trainers.traffic.shapes import Transformer
from trainers.training import landscape
from trainers.training.model import looks_trained
from trainers.training.replica import Replica
from trainers.workloads.transformer import ByteTransformer


def _quadratic(curvatures: torch.Tensor, place: torch.Tensor):
    """Return the parameters of a loss with these curvatures, with its gradient."""
    return [place], lambda number: (float((curvatures * place**2).sum()) / 2, [curvatures * place])


def test_of_a_bowl_it_is_its_curvature_whatever_the_weights_are_multiplied_by():
    for scale in (1e-3, 1.0, 1e3):
        parameters, gradient = _quadratic(torch.full((5,), 7.0), scale * torch.arange(1.0, 6))
        assert landscape.measured(parameters, gradient, 1).sharpness == pytest.approx(7.0, rel=1e-4)


def test_it_lies_between_the_curvatures_of_a_loss_nearer_to_what_the_gradient_follows():
    parameters, gradient = _quadratic(torch.tensor([1.0, 100.0]), torch.ones(2))

    assert 90 < landscape.measured(parameters, gradient, 1).sharpness <= 100


def test_the_sharpest_batch_counts_and_the_weights_are_put_back_bit_for_bit():
    place = torch.randn(1000)
    before = place.clone()
    found = landscape.measured([place], lambda number: (float(number), [(1.0 + number) * place]), 4)

    assert found.sharpness == pytest.approx(4.0, rel=1e-4)
    assert (found.loss, found.gradient) == pytest.approx((1.5, 2.5 * float(place.norm())))
    assert torch.equal(place, before)


@pytest.mark.parametrize("place", [torch.zeros(3), torch.ones(3)])
def test_where_no_gradient_leads_anywhere_there_is_none(place):
    assert landscape.measured([place], lambda number: (1.0, [torch.zeros(3)]), 2) is None


CONFIG = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig())


def test_a_gradient_that_is_not_finite_says_nothing_whatever_the_other_batches_say():
    def gradient(number):
        return 1.0, [torch.full((3,), math.nan if number == 1 else 1.0)]

    assert landscape.measured([torch.ones(3)], gradient, 3) is None


def test_a_replica_measures_the_same_each_time_and_goes_back_to_where_it_was():
    measured, untouched = Replica(CONFIG, 0, 1), Replica(CONFIG, 0, 1)
    measured.snapshot("before")
    found = [measured.landscape() for _ in range(2)]
    measured.restore("before")

    assert found[0] == found[1] == untouched.landscape()
    assert found[0] is not None and found[0].sharpness > 0
    untouched.reset()
    segment = Segment(num_steps=3, learning_rate=0.1)
    assert measured.run_alone(segment).losses == untouched.run_alone(segment).losses


def test_micro_batches_are_looked_at_like_one_batch():
    one, several = (
        Replica(CONFIG.model_copy(update={"workload": DigitsMlp(batch_size=size), "accumulate": number}), 0, 1)
        for size, number in ((32, 1), (16, 2))
    )

    assert one.landscape() == pytest.approx(several.landscape(), rel=1e-3)


def test_a_start_from_trained_weights_has_their_sharpness_and_is_not_new(tmp_path):
    url = str(tmp_path / "weights.safetensors")
    before = Replica(CONFIG, 0, 1)
    before.export(url)
    workload = CONFIG.workload.model_copy(update={"weights": url})
    after = Replica(CONFIG.model_copy(update={"workload": workload, "seed": CONFIG.seed + 1}), 0, 1)

    assert before.matrices()[:2] == after.matrices()[:2]
    assert (before.matrices()[2], after.matrices()[2]) == (True, False)
    assert after.landscape().sharpness > 0


def test_a_model_that_the_job_says_was_trained_before_is_not_new():
    own = OwnWorkload(factory="own_models:Regression", path=str(Path(__file__).parent))
    pretrained = own.model_copy(update={"pretrained": True})
    found = [Replica(CONFIG.model_copy(update={"workload": each}), 0, 1).matrices() for each in (own, pretrained)]

    assert found[0][:2] == found[1][:2]
    assert [each[2] for each in found] == [True, False]


def _matrices(*initialisers) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [initialise(torch.empty(64, 48)) for initialise in initialisers]


def test_new_weights_never_look_trained_however_they_begin():
    for initialise in (
        nn.init.xavier_normal_,
        nn.init.uniform_,  # its mean is not 0
        nn.init.orthogonal_,
        nn.init.eye_,
        lambda rows: nn.init.normal_(rows) * torch.logspace(-3, 3, 64)[:, None],  # rows of many sizes
        torch.nn.init.zeros_,
    ):
        assert not looks_trained(_matrices(*[initialise] * 4))
    assert not looks_trained(nn.Sequential(*(nn.Conv2d(16, 32, 3) for _ in range(3))).parameters())
    for built in (DigitsMlp(), StdlibLm()):
        assert Replica(CONFIG.model_copy(update={"workload": built}), 0, 1).matrices()[2]


def test_most_matrices_tell_that_a_model_was_trained():
    new = _matrices(nn.init.xavier_normal_, nn.init.xavier_normal_)
    trained = [each + 0.05 * torch.outer(torch.ones(64), torch.linspace(-1, 1, 48)) * 3 for each in new]

    assert looks_trained(trained) and looks_trained([*trained, new[0]])
    assert not looks_trained([*new, *trained]) and not looks_trained(trained[:1])
    assert not looks_trained([torch.empty(0, 16), torch.empty(16, 0)])


def test_a_transformer_looks_trained_after_some_steps():
    torch.manual_seed(0)
    net = ByteTransformer(Transformer(32, 2, 2), 16)
    optimizer, text = torch.optim.AdamW(net.parameters(), lr=3e-3), torch.arange(17).repeat(8, 1)
    assert not looks_trained(net.parameters())
    for step in range(60):
        rows = (text * (1 + step % 3)) % 256
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.step()

    assert looks_trained(net.parameters())
