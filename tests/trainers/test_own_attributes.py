"""A user's own workload is loaded only if every attribute is what training takes it for."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from own_models import Regression, samples
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trainers.spec.workloads import OwnWorkload
from trainers.workload import Workload, WorkloadError
from trainers.workloads import own

HERE = str(Path(__file__).parent)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 3


def doubled(samples: list[tuple[Tensor, ...]]) -> list[Tensor]:
    return [2 * torch.stack(column) for column in zip(*samples, strict=True)]


HIDING: dict[str, Any] = {
    "model": nn.Linear(6, 1),
    "loss": nn.CrossEntropyLoss(),
    "evaluate": "accuracy",
    "collate": nn.Identity(),
    "parameter_groups": [],
}
DATA: dict[str, Any] = {
    "loader": DataLoader(TensorDataset(*samples(1, 5))),
    "iterable": Endless(),
    "generator": iter(()),
}
METRICS: dict[str, Any] = {"list": ["mae"], "function": lambda: {"mae": "min"}}


class Hiding(Regression):
    def __init__(self, name: str) -> None:
        super().__init__()
        setattr(self, name, HIDING[name])


class Functional(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.loss = functional.mse_loss  # type: ignore[assignment]


class Replaced(Regression):
    """Its labels lie in an attribute, and a function makes its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.collate = doubled  # type: ignore[assignment]
        self.labels = torch.zeros(240)  # type: ignore[assignment]


class Validated(Regression):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.validation = DATA[kind]


class Measured(Regression):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.metrics: Mapping[str, Any] = METRICS[kind]


class Numbered(Regression):
    metrics: Mapping[Any, Any] = {1: "min"}


def loaded(name: str, /, **params: str) -> Workload:
    return own.load(OwnWorkload(factory=f"test_own_attributes:{name}", params=dict(params), path=HERE))


@pytest.mark.parametrize("name", HIDING)
def test_an_attribute_that_hides_a_method_is_told_to_have_another_name(name: str) -> None:
    said = f"sets `self.{name}` to a .*, which hides the method `{name}`: give the attribute another name, such as"

    with pytest.raises(WorkloadError, match=said):
        loaded("Hiding", name=name)


def test_a_function_of_torch_is_no_loss_of_a_model_and_a_batch() -> None:
    with pytest.raises(WorkloadError, match=r"`self\.loss` to a function, which hides the method `loss`"):
        loaded("Functional")


def test_a_function_may_replace_a_method_with_a_default_and_labels_may_be_kept_in_an_attribute() -> None:
    workload = loaded("Replaced")

    assert workload.collate([(torch.ones(2),)])[0].tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize(("kind", "type_"), [("loader", "DataLoader"), ("iterable", "Endless"), ("generator", "tuple")])
def test_validation_samples_without_an_index_are_refused_as_training_samples_are(kind: str, type_: str) -> None:
    said = f"`validation` is a {type_}.*, which has no samples by index: give a map-style data set"

    with pytest.raises(WorkloadError, match=said):
        loaded("Validated", kind=kind)


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("HeldOutByName", {}, "`test` is a method, which has no samples by index"),
        ("HeldOut", {"num_test": 0}, "`test` of .* must be a data set with a length of at least 1"),
    ],
)
def test_another_thing_by_the_name_of_the_test_set_is_refused(name: str, params: dict[str, int], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        own.load(OwnWorkload(factory=f"own_models:{name}", params=dict(params), path=HERE))


@pytest.mark.parametrize(("kind", "type_"), [("list", "list"), ("function", "function")])
def test_metrics_that_are_no_mapping_are_refused_with_an_example(kind: str, type_: str) -> None:
    said = rf"`metrics` of .* must map each name to `min` or `max`, as in \{{'accuracy': 'max'\}}; got a {type_}"

    with pytest.raises(WorkloadError, match=said):
        loaded("Measured", kind=kind)


def test_a_metric_whose_name_is_no_text_is_refused() -> None:
    with pytest.raises(WorkloadError, match="`metrics` names 1: letters"):
        loaded("Numbered")
