"""Muon for matrices and AdamW for the rest, with one rate: each parameter steps as under its own optimizer."""

import copy

import pytest
import torch
from torch import Tensor, nn

from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.muon import MuonWithAdamW, orthogonal
from trainers.methods.optimizer.optimizer import Optimizer
from trainers.methods.optimizer.spec import MuonConfig
from trainers.spec.workloads import DigitsMlp
from trainers.workload import WorkloadError
from trainers.workloads.digits import Digits

RATE, DECAY = 0.02, 0.1
#: To which torch's Muon rounds a step's entries.
BFLOAT16 = 2**-7


class Grouped(Digits):
    """Gives its biases a group of their own, without weight decay, and half the rate; `options` are both groups'."""

    def __init__(self, **options: object) -> None:
        super().__init__(DigitsMlp())
        self._options = options

    def parameter_groups(self, model: nn.Module) -> list[dict[str, object]]:
        biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
        others = [each for name, each in model.named_parameters() if not name.endswith("bias")]
        return [
            {"params": biases, "weight_decay": 0.0, "lr": 0.5, **self._options},
            {"params": others, **self._options},
        ]


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 5), nn.Conv2d(1, 2, 3), nn.Linear(5, 5))


def _built(model: nn.Module, **config: object) -> Optimizer:
    return optimizers.build(MuonConfig(weight_decay=DECAY, **config), Digits(DigitsMlp()), model)


def _gradient(parameter: Tensor, step: int) -> Tensor:
    return torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))


def _trained(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    for step in range(4):
        for parameter in model.parameters():
            parameter.grad = _gradient(parameter, step)
        optimizer.set_learning_rate(RATE, step)
        optimizer.step(1.0)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _alone(name: str, optimizer: type[torch.optim.Optimizer], **options: object) -> Tensor:
    parameter = dict(_model().named_parameters())[name]
    theirs = optimizer([parameter], lr=RATE, weight_decay=DECAY, **options)
    for step in range(4):
        parameter.grad = _gradient(parameter, step)
        theirs.step()
    return parameter.detach()


@pytest.mark.parametrize("name", ["1.weight", "3.weight"])
def test_matrices_step_as_torchs_muon_scaled_to_adamw(name: str):
    model = _model()

    trained = _trained(model, _built(model, momentum=0.9))

    theirs = _alone(name, torch.optim.Muon, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    torch.testing.assert_close(trained[name], theirs, rtol=0, atol=4 * RATE * BFLOAT16)


def test_a_kernel_steps_as_the_matrix_of_its_outputs():
    model, theirs = _model(), nn.Parameter(dict(_model().named_parameters())["2.weight"].detach().flatten(1))
    optimizer = torch.optim.Muon([theirs], lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        theirs.grad = _gradient(torch.empty(2, 1, 3, 3), step).flatten(1)
        optimizer.step()

    trained = _trained(model, _built(model))

    torch.testing.assert_close(trained["2.weight"].flatten(1), theirs.detach(), rtol=0, atol=4 * RATE * BFLOAT16)


@pytest.mark.parametrize("shape", [(1, 1), (3, 50), (50, 3), (40, 40)])
def test_what_is_stepped_along_has_singular_values_near_1_whatever_its_gradient_is_scaled_by(shape: tuple[int, int]):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    found = orthogonal(matrix)

    assert 0.6 < torch.linalg.matrix_norm(found, -2) <= torch.linalg.matrix_norm(found, 2) < 1.3
    torch.testing.assert_close(orthogonal(1e4 * matrix), found, rtol=1e-3, atol=1e-4)
    assert not orthogonal(torch.zeros(shape)).any()


def test_the_memory_format_of_a_kernel_changes_nothing():
    plain, other = nn.Conv2d(4, 3, 3), nn.Conv2d(4, 3, 3)
    other.load_state_dict(plain.state_dict())
    other = other.to(memory_format=torch.channels_last)

    trained = [_trained(each, _built(each))["weight"] for each in (plain, other)]

    assert torch.equal(*trained)


@pytest.mark.parametrize("name", ["0.weight", "1.bias", "2.bias", "3.bias"])
def test_embeddings_and_vectors_step_as_torchs_adamw(name: str):
    model = _model()

    trained = _trained(model, _built(model, betas=(0.8, 0.99)))

    assert torch.equal(trained[name], _alone(name, torch.optim.AdamW, betas=(0.8, 0.99), fused=True))


@pytest.mark.parametrize("of_no_kind", [nn.LayerNorm(3), nn.Linear(3, 3, bias=False)], ids=["none", "all"])
def test_a_model_without_matrices_or_of_matrices_alone_trains(of_no_kind: nn.Module):
    before = of_no_kind.weight.detach().clone()

    _trained(of_no_kind, _built(of_no_kind))

    assert not torch.equal(of_no_kind.weight, before)


@pytest.mark.parametrize("options", [{}, {"betas": (0.8, 0.99), "eps": 1e-6}])
def test_its_state_is_complete_before_the_first_step(options: dict[str, object]):
    model = _model()
    optimizer = optimizers.build(MuonConfig(weight_decay=DECAY), Grouped(**options), model)
    before = {name: id(tensor) for name, tensor in optimizer.tensors().items()}

    _trained(model, optimizer)

    assert {name: id(tensor) for name, tensor in optimizer.tensors().items()} == before
    assert {"1.weight.momentum_buffer", "1.bias.exp_avg", "0.weight.step"} <= before.keys()


def test_a_workloads_groups_keep_their_rates_and_options_and_parameters_the_models_order():
    workload = Grouped()
    model = workload.model()
    optimizer = optimizers.build(MuonConfig(weight_decay=DECAY), workload, model)

    optimizer.set_learning_rate(RATE, 0)

    assert list(optimizer.parameters) == [name for name, _ in model.named_parameters()]
    by_bias = {group["betas"][0] if "betas" in group else None: group for group in optimizer._groups}
    assert (by_bias[0.9]["lr"], by_bias[0.9]["weight_decay"]) == (RATE / 2, 0.0)
    assert (by_bias[None]["lr"], by_bias[None]["weight_decay"]) == (RATE, DECAY)


def test_what_adamw_alone_takes_of_a_groups_options_holds_for_its_part_of_the_group():
    model, matrix = _model(), nn.Linear(3, 3, bias=False)
    options = {"betas": (0.8, 0.99), "eps": 1e-6}

    trained = _trained(model, optimizers.build(MuonConfig(weight_decay=DECAY), Grouped(**options), model))
    alone = _trained(matrix, optimizers.build(MuonConfig(), Grouped(**options), matrix))

    assert torch.equal(trained["0.weight"], _alone("0.weight", torch.optim.AdamW, **options, fused=True))
    assert torch.equal(trained["1.weight"], _trained(other := _model(), _built(other))["1.weight"])
    assert alone["weight"].isfinite().all()


def test_a_group_that_maximizes_does_so_with_its_matrices_too():
    model, opposite = _model(), _model()
    maximizing = optimizers.build(MuonConfig(weight_decay=0.0), Grouped(maximize=True), model)
    minimizing = optimizers.build(MuonConfig(weight_decay=0.0), Digits(DigitsMlp()), opposite)
    start = _model().get_parameter("1.weight").detach()

    up, down = _trained(model, maximizing)["1.weight"], _trained(opposite, minimizing)["1.weight"]

    torch.testing.assert_close(up - start, start - down)


def test_an_option_that_neither_knows_is_refused():
    workload = Grouped(trust=0.1)

    with pytest.raises(WorkloadError, match=r"muon does not know: \['trust'\]"):
        optimizers.build(MuonConfig(), workload, workload.model())


def _stepped(model: nn.Module, optimizer: MuonWithAdamW, step: int) -> None:
    """Step once, at a rate that a scheduler would write into the groups."""
    for group in optimizer.param_groups:
        group["lr"] = RATE / (1 + step)
    for parameter in model.parameters():
        parameter.grad = _gradient(parameter, step)
    optimizer.step()


@pytest.mark.parametrize("by", ["load_state_dict", "deepcopy"])
def test_what_goes_on_from_its_state_steps_as_if_it_had_never_stopped(by: str):
    model = _model()
    optimizer = MuonWithAdamW([{"params": list(model.parameters())}], weight_decay=DECAY)
    for step in range(2):
        _stepped(model, optimizer, step)
    if by == "deepcopy":
        again, other = copy.deepcopy((model, optimizer))
    else:
        again = copy.deepcopy(model)
        other = MuonWithAdamW([{"params": list(again.parameters())}])
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    _stepped(model, optimizer, 2)
    _stepped(again, other, 2)

    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_a_closure_is_called_once():
    parameter = nn.Parameter(torch.ones(2, 2))
    calls: list[int] = []

    def closure() -> float:
        calls.append(1)
        return 2.0

    assert MuonWithAdamW([{"params": [parameter]}]).step(closure) == 2.0
    assert calls == [1]
