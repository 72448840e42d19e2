"""DropIT: exact where it claims to be, and dropped values are smaller than kept ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trainers.methods.activations.dropit.dropit import Activations, SavedTensors
from trainers.methods.activations.dropit.spec import DropItConfig
from trainers.methods.activations.keep.spec import KeepConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp
from trainers.training.replica import Replica

Inputs = Callable[[], Tensor]
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(7, 5), (6, 7)),
    "linear over a sequence": (lambda: nn.Linear(7, 5), (2, 3, 7)),
    "linear without a bias": (lambda: nn.Linear(7, 5, bias=False), (6, 7)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "conv2d with stride and groups": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9, 8)),
    "conv2d, dilated, valid": (lambda: nn.Conv2d(3, 4, 3, dilation=2, padding="valid"), (2, 3, 9, 9)),
    "conv2d, reflected": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 9, 9)),
}
SELECTIONS = ("exact", "sampled")


def gradients(layer: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Return output and gradients of a loss that weighs each output differently."""
    inputs = inputs.clone().requires_grad_()
    layer.zero_grad()
    output = layer(inputs)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    (output * weights).sum().backward()
    assert inputs.grad is not None
    found = {"output": output.detach(), "inputs": inputs.grad}
    return found | {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}  # type: ignore[union-attr]


def dropping(layer: nn.Module, gamma: float, selection: str) -> Activations:
    return Activations(DropItConfig.model_validate({"gamma": gamma, "selection": selection}), layer)


@pytest.fixture(params=LAYERS, ids=LAYERS.keys())
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    make, shape = LAYERS[request.param]
    torch.manual_seed(0)
    return make(), torch.randn(shape)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_only_the_gradient_of_the_weight_changes(case: tuple[nn.Module, Tensor], selection: str):
    layer, inputs = case
    plain = gradients(layer, inputs)

    dropping(layer, 0.7, selection)
    found = gradients(layer, inputs)

    for name, value in found.items():
        assert torch.equal(value, plain[name]) is (name != "weight"), name


@pytest.mark.parametrize("selection", SELECTIONS)
def test_an_input_without_entries_trains_as_in_the_plain_layer(case: tuple[nn.Module, Tensor], selection: str):
    layer, inputs = case
    plain = gradients(layer, inputs[:0])

    dropping(layer, 0.7, selection)
    found = gradients(layer, inputs[:0])

    assert all(torch.equal(value, plain[name]) for name, value in found.items())


def test_with_gamma_0_every_bit_is_that_of_the_plain_layer(case: tuple[nn.Module, Tensor]):
    layer, inputs = case
    plain = gradients(layer, inputs)

    dropping(layer, 0.0, "exact")

    assert all(torch.equal(value, plain[name]) for name, value in gradients(layer, inputs).items())


def test_where_all_is_kept_the_gradient_of_the_weight_is_that_of_the_plain_layer(case: tuple[nn.Module, Tensor]):
    layer, inputs = case
    plain = gradients(layer, inputs)

    dropping(layer, 1e-9, "exact")  # less than an entry

    assert torch.equal(gradients(layer, inputs)["weight"], plain["weight"])


@pytest.mark.parametrize("gamma", [0.0, 0.7])
def test_a_layer_can_be_called_by_the_name_that_torch_gives_its_input(case: tuple[nn.Module, Tensor], gamma: float):
    layer, inputs = case

    dropping(layer, gamma, "exact")

    assert torch.equal(layer(input=inputs), layer(inputs))


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_dropped_is_no_larger_than_what_is_kept(selection: str, dtype: torch.dtype):
    activations = dropping(nn.Identity(), 0.9, selection)
    inputs = torch.randn(3, 100_000, dtype=dtype)  # more than a block, and than a sample

    kept = activations.keep(inputs).restored(inputs.shape)

    is_kept = kept != 0
    assert torch.equal(kept[is_kept], inputs[is_kept])
    assert inputs[~is_kept].abs().max() <= kept[is_kept].abs().min()
    assert is_kept.float().mean() == pytest.approx(0.1, rel=0.1 if selection == "sampled" else 0.02)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_of_equal_entries_no_more_are_kept_than_the_share(selection: str):
    inputs = torch.randint(0, 2, (3, 100_000)).float()  # half of them are 1

    kept = dropping(nn.Identity(), 0.8, selection).keep(inputs).restored(inputs.shape)

    assert int(kept.sum()) == 60_000


def test_zeros_are_never_kept_by_a_threshold():
    inputs = torch.relu(torch.randn(1000))

    kept = dropping(nn.Identity(), 0.1, "sampled").keep(inputs)

    assert torch.equal(kept.restored(inputs.shape), inputs)


def test_evaluation_frozen_weights_and_kinds_that_keep_are_plain():
    layer, inputs = nn.Linear(7, 5), torch.randn(6, 7)
    plain = gradients(layer, inputs)
    Activations(KeepConfig(), layer)
    assert torch.equal(gradients(layer, inputs)["weight"], plain["weight"])

    dropping(layer, 0.9, "exact")

    assert torch.equal(gradients(layer.eval(), inputs)["weight"], plain["weight"])
    layer.train().weight.requires_grad_(False)
    assert layer(inputs).grad_fn.name() != "_LinearBackward"


def test_autocast_computes_in_its_own_type():
    layer, inputs = nn.Linear(64, 32), torch.randn(16, 64)
    dropping(layer, 1e-9, "exact")

    with torch.autocast("cpu", torch.bfloat16):
        output = layer(inputs)
    output.float().sum().backward()

    assert output.dtype == torch.bfloat16 and layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 0.15), (torch.bfloat16, 0.20)])
def test_what_is_saved_is_counted_and_shrinks_as_predicted(dtype: torch.dtype, share: float):
    layer = nn.Linear(512, 8, dtype=dtype)
    inputs, saved = torch.randn(256, 512, dtype=dtype), SavedTensors(layer)
    with saved.counted():
        layer(inputs)
    plain = saved.num_bytes

    dropping(layer, 0.9, "exact")
    with saved.counted():
        layer(inputs)

    assert plain == inputs.nbytes
    assert saved.num_bytes == pytest.approx(share * plain, rel=0.01)  # a value and 16 bits for each tenth entry


def test_a_sparse_tensor_that_is_kept_is_left_as_it_is_and_not_counted():
    adjacency, inputs = torch.eye(6).to_sparse(), torch.randn(6, 7)
    layer = nn.Linear(7, 5)
    saved = SavedTensors(layer)

    with saved.counted():
        output = torch.sparse.mm(adjacency, layer(inputs))
    output.sum().backward()

    assert saved.num_bytes == inputs.nbytes
    assert torch.equal(layer.bias.grad, torch.full((5,), 6.0))


def test_a_replica_drops_what_its_segment_says_and_reports_what_it_kept():
    config = ReplicaConfig(
        workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig(), activations=DropItConfig(gamma=(0.5, 0.9))
    )
    replica = Replica(config, 0, 1, device="cpu")
    kept = [replica.run(Segment(num_steps=2, learning_rate=0.05, gamma=gamma)).saved_bytes for gamma in (0.5, 0.9)]

    assert 0 < kept[1] < kept[0]
    with pytest.raises(ValueError, match="`gamma` must be given where it is searched"):
        replica.run(Segment(num_steps=1, learning_rate=0.05))


def test_training_with_dropped_activations_still_learns():
    config = ReplicaConfig(
        workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig(), activations=DropItConfig(gamma=0.9)
    )
    replica = Replica(config, 0, 1, device="cpu")
    before = replica.evaluate().loss

    replica.run(Segment(num_steps=100, learning_rate=0.1))

    assert replica.evaluate().loss < before / 3
