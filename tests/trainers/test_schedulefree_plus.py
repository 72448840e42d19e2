"""ScheduleFree+ follows its formulas: in NumPy, on one vector, with x stored."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.optimizer import Optimizer
from trainers.methods.optimizer.schedulefree_plus import ScheduleFreePlus
from trainers.methods.optimizer.spec import ScheduleFreePlusConfig
from trainers.spec.workloads import DigitsMlp
from trainers.workloads.digits import Digits

SHAPES, GROUP_RATES, DECAYS = {"weight": (3, 4), "bias": (3,)}, (1.0, 0.5), (30.0, 0.0)
RATE, NUM_STEPS = 0.3, 12
#: One of them so far below 0 that Polyak's step is 0.
LOSSES = [2.0 / (1 + step) if step != 6 else -100.0 for step in range(NUM_STEPS)]


class Grouped(Digits):
    """Gives the bias a group of its own, without weight decay, and half the rate."""

    def __init__(self) -> None:
        super().__init__(DigitsMlp())

    def parameter_groups(self, model: nn.Module) -> list[dict[str, object]]:
        weight, bias = model.parameters()
        return [{"params": [weight]}, {"params": [bias], "weight_decay": DECAYS[1], "lr": GROUP_RATES[1]}]


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


def _built(model: nn.Module, **config: object) -> Optimizer:
    config = {"weight_decay": DECAYS[0], "warmup_steps": 3} | config
    return optimizers.build(ScheduleFreePlusConfig(**config), Grouped(), model)  # type: ignore[arg-type]


def _gradients(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES.values()]


def _step(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    for parameter, gradient in zip(model.parameters(), _gradients(step), strict=True):
        parameter.grad = gradient
    optimizer.set_learning_rate(RATE, step)
    optimizer.step(LOSSES[step])


@pytest.mark.parametrize("clipped", [1e-3, 0.5])
def test_clipped_gradients_make_no_step_longer(clipped: float):
    whole, limited = _model(), _model()
    optimizers_of = [(model, _built(model)) for model in (whole, limited)]

    for step in range(NUM_STEPS):
        for (model, optimizer), factor in zip(optimizers_of, (1.0, clipped), strict=True):
            for parameter, gradient in zip(model.parameters(), _gradients(step), strict=True):
                parameter.grad = factor * gradient
            optimizer.set_learning_rate(RATE, step)
            optimizer.step(LOSSES[step], clipped=factor)

    # All gradients are clipped alike, and Adam's direction knows no scale: so nothing differs.
    np.testing.assert_allclose(_vector([*limited.parameters()]), _vector([*whole.parameters()]), rtol=1e-4)


@pytest.mark.parametrize(("huge", "clips"), [(1e19, True), (1e38, False)])
def test_a_gradient_whose_norm_overflows_moves_nothing_and_the_next_step_is_as_if_it_had_not_been(
    huge: float, clips: bool
):
    steps: list[list[float]] = []
    for entries in ([0.1, huge, 0.1], [0.1, 0.1]):
        model = nn.Linear(4, 3)
        nn.init.zeros_(model.weight)
        optimizer = ScheduleFreePlus([model.weight], lr=RATE)
        for entry in entries:
            gradient = torch.full((3, 4), entry)
            factor = 1.0 / torch.linalg.vector_norm(gradient).clamp(min=1.0) if clips else torch.ones(())
            model.weight.grad = gradient * factor
            optimizer.step(lambda: 1.0, clipped=factor)
        steps.append(model.weight.flatten().tolist())

    assert steps[0] == steps[1]
    assert all(map(math.isfinite, steps[0])) and steps[0][0] != 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_not_hidden(wrong: float):
    model = _model()
    optimizer = ScheduleFreePlus([model.weight], lr=RATE)
    model.weight.grad = torch.full((3, 4), wrong, dtype=torch.float64)

    optimizer.step(lambda: 1.0)

    assert model.weight.isnan().all()


def _vector(tensors: list[torch.Tensor]) -> np.ndarray:
    return np.concatenate([tensor.detach().flatten().numpy() for tensor in tensors])


def _by_formulas(start: np.ndarray, beta_p: float) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y after all steps; of each number there is one for each entry, as its group has it."""
    beta, b1, b2 = 0.9, 0.9, 0.95
    sizes = [math.prod(shape) for shape in SHAPES.values()]
    rate, decay = np.repeat(GROUP_RATES, sizes), np.repeat(DECAYS, sizes)
    x, y, z = start, start, start
    e, m, v, largest, total = 0.0, 0.0 * x, 0.0 * x, 0.0 * x, 0.0 * x
    for step in range(NUM_STEPS):
        t, g = step + 1, _vector(_gradients(step))
        inner = beta * g @ (z - x)
        e = beta_p * e + (1 - beta_p) * np.abs(g).sum() * math.sqrt(math.pi / 2)
        lr = rate * RATE * min(1.0, t / 3)
        alpha = lr * max(0.0, LOSSES[step] + inner) / (e / (1 - beta_p**t))
        z = z - alpha**2 * decay * y
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        z = z - alpha * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + 1e-8)
        largest = np.maximum(largest, alpha)
        total = total + largest**2
        c = largest**2 / total
        x = (1 - c) * x + c * z
        y = beta * x + (1 - beta) * z
    return x, y


@pytest.mark.parametrize("beta_p", [0.9, 0.0])
def test_it_steps_as_the_formulas_say(beta_p: float):
    model = _model()
    optimizer = _built(model, l1_momentum=beta_p)
    x, y = _by_formulas(_vector(list(model.parameters())), beta_p)

    for step in range(NUM_STEPS):
        _step(model, optimizer, step)

    np.testing.assert_allclose(_vector(list(optimizer.evaluated().values())), x, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(_vector(list(model.parameters())), y, rtol=1e-11, atol=1e-13)


def test_what_is_evaluated_is_the_average_of_z_weighted_by_the_square_of_the_largest_step_so_far():
    model = _model()
    optimizer = _built(model)
    points, weights = [], []

    for step in range(NUM_STEPS):
        _step(model, optimizer, step)
        points.append(optimizer.tensors()["weight.z"].clone())
        weights.append(optimizer.scalars()["groups"][0]["largest_step"] ** 2)

    average = torch.tensordot(torch.tensor(weights) / sum(weights), torch.stack(points).float(), dims=1)
    torch.testing.assert_close(optimizer.evaluated()["weight"].float(), average)


def test_a_gradient_of_zero_moves_nothing_before_other_steps_and_z_never():
    model = _model()
    optimizer, start = _built(model), _vector(list(model.parameters()))

    def stand() -> np.ndarray:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step(1.0)
        return _vector([tensor for name, tensor in optimizer.tensors().items() if name.endswith(".z")])

    assert np.array_equal(stand(), start) and np.array_equal(_vector(list(model.parameters())), start)
    for step in range(4):
        _step(model, optimizer, step)
    before = _vector([tensor for name, tensor in optimizer.tensors().items() if name.endswith(".z")])
    assert not np.array_equal(before, start)
    assert np.array_equal(stand(), before)


def test_a_loss_far_below_zero_leaves_z_where_it_is():
    model = _model()
    optimizer, start = _built(model), _vector(list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), _gradients(0), strict=True):
        parameter.grad = gradient

    optimizer.step(-1.0)

    assert np.array_equal(_vector(list(model.parameters())), start)


def test_in_plain_torch_its_average_is_lent_and_a_step_needs_it_back():
    model = _model()
    optimizer = ScheduleFreePlus(model.parameters(), lr=RATE)
    for step in range(3):
        for parameter, gradient in zip(model.parameters(), _gradients(step), strict=True):
            parameter.grad = gradient
        assert optimizer.step(lambda: 1.0) == 1.0
    y = _vector(list(model.parameters()))

    optimizer.eval()

    assert not np.allclose(_vector(list(model.parameters())), y, rtol=1e-6)
    with pytest.raises(RuntimeError, match="call `train\\(\\)` before a step"):
        optimizer.step(lambda: 1.0)
    optimizer.train()
    np.testing.assert_allclose(_vector(list(model.parameters())), y, rtol=1e-12)
