"""A rehearsal trains a workload like a job, or says in one sentence why that is impossible."""

from pathlib import Path
from typing import Any

import pytest
import torch
from own_models import Regression
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import OwnWorkload
from trainers.training.rehearsal import Rehearsed, parameters, rehearse, shapes, why
from trainers.workload import Workload, WorkloadError

HERE = str(Path(__file__).parent)


class NotFinite(Regression):
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch) / 0


class LaterNotFinite(Regression):
    num_losses = 0

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.num_losses += 1
        return super().loss(model, batch) / (0 if self.num_losses > 1 else 1)


class Detached(Regression):
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return super().loss(model, batch).detach()


class PerSample(Regression):
    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": self.loss(model, batch), "mae": (model(batch[0]) - batch[1]).abs()}


class Small(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.training = TensorDataset(torch.zeros(20, 6), torch.zeros(20, 1))


class Unsized(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.training = iter(())


def factory(width: int, names: tuple[str, ...] = ("a",), rate: float = float("nan"), *, deep: bool = False) -> Workload:
    raise NotImplementedError


def rehearsed(workload: Workload | None = None, *, exchange: Any = None, **parts: Any) -> Rehearsed:
    named = OwnWorkload(factory="own_models:Regression", path=HERE)
    common = {"workload": named, "optimizer": SgdConfig(learning_rate=0.01), "exchange": exchange or NoneConfig()}
    config = ReplicaConfig.model_validate(common | parts)
    return rehearse(config, 2, lambda doing: None, workload)[1]


def test_it_trains_and_evaluates_what_the_job_names() -> None:
    found = rehearsed(exchange=ThresholdConfig(density=(0.1, 0.5)))

    assert (found.num_training, found.num_validation, found.num_parameters) == (240, 50, 65)
    assert found.batch == "(12x6 float32, 12x1 float32)"
    assert len(found.losses) == 3 and set(found.validation) == {"loss", "mae"}
    assert found.seconds_step > 0 and found.spread_step >= 1
    assert found.bytes_kept > 0 and found.bytes_peak > 1_000_000


def test_all_drawn_blocks_count_as_trained() -> None:
    found = rehearsed(blocks={"kind": "jointspar", "share": 0.5})

    assert found.num_trained == found.num_parameters == 65


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (NotFinite, "before any update: look at `loss` and the data"),
        (LaterNotFinite, "after 1 steps at learning rate 0.01: give a lower one"),
        (Detached, "without `detach`"),
        (PerSample, "`mae` is none"),
        (Small, "20"),  # two workers take 24 samples a step
        (Unsized, "has no samples by index"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_remedy(workload: type[Workload], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        rehearsed(workload())


def test_an_error_of_the_users_code_names_its_line() -> None:
    try:
        factory(3)
    except NotImplementedError as error:
        said = why(error, (HERE,))

    assert said.startswith("NotImplementedError") and "test_rehearsal.py, line " in said


def test_a_factorys_parameters_come_with_the_defaults_that_a_job_can_give() -> None:
    named = parameters(OwnWorkload(factory="test_rehearsal:factory", path=HERE))

    assert [(each.name, each.is_required, each.is_json, each.default) for each in named] == [
        ("width", True, True, None),
        ("names", False, True, ["a"]),
        ("rate", False, False, None),
        ("deep", False, True, False),
    ]


def test_a_batch_of_any_nesting_is_described() -> None:
    batch = {"ids": torch.zeros(4, 8, dtype=torch.int64), "pair": (torch.zeros(()), ["text"])}

    assert shapes(batch) == "{ids: 4x8 int64, pair: (scalar float32, (str))}"
