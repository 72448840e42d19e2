"""The callback for Lightning's Trainer, tested with a fake of that package."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

LOCAL = {"kind": "local_sgd", "period": 100}
TOPK = {"kind": "topk", "density": 0.3}


@pytest.fixture
def callback_type(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    package, pytorch, strategies = (
        ModuleType(name) for name in ("lightning", "lightning.pytorch", "lightning.pytorch.strategies")
    )
    stands_in: dict[str, Any] = dict.fromkeys(("Callback", "LightningModule", "Trainer"), object)
    vars(pytorch).update(stands_in)
    vars(strategies)["Strategy"] = object
    for module in (package, pytorch, strategies):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "wiretune.lightning", None)  # put back afterwards
    del sys.modules["wiretune.lightning"]
    callback: type[Any] = import_module("wiretune.lightning").AttachCallback
    return callback


class Strategy:
    """Writes and removes checkpoints."""

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str, storage_options: Any = None) -> None:
        torch.save(checkpoint, filepath)

    def remove_checkpoint(self, filepath: str) -> None:
        Path(filepath).unlink()


class Run:
    """A `fit` of one process, which goes on from `checkpoint` if there is one."""

    def __init__(self, callback_type: type[Any], *, checkpoint: Path | None = None, **how: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if checkpoint is not None:
            self.model.load_state_dict(torch.load(checkpoint, weights_only=True)["state_dict"])
        self.trainer = SimpleNamespace(
            model=self.model,
            optimizers=[self.optimizer],
            strategy=Strategy(),
            precision_plugin=SimpleNamespace(),
            gradient_clip_val=None,
            ckpt_path=checkpoint and str(checkpoint),
            state=SimpleNamespace(fn="fit"),
            sanity_checking=False,
        )
        self.callback = callback_type(**how)

    def begin(self) -> "Run":
        self.callback.setup(self.trainer, self.model, "fit")
        self.callback.on_train_start(self.trainer, self.model)
        return self

    def with_a_mean_of_zeros(self) -> "Run":
        """Have other ranks be where the mean of all is 0."""
        self.callback.handle.means = lambda: {"weight": torch.zeros_like(self.model.weight)}
        return self

    def train(self, num_steps: int) -> None:
        for index in range(num_steps):
            self.callback.on_train_batch_start(self.trainer, self.model, None, index)
            self.optimizer.zero_grad()
            self.model(torch.eye(4)).square().mean().backward()
            self.optimizer.step()

    def save(self, place: Path, *, is_whole: bool = True) -> Path:
        whole: dict[str, Any] = {"optimizer_states": []} if is_whole else {}
        self.trainer.strategy.save_checkpoint(whole | {"state_dict": self.model.state_dict()}, str(place))
        return place


def test_a_controller_is_refused_as_lightning_would_save_within_its_probes(callback_type: type[Any]):
    with pytest.raises(ValueError, match="`controller` must be left out"):
        callback_type(controller={"kind": "bo"})


def test_a_module_of_several_optimizers_is_refused(callback_type: type[Any]):
    run = Run(callback_type, exchange=TOPK)
    run.trainer.optimizers = [run.optimizer, run.optimizer]

    with pytest.raises(ValueError, match="must return one optimizer to attach, got 2"):
        run.begin()


def test_what_would_part_the_ranks_is_refused(callback_type: type[Any]):
    clipping, scaling = Run(callback_type, exchange={"kind": "cser"}), Run(callback_type, sync=LOCAL)
    clipping.trainer.gradient_clip_val = 0.5
    scaling.trainer.precision_plugin.scaler = torch.amp.GradScaler("cpu")

    with pytest.raises(ValueError, match=r"`gradient_clip_val` must be 0 with `cser`.* got 0.5: leave it out"):
        clipping.begin()
    with pytest.raises(ValueError, match=r"`precision='16-mixed'` must be off with `local_sgd`.*bf16-mixed"):
        scaling.begin()


def test_an_exchange_is_told_the_scale_of_the_losses(callback_type: type[Any]):
    run = Run(callback_type, exchange=TOPK)
    run.trainer.precision_plugin.scaler = torch.amp.GradScaler("cpu", init_scale=512.0)

    assert run.begin().callback.handle._hook._scale() == 512.0


@pytest.mark.parametrize("how", [{"exchange": TOPK}, {"sync": LOCAL}], ids=["topk", "sync"])
def test_a_run_that_resumes_goes_on_as_if_it_had_not_stopped(callback_type: type[Any], tmp_path: Path, how: Any):
    whole = Run(callback_type, **how).begin()
    whole.train(2)
    checkpoint = whole.save(tmp_path / "last.ckpt")
    resumed = Run(callback_type, checkpoint=checkpoint, **how).begin()

    whole.train(3)
    resumed.train(3)

    assert torch.equal(whole.model.weight, resumed.model.weight)
    assert str(whole.callback.handle.state_dict()) == str(resumed.callback.handle.state_dict())


def test_a_rank_takes_its_own_parameters_back_and_the_checkpoint_has_the_mean(callback_type: type[Any], tmp_path: Path):
    run = Run(callback_type, sync=LOCAL).begin().with_a_mean_of_zeros()
    run.train(2)
    own = run.model.weight.detach().clone()

    checkpoint = run.save(tmp_path / "last.ckpt")
    resumed = Run(callback_type, checkpoint=checkpoint, sync=LOCAL)
    loaded = resumed.model.weight.detach().clone()
    resumed.begin()

    assert torch.equal(run.model.weight, own)
    assert not loaded.any()
    assert torch.equal(resumed.model.weight, own)


def test_the_trainer_validates_the_mean_of_the_ranks_and_trains_on_from_its_own(callback_type: type[Any]):
    alone, run = Run(callback_type, exchange={"kind": "none"}).begin(), Run(callback_type, sync=LOCAL).begin()
    run.with_a_mean_of_zeros()
    alone.train(4)

    run.train(2)
    run.callback.on_validation_start(run.trainer, run.model)
    validated = run.model.weight.detach().clone()
    run.train(2)

    assert not validated.any()
    assert torch.equal(run.model.weight, alone.model.weight)


def test_a_fit_ends_with_the_mean_of_the_ranks(callback_type: type[Any]):
    run = Run(callback_type, sync=LOCAL).begin().with_a_mean_of_zeros()

    run.callback.on_train_end(run.trainer, run.model)

    assert not run.model.weight.any()


def test_a_first_validation_before_the_training_is_of_the_model_as_it_is(callback_type: type[Any]):
    run = Run(callback_type, sync=LOCAL)
    run.trainer.sanity_checking = True

    run.callback.on_validation_start(run.trainer, run.model)

    assert run.model.weight.any()


def test_a_part_is_saved_and_removed_with_its_checkpoint_and_none_with_weights_alone(
    callback_type: type[Any], tmp_path: Path
):
    run = Run(callback_type, exchange=TOPK).begin()
    run.save(tmp_path / "weights.ckpt", is_whole=False)
    run.save(tmp_path / "step=1.ckpt")
    saved = sorted(each.name for each in tmp_path.iterdir())
    run.trainer.strategy.remove_checkpoint(str(tmp_path / "step=1.ckpt"))

    assert saved == ["step=1.ckpt", "step=1.wiretune-0.pt", "weights.ckpt"]
    assert [each.name for each in tmp_path.iterdir()] == ["weights.ckpt"]


def test_a_link_to_a_checkpoint_leads_to_its_part(callback_type: type[Any], tmp_path: Path):
    run = Run(callback_type, exchange=TOPK).begin()
    run.train(2)
    run.save(tmp_path / "step=2.ckpt")
    (tmp_path / "last.ckpt").symlink_to("step=2.ckpt")

    resumed = Run(callback_type, checkpoint=tmp_path / "last.ckpt", exchange=TOPK).begin()

    assert resumed.callback.handle._steps.taken == 2


def test_a_run_that_resumes_without_its_memory_says_so(
    callback_type: type[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    run = Run(callback_type, exchange=TOPK).begin()
    checkpoint = run.save(tmp_path / "last.ckpt")
    (tmp_path / "last.wiretune-0.pt").unlink()

    Run(callback_type, checkpoint=checkpoint, exchange=TOPK).begin()

    assert f"lost its memory of the steps before: `{tmp_path}/last.wiretune-0.pt`" in caplog.text


def test_a_second_fit_attaches_anew_and_saves_one_part_for_each_checkpoint(callback_type: type[Any], tmp_path: Path):
    run = Run(callback_type, exchange=TOPK).begin()
    first = run.callback.handle
    run.trainer.model = nn.Sequential(run.model)  # as Lightning wraps it again
    run.trainer.optimizers = [torch.optim.SGD(run.model.parameters(), lr=0.1)]
    saving = run.trainer.strategy.save_checkpoint

    run.begin()

    assert run.callback.handle is not first
    assert run.trainer.strategy.save_checkpoint is saving


@pytest.mark.parametrize("how", [{"exchange": TOPK}, {"sync": LOCAL}], ids=["topk", "sync"])
def test_a_second_fit_of_the_module_itself_goes_on_from_where_the_first_one_ended(callback_type: type[Any], how: Any):
    run = Run(callback_type, **how).begin()
    run.train(2)
    run.callback.on_train_end(run.trainer, run.model)
    ended = run.model.weight.detach().clone()
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    run.trainer.optimizers = [run.optimizer]

    run.begin()
    begun = run.model.weight.detach().clone()
    run.train(2)

    assert torch.equal(begun, ended)
    assert run.callback.handle._steps.taken == 2
