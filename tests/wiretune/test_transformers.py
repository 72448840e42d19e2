"""The callback for the Trainer of transformers, which is attached once; a stand-in takes that package's place."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

ARGUMENTS = SimpleNamespace(max_grad_norm=1.0)
BEGINNING = SimpleNamespace(global_step=0)
LOCAL = {"kind": "diloco", "period": 4}
WEIGHTS = "model.pt"


@pytest.fixture
def callback_type(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    package: Any = ModuleType("transformers")
    package.Trainer = package.TrainerCallback = package.TrainerState = package.TrainingArguments = object
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "wiretune.transformers", None)  # put back afterwards
    del sys.modules["wiretune.transformers"]
    callback: type[Any] = import_module("wiretune.transformers").AttachCallback
    return callback


def test_a_second_training_goes_on_with_the_handle_of_the_first(callback_type: type[Any]):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = SimpleNamespace(model_wrapped=model, optimizer=optimizer)
    callback = callback_type(trainer, sync={"kind": "diloco", "period": 2})
    callback.on_train_begin(ARGUMENTS, BEGINNING)
    handle = callback.handle

    callback.on_train_begin(ARGUMENTS, BEGINNING)

    assert callback.handle is handle
    assert len(optimizer._optimizer_step_post_hooks) == 1


def test_another_optimizer_is_attached_anew(callback_type: type[Any]):
    model = nn.Linear(4, 1)
    trainer = SimpleNamespace(model_wrapped=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    callback = callback_type(trainer, sync={"kind": "diloco", "period": 2})
    callback.on_train_begin(ARGUMENTS, BEGINNING)
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    callback.on_train_begin(ARGUMENTS, BEGINNING)

    assert callback.handle.optimizer is trainer.optimizer


@pytest.mark.parametrize("kind", ["demo", "cser", "liec_sgd"])
def test_clipping_is_refused_where_it_would_part_the_ranks(callback_type: type[Any], kind: str):
    model = nn.Linear(4, 1)
    trainer = SimpleNamespace(model_wrapped=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    callback = callback_type(trainer, exchange={"kind": kind})

    with pytest.raises(ValueError, match=f"`max_grad_norm` must be 0 with `{kind}`.* got 1: "):
        callback.on_train_begin(ARGUMENTS, BEGINNING)

    assert not trainer.optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("max_grad_norm", [0.0, None])
def test_without_clipping_such_an_exchange_is_attached(callback_type: type[Any], max_grad_norm: float | None):
    model = nn.Linear(4, 1)
    trainer = SimpleNamespace(model_wrapped=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    callback = callback_type(trainer, exchange={"kind": "cser"})

    callback.on_train_begin(SimpleNamespace(max_grad_norm=max_grad_norm), BEGINNING)

    assert callback.handle.config.exchange.kind == "cser"


class Run:
    """A run of a Trainer in `folder`, of which rank 0's parameters are loaded where it resumes."""

    def __init__(
        self,
        callback_type: type[Any],
        folder: Path,
        *,
        step: int = 0,
        saves_model_only: bool = False,
        sync: dict[str, Any] | None = LOCAL,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        weights = folder / f"checkpoint-{step}" / WEIGHTS
        if weights.is_file():
            self.model.load_state_dict(torch.load(weights), strict=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        trainer = SimpleNamespace(model_wrapped=self.model, optimizer=self.optimizer)
        self.callback = callback_type(trainer, sync=sync)
        self.arguments = SimpleNamespace(max_grad_norm=1.0, output_dir=str(folder), save_only_model=saves_model_only)
        self.state = SimpleNamespace(global_step=step)
        self.callback.on_train_begin(self.arguments, self.state)

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            self.model(torch.eye(4)).square().mean().backward()
            self.optimizer.step()
            self.state.global_step += 1

    def save(self) -> None:
        place = Path(self.arguments.output_dir) / f"checkpoint-{self.state.global_step}"
        place.mkdir()
        torch.save(dict(self.model.named_parameters()), place / WEIGHTS)  # another rank has other buffers
        self.callback.on_save(self.arguments, self.state)


def test_a_run_that_resumes_goes_on_as_if_it_had_not_stopped(callback_type: type[Any], tmp_path: Path):
    whole = Run(callback_type, tmp_path)
    whole.train(2)
    whole.save()
    resumed = Run(callback_type, tmp_path, step=2)

    whole.train(3)
    resumed.train(3)

    ends = whole.model.state_dict(), resumed.model.state_dict()
    assert all(map(torch.equal, ends[0].values(), ends[1].values()))
    assert str(whole.callback.handle.state_dict()) == str(resumed.callback.handle.state_dict())


@pytest.mark.parametrize("part", [None, 0, 0.5])
def test_a_run_that_resumes_without_its_memory_or_with_a_part_of_it_says_so(
    callback_type: type[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, part: float | None
):
    if part is not None:
        before = Run(callback_type, tmp_path)
        before.train(2)
        before.save()
        place = tmp_path / "checkpoint-2" / "wiretune-0.pt"
        place.write_bytes(place.read_bytes()[: int(part * place.stat().st_size)])

    Run(callback_type, tmp_path, step=2)

    assert f"lost its memory of the steps before: `{tmp_path}/checkpoint-2/wiretune-0.pt`" in caplog.text


def test_the_memory_of_a_run_with_other_weights_is_left_where_it_is(
    callback_type: type[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    other = Run(callback_type, tmp_path)
    other.train(2)
    other.save()
    (tmp_path / "checkpoint-2" / WEIGHTS).unlink()

    resumed = Run(callback_type, tmp_path, step=2)

    assert "beside the weights that the Trainer has loaded" in caplog.text
    assert torch.equal(resumed.model[0].weight, Run(callback_type, tmp_path).model[0].weight)


@pytest.mark.parametrize(
    ("sync", "is_taken_back"),
    [
        (None, False),
        ({"kind": "local_sgd", "period": 4}, False),
        (LOCAL | {"outer_momentum": 0.5}, False),
        (LOCAL | {"max_z": 3.0}, False),
        (LOCAL | {"period": 8}, True),
    ],
)
def test_a_memory_goes_on_with_the_same_methods_alone(
    callback_type: type[Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    sync: dict[str, Any] | None,
    is_taken_back: bool,
):
    before = Run(callback_type, tmp_path)
    before.train(2)
    before.save()

    resumed = Run(callback_type, tmp_path, step=2, sync=sync)

    assert resumed.callback.handle.state_dict()["scalars"]["steps"]["taken"] == (2 if is_taken_back else 0)
    assert ("by the same exchange and sync" in caplog.text) != is_taken_back


@pytest.mark.parametrize("saves_model_only", [False, True])
def test_a_run_that_begins_has_nothing_to_resume(
    callback_type: type[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, saves_model_only: bool
):
    run = Run(callback_type, tmp_path, saves_model_only=saves_model_only)
    run.save()

    assert not caplog.text
    assert (tmp_path / "checkpoint-0/wiretune-0.pt").is_file() != saves_model_only


def test_a_checkpoint_elsewhere_makes_no_folder_of_its_step(callback_type: type[Any], tmp_path: Path):
    run = Run(callback_type, tmp_path)
    run.callback.on_save(run.arguments, run.state)

    assert not [*tmp_path.iterdir()]
