import pytest
import torch

from trainers import model
from trainers.config import WORKLOAD_SAMPLES, WORKLOAD_SHAPES, DigitsMlp
from trainers.workload import Workload
from trainers.workloads import table

CONFIGS = {"digits-mlp": DigitsMlp()}


def test_every_declared_workload_can_be_built():
    assert set(table.BUILTIN) - {"own"} == set(WORKLOAD_SHAPES) == set(CONFIGS)


@pytest.mark.parametrize("kind", CONFIGS)
def test_declared_samples_are_the_datas(kind: str):
    assert len(table.build(CONFIGS[kind]).training) == WORKLOAD_SAMPLES[kind]


@pytest.fixture(scope="module", params=CONFIGS)
def workload(request: pytest.FixtureRequest) -> Workload:
    return table.build(CONFIGS[request.param])


@pytest.mark.parametrize("kind", CONFIGS)
def test_declared_shapes_are_the_models(kind: str):
    model = table.build(CONFIGS[kind]).model()

    assert tuple(tuple(parameter.shape) for parameter in model.parameters()) == WORKLOAD_SHAPES[kind]


def test_a_seed_stands_for_one_model_and_leaves_the_global_generator_alone(workload: Workload):
    before = torch.random.get_rng_state()

    first, again, other = (model.build(workload, seed).state_dict() for seed in (5, 5, 6))

    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_training_and_validation_samples_are_disjoint_and_complete():
    digits = table.build(DigitsMlp())

    rows = torch.cat([digits.training.tensors[0], digits.validation.tensors[0]])

    assert (len(digits.training), len(digits.validation)) == (1438, 359)
    assert len(torch.unique(rows, dim=0)) == 1797  # no scan occurs twice in this data set


def test_every_class_is_split_in_the_same_ratio():
    digits = table.build(DigitsMlp())

    counts = torch.bincount(digits.validation.tensors[1]) / torch.bincount(digits.training.tensors[1])

    torch.testing.assert_close(counts, torch.full((10,), 0.25), atol=0.005, rtol=0)


def test_pixels_are_scaled_to_the_unit_interval():
    inputs, _ = table.build(DigitsMlp()).training[torch.arange(100)]

    assert (inputs.dtype, inputs.min().item(), inputs.max().item()) == (torch.float32, 0.0, 1.0)
