"""Properties of every built-in workload, and of those whose data are always present."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from trainers.methods.optimizer.spec import ScheduleFreeAdamWConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import (
    DiamondsMlp,
    DigitsMlp,
    FashionConv,
    FlightsEmbedding,
    MinilmLora,
    Mnist5kCnn,
    StdlibLm,
    WorkloadConfig,
)
from trainers.traffic import collectives, shapes
from trainers.training import model
from trainers.training.replica import Replica
from trainers.workload import Workload, WorkloadError
from trainers.workloads import registry
from trainers.workloads.diamonds import read_table
from trainers.workloads.perceptron import perceptron

SMALL: dict[str, WorkloadConfig] = {
    "digits-mlp": DigitsMlp(),
    "mnist5k-cnn": Mnist5kCnn(batch_size=8),
    "fashion-conv": FashionConv(batch_size=8),
    "stdlib-lm": StdlibLm(context=16, batch_size=4),
    "diamonds-mlp": DiamondsMlp(batch_size=16),
    "flights-embedding": FlightsEmbedding(batch_size=16),
    "minilm-lora": MinilmLora(batch_size=8, max_tokens=16),
}
SIZES: list[WorkloadConfig] = [
    *(FashionConv(size=size) for size in shapes.CONV_CHANNELS),
    *(StdlibLm(size=size) for size in shapes.TRANSFORMERS),
    StdlibLm(context=64),
    FlightsEmbedding(width=3),
    MinilmLora(rank=2),
]


def test_every_declared_workload_can_be_built():
    assert set(registry.BUILTIN) - {"own"} == set(SMALL)


@pytest.fixture(params=SMALL)
def workload(request: pytest.FixtureRequest, small_data: Path) -> Workload:
    return registry.build(SMALL[request.param])


@pytest.mark.parametrize("config", [*SMALL.values(), *SIZES], ids=str)
def test_declared_shapes_are_the_models(config: WorkloadConfig, small_data: Path):
    with torch.device("meta"):
        model = registry.build(config).model()

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert tuple(tuple(parameter.shape) for parameter in trained) == shapes.parameter_shapes(config)


@pytest.mark.parametrize("config", SMALL.values(), ids=SMALL)
def test_declared_metrics_are_the_workloads(config: WorkloadConfig):
    assert config.metrics == registry.BUILTIN[config.kind].metrics  # type: ignore[attr-defined]


@pytest.mark.parametrize("config", SMALL.values(), ids=SMALL)
def test_declared_samples_are_the_datas(config: WorkloadConfig):
    try:
        workload = registry.build(config)
    except WorkloadError as error:
        pytest.skip(str(error))

    assert config.num_samples in (None, len(workload.training))


@pytest.mark.parametrize(
    ("config", "num_parameters"),
    [
        (FashionConv(size="small"), 24e3),
        (FashionConv(size="medium"), 0.54e6),
        (FashionConv(size="large"), 5e6),
        (StdlibLm(size="0.2M"), 0.2e6),
        (StdlibLm(size="1M"), 1e6),
        (StdlibLm(size="5M"), 5e6),
        (StdlibLm(size="25M"), 25e6),
    ],
    ids=str,
)
def test_a_size_is_within_five_percent_of_its_name(config: WorkloadConfig, num_parameters: float):
    declared = shapes.parameter_shapes(config)

    assert declared is not None
    assert collectives.num_elements(declared) == pytest.approx(num_parameters, rel=0.05)


def test_a_seed_stands_for_one_model_and_leaves_the_global_generator_alone(workload: Workload):
    before = torch.random.get_rng_state()

    first, again, other = (model.build(workload, seed).state_dict() for seed in (5, 5, 6))

    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("config", SMALL.values(), ids=SMALL)
def test_a_few_steps_lower_the_validation_loss(
    config: WorkloadConfig, make_config: Callable[..., ReplicaConfig], small_data: Path
):
    replica = Replica(make_config(workload=config, optimizer=ScheduleFreeAdamWConfig()), 0, 1, device="cpu")
    before = replica.evaluate()

    replica.run(Segment(num_steps=30, learning_rate=5e-3))

    assert replica.evaluate().loss < 0.9 * before.loss
    assert before.metrics.keys() == replica.workload.metrics.keys()


@pytest.mark.parametrize("kind", ["mnist5k-cnn", "fashion-conv", "diamonds-mlp"])
def test_training_and_validation_share_no_sample(kind: str, small_data: Path):
    workload = registry.build(SMALL[kind])

    rows = [part.tensors[0].flatten(1) for part in (workload.training, workload.validation)]

    assert len(torch.unique(torch.cat(rows), dim=0)) == sum(map(len, rows))  # all of these rows are distinct


def test_the_digits_are_scikit_learns():
    digits = registry.build(DigitsMlp())
    pixels, labels = load_digits(return_X_y=True)

    parts = (digits.training.tensors, digits.validation.tensors)
    ours = {(tuple(row), label) for rows, ys in parts for row, label in zip(rows.tolist(), ys.tolist(), strict=True)}

    assert ours == {(tuple((row / 16).tolist()), int(label)) for row, label in zip(pixels, labels, strict=True)}


def test_training_and_validation_digits_are_disjoint_and_complete():
    digits = registry.build(DigitsMlp())

    rows = torch.cat([digits.training.tensors[0], digits.validation.tensors[0]])

    assert (len(digits.training), len(digits.validation)) == (1438, 359)
    assert len(torch.unique(rows, dim=0)) == 1797  # no scan occurs twice in this data set


def test_every_class_is_split_in_the_same_ratio():
    digits = registry.build(DigitsMlp())

    counts = torch.bincount(digits.validation.tensors[1]) / torch.bincount(digits.training.tensors[1])

    torch.testing.assert_close(counts, torch.full((10,), 0.25), atol=0.005, rtol=0)


def test_pixels_are_scaled_to_the_unit_interval():
    inputs, _ = registry.build(DigitsMlp()).training[torch.arange(100)]

    assert (inputs.dtype, inputs.min().item(), inputs.max().item()) == (torch.float32, 0.0, 1.0)


def test_a_conv_nets_statistics_follow_its_images(make_config: Callable[..., ReplicaConfig], small_data: Path):
    replica = Replica(make_config(workload=Mnist5kCnn(batch_size=8)), 0, 1, device="cpu")
    means = [norm.running_mean for norm in replica.model.modules() if isinstance(norm, nn.BatchNorm2d)]
    assert len(means) == 3 and not any(mean.any() for mean in means)

    replica.run(Segment(num_steps=1, learning_rate=0.01))

    assert all(mean.any() for mean in means)


def test_the_error_of_a_price_is_that_of_its_logarithm(small_data: Path):
    diamonds = registry.build(DiamondsMlp())
    features, _ = diamonds.validation.tensors
    one_deviation_off = perceptron((26, 1))
    with torch.no_grad():
        guesses = one_deviation_off(features)

    measured = diamonds.evaluate(one_deviation_off, (features, guesses.squeeze(1) + 1))

    _, prices = read_table(small_data / "diamonds.csv")
    assert measured["loss"].item() == pytest.approx(1)
    assert measured["mae"].item() == pytest.approx(np.log(prices).std(), rel=0.1)  # of all, not the training ones
