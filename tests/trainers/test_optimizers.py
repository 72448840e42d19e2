import math
from collections.abc import Callable

import pytest
import torch
from schedulefree import SGDScheduleFree
from torch import Tensor, nn
from torch.nn import Parameter

from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.optimizer import Optimizer
from trainers.methods.optimizer.spec import (
    AdamWConfig,
    FromExchangeConfig,
    LarsConfig,
    MuonConfig,
    OptimizerConfig,
    OwnOptimizerConfig,
    ScheduleFreeAdamWConfig,
    ScheduleFreePlusConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
)
from trainers.segment import Segment
from trainers.snapshot import State, Tensors
from trainers.spec.workloads import DigitsMlp
from trainers.workloads.digits import Digits

START = torch.randn(5, generator=torch.Generator().manual_seed(0))


#: Options of a group with which no optimizer of ours can step: torch's steps within autograd, and an average's weights.
NOT_FOR_GROUPS = ("differentiable", "train_mode")


class OneGroup(Digits):
    """Gives all parameters one group, with `options`."""

    def __init__(self, **options: object) -> None:
        super().__init__(DigitsMlp())
        self._options = options

    def parameter_groups(self, model: nn.Module) -> list[dict[str, object]]:
        return [{"params": [*model.parameters()], **self._options}]


def gradient(step: int) -> Tensor:
    return torch.randn(5, generator=torch.Generator().manual_seed(100 + step))


def steps(optimizer: Optimizer, parameter: Parameter, which: range, *, learning_rate: float = 0.05) -> None:
    for step in which:
        parameter.grad = gradient(step)
        optimizer.set_learning_rate(learning_rate, step)
        optimizer.step(1.0)


def fresh(config: OptimizerConfig) -> tuple[Optimizer, Parameter]:
    parameter = Parameter(START.clone())
    model = nn.Module()
    model.register_parameter("x", parameter)
    return optimizers.build(config, Digits(DigitsMlp()), model), parameter


@pytest.mark.parametrize("before", [0, 3])
def test_restored_state_continues_with_equal_bits(optimizer_config: OptimizerConfig, before: int):
    optimizer, parameter = fresh(optimizer_config)
    steps(optimizer, parameter, range(before))
    saved = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    scalars, start = optimizer.scalars(), parameter.detach().clone()
    steps(optimizer, parameter, range(before, 10))
    expected = parameter.detach().clone()

    with torch.no_grad():
        parameter.copy_(start)
        for name, tensor in optimizer.tensors().items():
            tensor.copy_(saved[name])
    optimizer.load_scalars(scalars)
    steps(optimizer, parameter, range(before, 10))

    assert torch.equal(parameter, expected)


def _started(config: OptimizerConfig, **options: object) -> tuple[Optimizer, nn.Module]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return optimizers.build(config, OneGroup(**options), model), model


def _step(optimizer: Optimizer, model: nn.Module, step: int = 0) -> dict[str, Tensor]:
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
    optimizer.set_learning_rate(0.05, step)
    optimizer.step(1.0)
    return {name: each.detach().clone() for name, each in model.named_parameters()}


@pytest.mark.parametrize(
    "kind",
    [
        SgdConfig,
        LarsConfig,
        AdamWConfig,
        MuonConfig,
        ScheduleFreeSgdConfig,
        ScheduleFreeAdamWConfig,
        ScheduleFreePlusConfig,
        FromExchangeConfig,
    ],
)
def test_a_step_can_be_taken_back_whatever_option_a_group_brings(kind: type[OptimizerConfig]):
    config = kind()
    defaults = _started(config)[0]._optimizer.defaults
    changed = {name: not value for name, value in defaults.items() if isinstance(value, bool)}
    for name, value in [*defaults.items(), *changed.items()]:
        if name in NOT_FOR_GROUPS or value is None:
            continue
        optimizer, model = _started(config, **{name: value})
        state = State(shared={"optimizer": optimizer, "model": Tensors(dict(model.named_parameters()))}, own={})
        state.snapshot("start")

        first = _step(optimizer, model)
        state.restore("start")

        torch.testing.assert_close(_step(optimizer, model), first, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("kind", [AdamWConfig, MuonConfig])
def test_a_group_with_amsgrad_steps_as_torchs_adamw_with_it(kind: type[AdamWConfig | MuonConfig]):
    optimizer, model = _started(kind(weight_decay=0.01), amsgrad=True)
    bias = Parameter(model.bias.detach().clone())
    theirs = torch.optim.AdamW([bias], lr=0.05, weight_decay=0.01, amsgrad=True, fused=True)

    for step in range(6):
        trained = _step(optimizer, model, step)
        bias.grad = torch.randn(bias.shape, generator=torch.Generator().manual_seed(step))
        theirs.step()

    assert torch.equal(trained["bias"], bias.detach())


def test_a_lost_gradient_is_forgotten_by_amsgrad_too():
    moved = []
    for is_lost in (False, True):
        optimizer, model = _started(AdamWConfig(), amsgrad=True)
        if is_lost:
            start = {name: each.detach().clone() for name, each in model.named_parameters()}
            for step in range(9):
                _step(optimizer, model, step)
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, math.nan)
            optimizer.step(1.0)
            optimizer.forget_lost()
            model.load_state_dict(start)
        moved.append(_step(optimizer, model))

    torch.testing.assert_close(moved[0], moved[1], rtol=0, atol=0)


def test_state_tensors_stay_the_same_objects(optimizer_config: OptimizerConfig):
    optimizer, parameter = fresh(optimizer_config)
    before = {name: id(tensor) for name, tensor in optimizer.tensors().items()}

    steps(optimizer, parameter, range(3))

    assert {name: id(tensor) for name, tensor in optimizer.tensors().items()} == before


@pytest.mark.parametrize(
    ("config", "reference"),
    [
        (
            SgdConfig(momentum=0.9, nesterov=True, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
        ),
        (AdamWConfig(weight_decay=0.01), lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.01, fused=True)),
    ],
)
def test_state_made_up_front_changes_no_bit(
    config: OptimizerConfig, reference: Callable[[list[Parameter]], torch.optim.Optimizer]
):
    optimizer, parameter = fresh(config)
    plain = Parameter(START.clone())
    theirs = reference([plain])

    steps(optimizer, parameter, range(8))
    for step in range(8):
        plain.grad = gradient(step)
        theirs.step()

    assert torch.equal(parameter, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("strides", [torch.contiguous_format, torch.channels_last])
def test_adamw_steps_as_torchs_plain_one_whatever_the_strides_and_precision(
    strides: torch.memory_format, dtype: torch.dtype
):
    kernel, theirs = (nn.Conv2d(4, 8, 3, bias=False, dtype=dtype) for _ in range(2))
    theirs.load_state_dict(kernel.state_dict())
    optimizer = optimizers.build(AdamWConfig(), Digits(DigitsMlp()), kernel.to(memory_format=strides))
    plain = torch.optim.AdamW(theirs.parameters(), lr=0.05, fused=False)

    for step in range(4):
        gradient = torch.randn(8, 4, 3, 3, dtype=dtype, generator=torch.Generator().manual_seed(step))
        kernel.weight.grad, theirs.weight.grad = gradient, gradient.clone()
        optimizer.set_learning_rate(0.05, step)
        optimizer.step(1.0)
        plain.step()

    torch.testing.assert_close(kernel.weight, theirs.weight, rtol=1e-5, atol=1e-6)


class OwnFused(Digits):
    """Asks for torch's fused SGD."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, fused=True)


@pytest.mark.parametrize("strides", [torch.contiguous_format, torch.channels_last])
def test_a_users_fused_optimizer_steps_as_a_plain_one_whatever_the_strides(strides: torch.memory_format):
    kernel, theirs = (nn.Conv2d(4, 8, 3, bias=False) for _ in range(2))
    theirs.load_state_dict(kernel.state_dict())
    optimizer = optimizers.build(OwnOptimizerConfig(), OwnFused(DigitsMlp()), kernel.to(memory_format=strides))
    gradient = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    kernel.weight.grad, theirs.weight.grad = gradient, gradient.clone()

    optimizer.step(1.0)
    torch.optim.SGD(theirs.parameters(), lr=0.05).step()

    torch.testing.assert_close(kernel.weight, theirs.weight, rtol=1e-5, atol=1e-6)


def test_a_frozen_layer_has_no_state_and_leaves_the_others_their_fused_step(optimizer_config: OptimizerConfig):
    model = nn.Sequential(nn.Linear(3, 3).bfloat16().requires_grad_(False), nn.Linear(3, 2))
    optimizer = optimizers.build(optimizer_config, OneGroup(), model)

    assert set(optimizer._optimizer.state) <= set(model[1].parameters())
    if isinstance(optimizer_config, AdamWConfig):
        assert [group["fused"] for group in optimizer._optimizer.param_groups] == [True]


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (AdamWConfig(betas=(0.8, 0.99), weight_decay=0.1), {"momentum": 0.5, "weight_decay": 0.3}),
        (SgdConfig(momentum=0.7, nesterov=True), {"momentum": 0.5, "nesterov": False}),
    ],
    ids=["adamw", "sgd"],
)
def test_what_a_segment_leaves_out_is_as_the_job_states_it(config: OptimizerConfig, given: dict[str, float]):
    optimizer, _ = fresh(config)
    [group] = optimizer._optimizer.param_groups
    stated = dict(group)

    optimizer.set_options(Segment(num_steps=1, learning_rate=0.1, **given))
    changed = dict(group)
    optimizer.set_options(Segment(num_steps=1, learning_rate=0.1))

    assert changed != stated and group == stated


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_forgets_a_lost_gradient_steps_as_if_it_had_taken_none(optimizer_config: OptimizerConfig, wrong: float):
    optimizer, parameter = fresh(optimizer_config)
    steps(optimizer, parameter, range(100))
    parameter.grad = torch.full_like(parameter, wrong)
    optimizer.step(1.0)

    moved = []
    for each, its in ((optimizer, parameter), fresh(optimizer_config)):
        iterates = each.iterate()
        torch._foreach_copy_([iterate.detach() for iterate in iterates], [START] * len(iterates))  # as averages do
        each.forget_lost()
        steps(each, its, range(100, 101))
        moved.append(each.iterate()[-1].detach().clone())

    assert torch.equal(*moved)


def test_our_warmup_is_the_packages_warmup():
    optimizer, parameter = fresh(ScheduleFreeSgdConfig(warmup_steps=5))
    plain = Parameter(START.clone())
    theirs = SGDScheduleFree([plain], lr=0.05, momentum=0.9, warmup_steps=5)
    theirs.train()

    steps(optimizer, parameter, range(12))
    for step in range(12):
        plain.grad = gradient(step)
        theirs.step()
    theirs.eval()

    torch.testing.assert_close(optimizer.evaluated()["x"], plain.detach())


def test_warmup_ramps_linearly_from_the_first_step(optimizer_config: OptimizerConfig):
    optimizer, _ = fresh(optimizer_config)  # 5 steps of warm-up
    rates = []

    for step in range(7):
        optimizer.set_learning_rate(0.1, step)
        rates.append(optimizer.scalars()["groups"][0]["lr"])

    assert rates == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1])


def test_looking_at_the_evaluated_iterate_changes_no_bit(optimizer_config: OptimizerConfig):
    optimizer, parameter = fresh(optimizer_config)
    steps(optimizer, parameter, range(4))
    before, scalars = parameter.detach().clone(), optimizer.scalars()

    optimizer.evaluated()

    assert torch.equal(parameter, before)
    assert optimizer.scalars() == scalars


def test_an_exchanges_direction_is_taken_as_it_is_with_decoupled_decay():
    optimizer, parameter = fresh(FromExchangeConfig(weight_decay=0.1))
    expected = START.clone()

    for step in range(3):
        expected = expected * (1 - 0.05 * 0.1) - 0.05 * gradient(step)
        steps(optimizer, parameter, range(step, step + 1))

    torch.testing.assert_close(parameter.detach(), expected)
    assert not optimizer.tensors()
