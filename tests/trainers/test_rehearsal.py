"""A rehearsal trains a workload like a job, or says in one sentence why that is impossible."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from own_models import HeldOut, Regression
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


class Raw(Regression):
    """Inputs so large that a high learning rate diverges at once."""

    def __init__(self) -> None:
        super().__init__()
        inputs, targets = self.training.tensors
        self.training = TensorDataset(1e3 * inputs, targets)

    def model(self) -> nn.Module:
        return nn.Linear(6, 1)


class Undefined(Regression):
    """Its metric is not a number until it has trained so many times."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until, self.num_losses = until, 0

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.num_losses += torch.is_grad_enabled()
        return super().loss(model, batch)

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        unknown = torch.tensor(torch.nan if self.num_losses < self.until else 1.0)
        return {"loss": self.loss(model, batch), "mae": unknown}


class WithoutTargets(Regression):
    """A validation target is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.validation.tensors[1][7] = torch.nan


class OnceTrained(Regression):
    """The loss of a trained model overflows on validation samples, that of a new one does not."""

    def evaluate(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        is_new = torch.equal(model[0].weight, self.first)
        return {"loss": torch.tensor(1.5 if is_new else torch.inf), "mae": torch.zeros(())}

    def model(self) -> Any:
        model: Any = super().model()
        self.first = model[0].weight.detach().clone()
        return model


def factory(width: int, names: tuple[str, ...] = ("a",), rate: float = float("nan"), *, deep: bool = False) -> Workload:
    raise NotImplementedError


def rehearsed(
    workload: Workload | None = None,
    *,
    exchange: Any = None,
    lowest_rate: float | None = None,
    metric: str | None = None,
    **parts: Any,
) -> Rehearsed:
    named = OwnWorkload(factory="own_models:Regression", path=HERE)
    common = {"workload": named, "optimizer": SgdConfig(learning_rate=0.01), "exchange": exchange or NoneConfig()}
    config = ReplicaConfig.model_validate(common | parts)
    return rehearse(config, 2, lambda doing: None, workload, lowest_rate=lowest_rate, metric=metric)[1]


def test_it_trains_and_evaluates_what_the_job_names() -> None:
    found = rehearsed(exchange=ThresholdConfig(density=(0.1, 0.5)))

    assert (found.num_training, found.num_validation, found.num_parameters) == (240, 50, 65)
    assert found.batch == "(12x6 float32, 12x1 float32)"
    assert len(found.losses) == 3 and set(found.validation) == {"loss", "mae"}
    assert found.seconds_step > 0 and found.spread_step >= 1
    assert found.bytes_kept > 0 and found.bytes_peak > 1_000_000


def test_it_evaluates_the_test_set_as_a_run_will_at_its_end() -> None:
    assert rehearsed(HeldOut()).num_test == 70
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        rehearsed(HeldOut("narrow"))


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


def test_a_guess_that_diverges_is_a_remark_where_the_controller_searches_the_rate() -> None:
    high = SgdConfig(learning_rate=1e3)

    found = rehearsed(Raw(), optimizer=high, lowest_rate=1e-7)

    [remark] = found.remarks
    assert "after 2 steps at your guess, learning rate 1000, so these steps were taken at 1e-07" in remark
    assert len(found.losses) == 3 and found.losses[0] == pytest.approx(rehearsed(Raw()).losses[0])
    with pytest.raises(WorkloadError, match="at learning rate 1000: give a lower one"):
        rehearsed(Raw(), optimizer=high)


def test_what_diverges_at_the_lowest_rate_too_is_refused() -> None:
    with pytest.raises(WorkloadError, match="even at learning rate 500: look at `loss`, and scale the inputs"):
        rehearsed(Raw(), optimizer=SgdConfig(learning_rate=1e3), lowest_rate=500.0)


def test_a_guess_that_trains_has_no_remark() -> None:
    assert rehearsed(lowest_rate=1e-5).remarks == ()


def test_an_objective_that_is_never_finite_is_refused_with_the_field_that_makes_batches_larger() -> None:
    with pytest.raises(WorkloadError, match=r"the validation mae, the objective, is nan .*`evaluation_batch_size`"):
        rehearsed(Undefined(until=torch.inf), metric="mae")
    with pytest.raises(WorkloadError, match=r"the validation loss, .* look in `validation` for values that are not"):
        rehearsed(WithoutTargets(), metric="loss")


def test_a_metric_that_is_not_the_objective_may_be_undefined() -> None:
    assert rehearsed(Undefined(until=torch.inf), metric="loss").validation["loss"] > 0


@pytest.mark.parametrize("workload", [Undefined(until=1), OnceTrained()])
def test_an_objective_that_is_finite_of_the_new_model_or_after_some_steps_will_do(workload: Workload) -> None:
    metric = "mae" if isinstance(workload, Undefined) else "loss"

    assert rehearsed(workload, metric=metric).validation[metric] in (1.0, 1.5)


def test_an_objective_that_the_workload_does_not_measure_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"measures `loss` or `mae`, got `objective\.metric: accuracy`"):
        rehearsed(metric="accuracy")


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
