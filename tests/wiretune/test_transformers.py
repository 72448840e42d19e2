"""The callback for transformers' Trainer, attached once, tested with a fake of that package."""

import copy
import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wiretune

ARGUMENTS = SimpleNamespace(max_grad_norm=1.0, load_best_model_at_end=False)
BEGINNING = SimpleNamespace(global_step=0, max_steps=60, best_model_checkpoint=None)
LOCAL = {"kind": "diloco", "period": 4}
WEIGHTS = "model.pt"


@pytest.fixture
def callback_type(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    package: Any = ModuleType("transformers")
    package.Trainer = package.TrainerCallback = package.TrainerState = package.TrainingArguments = object
    package.TrainerControl = object
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "wiretune.transformers", None)  # put back afterwards
    del sys.modules["wiretune.transformers"]
    callback: type[Any] = import_module("wiretune.transformers").AttachCallback
    return callback


def made(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, scaler: Any = None) -> SimpleNamespace:
    """Return the stand-in of a Trainer of `model`."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return SimpleNamespace(model_wrapped=model, optimizer=optimizer, accelerator=SimpleNamespace(scaler=scaler))


def test_a_second_training_goes_on_with_the_handle_of_the_first(callback_type: type[Any]):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = made(model, optimizer)
    callback = callback_type(trainer, sync={"kind": "diloco", "period": 2})
    callback.on_train_begin(ARGUMENTS, BEGINNING)
    handle = callback.handle

    callback.on_train_begin(ARGUMENTS, BEGINNING)

    assert callback.handle is handle
    assert len(optimizer._optimizer_step_post_hooks) == 1


def test_another_optimizer_is_attached_anew(callback_type: type[Any]):
    model = nn.Linear(4, 1)
    trainer = made(model)
    callback = callback_type(trainer, sync={"kind": "diloco", "period": 2})
    callback.on_train_begin(ARGUMENTS, BEGINNING)
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    callback.on_train_begin(ARGUMENTS, BEGINNING)

    assert callback.handle.optimizer is trainer.optimizer


@pytest.mark.parametrize("kind", ["demo", "cser", "liec_sgd"])
def test_clipping_is_refused_where_it_would_part_the_ranks(callback_type: type[Any], kind: str):
    model = nn.Linear(4, 1)
    trainer = made(model)
    callback = callback_type(trainer, exchange={"kind": kind})

    with pytest.raises(ValueError, match=f"`max_grad_norm` must be 0 with `{kind}`.* got 1: "):
        callback.on_train_begin(ARGUMENTS, BEGINNING)

    assert not trainer.optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("max_grad_norm", [0.0, None])
def test_without_clipping_such_an_exchange_is_attached(callback_type: type[Any], max_grad_norm: float | None):
    model = nn.Linear(4, 1)
    trainer = made(model)
    callback = callback_type(trainer, exchange={"kind": "cser"})

    callback.on_train_begin(SimpleNamespace(max_grad_norm=max_grad_norm), BEGINNING)

    assert callback.handle.config.exchange.kind == "cser"


@pytest.mark.parametrize(
    ("how", "kind"), [({"sync": LOCAL}, "diloco"), ({"exchange": {"kind": "cser"}}, "cser")], ids=["sync", "drifts"]
)
def test_a_grad_scaler_is_refused_where_one_rank_alone_would_skip_a_step(
    callback_type: type[Any], how: dict[str, Any], kind: str
):
    model = nn.Linear(4, 1)
    trainer = made(model, scaler=torch.amp.GradScaler("cpu"))

    with pytest.raises(ValueError, match=f"`fp16` must be off with `{kind}`.*`bf16=True`"):
        callback_type(trainer, **how).on_train_begin(SimpleNamespace(max_grad_norm=0.0), BEGINNING)


@pytest.mark.parametrize(("given", "scale"), [({}, 512.0), ({"scale": lambda: 2.0}, 2.0)])
def test_an_exchange_is_told_the_scale_of_the_losses(callback_type: type[Any], given: dict[str, Any], scale: float):
    model = nn.Linear(4, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    callback = callback_type(made(model, scaler=scaler), exchange={"kind": "topk", "density": 0.1}, **given)

    callback.on_train_begin(ARGUMENTS, BEGINNING)

    assert callback.handle._hook._scale() == scale


class Loop:
    """The loop of a Trainer, with two micro-batches a step, a warm-up, and an evaluation after each fifth step."""

    def __init__(self, callback_type: type[Any], *, max_steps: int, warm_up: int = 10, **how: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, step / warm_up))
        self.trainer = made(self.model, self.optimizer)
        self.trainer.training_step = self._train
        self.callback = callback_type(self.trainer, **how)
        self.state = SimpleNamespace(global_step=0, max_steps=max_steps, best_model_checkpoint=None)
        self.control = SimpleNamespace(should_training_stop=False, should_evaluate=False, should_save=False)
        self.told = ARGUMENTS, self.state, self.control
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.evaluated: list[tuple[bool, float]] = []  # whether within a probe, and the first weight

    def _train(self, scale: float) -> Tensor:
        loss = (self.model(scale * torch.eye(4)) - 1).square().mean() / 2
        loss.backward()
        return loss.detach()

    def run(self, *, stops_at: int | None = None) -> "Loop":
        self.callback.on_train_begin(*self.told)
        while not self.control.should_training_stop:
            self.step(stops=self.state.global_step + 1 in (stops_at, self.state.max_steps))
        self.callback.on_epoch_end(*self.told)
        self.callback.on_train_end(*self.told)
        return self

    def step(self, *, stops: bool = False) -> None:
        self.control.should_evaluate = self.control.should_save = False
        self.callback.on_step_begin(*self.told)
        self.optimizer.zero_grad()
        self.losses.append(sum(self.trainer.training_step(scale).item() for scale in (1.0, 2.0)))
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        self.scheduler.step()
        self.state.global_step += 1
        self.control.should_evaluate, self.control.should_training_stop = self.state.global_step % 5 == 0, stops
        self.callback.on_step_end(*self.told)
        if self.control.should_evaluate:
            is_probing = self.callback.tuner is not None and self.callback.tuner.is_probing
            self.evaluated.append((is_probing, self.model.weight[0, 0].item()))


def test_a_controller_sets_the_rates_in_place_of_the_trainers_scheduler(callback_type: type[Any]):
    loop = Loop(callback_type, max_steps=20, controller={"kind": "linear"}).run()

    assert len(loop.rates) == 20
    assert loop.rates[0] == pytest.approx(0.1, rel=0.1)
    assert sorted(loop.rates, reverse=True) == loop.rates
    assert loop.callback.tuner.is_over


def test_a_controller_is_told_the_loss_of_each_step(callback_type: type[Any], monkeypatch: pytest.MonkeyPatch):
    told, report = list[float](), wiretune.Tuner.report
    monkeypatch.setattr(wiretune.Tuner, "report", lambda self, loss: (told.append(float(loss)), report(self, loss)))

    loop = Loop(callback_type, max_steps=20, controller={"kind": "fixed"}).run()

    assert told == pytest.approx(loop.losses)
    assert loop.trainer.training_step == loop._train


def test_a_trainer_evaluates_between_probes_alone(callback_type: type[Any]):
    loop = Loop(callback_type, max_steps=200, controller={"kind": "bo"}).run()

    assert loop.callback.tuner.decisions[0].search_steps > 5
    assert loop.evaluated and not any(is_probing for is_probing, _ in loop.evaluated)
    assert len(loop.evaluated) < 200 / 5


def test_a_training_that_stops_within_a_probe_ends_without_it(callback_type: type[Any]):
    loop = Loop(callback_type, max_steps=200, controller={"kind": "bo"})
    before = loop.model.weight.clone()

    loop.run(stops_at=3)

    assert torch.equal(loop.model.weight, before)
    assert loop.callback.tuner.is_over


def test_a_training_ends_with_the_budget_of_its_controller(callback_type: type[Any]):
    loop = Loop(callback_type, max_steps=100, controller={"kind": "fixed"}, steps=7).run()

    assert loop.state.global_step == 7


def test_a_training_that_resumes_goes_on_with_its_search(callback_type: type[Any], tmp_path: Path):
    whole, resumed = (Loop(callback_type, max_steps=200, controller={"kind": "bo"}) for _ in range(2))
    for loop in (whole, resumed):
        arguments = SimpleNamespace(**vars(ARGUMENTS), output_dir=str(tmp_path), save_only_model=False)
        loop.told = arguments, loop.state, loop.control
    whole.callback.on_train_begin(*whole.told)
    while whole.state.global_step < 100 or whole.callback.tuner.is_probing:
        whole.step()
    begun = whole.state.global_step
    (tmp_path / f"checkpoint-{begun}").mkdir()
    whole.callback.on_save(*whole.told[:2])

    resumed.state.global_step = begun
    for part in ("model", "optimizer", "scheduler"):  # as the Trainer does
        getattr(resumed, part).load_state_dict(copy.deepcopy(getattr(whole, part).state_dict()))
    resumed.callback.on_train_begin(*resumed.told)
    for loop in (whole, resumed):
        while not loop.callback.tuner.is_over:
            loop.step()

    assert 100 <= begun < 190
    assert (resumed.rates, resumed.losses) == (whole.rates[begun:], whole.losses[begun:])
    assert torch.equal(resumed.model.weight, whole.model.weight)
    assert resumed.callback.tuner.schedule() == whole.callback.tuner.schedule()


def test_a_training_that_resumes_after_its_search_ends_as_it_was_saved(callback_type: type[Any], tmp_path: Path):
    ended, resumed = (Loop(callback_type, max_steps=200, controller={"kind": "bo"}, steps=40) for _ in range(2))
    for loop in (ended, resumed):
        arguments = SimpleNamespace(**vars(ARGUMENTS), output_dir=str(tmp_path), save_only_model=False)
        loop.told = arguments, loop.state, loop.control
    ended.run()
    (tmp_path / "checkpoint-40").mkdir()
    ended.callback.on_save(*ended.told[:2])

    resumed.state.global_step = 40
    for part in ("model", "optimizer", "scheduler"):  # as the Trainer does
        getattr(resumed, part).load_state_dict(copy.deepcopy(getattr(ended, part).state_dict()))
    resumed.run()

    assert resumed.state.global_step == 41  # a Trainer takes a step before it asks whether to stop
    assert torch.equal(resumed.model.weight, ended.model.weight)
    assert not resumed.callback._losses
    assert resumed.callback.tuner.schedule() == ended.callback.tuner.schedule()


def test_a_second_training_after_the_search_is_not_stopped(callback_type: type[Any]):
    loop = Loop(callback_type, max_steps=30, controller={"kind": "fixed"}, steps=7).run()
    loop.control.should_training_stop, loop.state.global_step = False, 0

    loop.run()

    assert loop.state.global_step == 30


def test_a_second_training_within_the_search_has_the_rates_of_the_tuner(callback_type: type[Any]):
    loop = Loop(callback_type, max_steps=200, controller={"kind": "bo"})
    loop.callback.on_train_begin(*loop.told)
    for _ in range(3):  # then it is interrupted
        loop.step()
    before = loop.optimizer.param_groups[0]["lr"]
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: min(1.0, step / 10))
    loop.state.global_step = 0

    loop.callback.on_train_begin(*loop.told)
    loop.step()

    assert loop.rates[-1] == before > 0


def with_a_mean_of_zeros(loop: Loop) -> Loop:
    """Have other ranks be where the mean of all is 0."""
    loop.callback.on_train_begin(*loop.told)
    loop.callback.handle.means = lambda: {"weight": torch.zeros_like(loop.model.weight)}
    return loop


def test_a_trainer_evaluates_the_mean_of_the_ranks_and_trains_on_from_its_own(callback_type: type[Any]):
    alone = Loop(callback_type, max_steps=8, exchange={"kind": "none"}).run()

    loop = with_a_mean_of_zeros(Loop(callback_type, max_steps=8, sync={"kind": "local_sgd", "period": 100}))
    for _ in range(8):
        loop.step()

    assert [weight for _, weight in loop.evaluated] == [0.0]
    assert torch.equal(loop.model.weight, alone.model.weight)


def test_a_rank_saves_its_own_parameters_beside_the_mean(callback_type: type[Any], tmp_path: Path):
    loop = with_a_mean_of_zeros(Loop(callback_type, max_steps=8, sync=LOCAL))
    before = loop.model.weight.detach().clone()
    loop.control.should_save = True
    loop.callback.on_step_end(*loop.told)
    (tmp_path / "checkpoint-0").mkdir()

    loop.callback.on_save(SimpleNamespace(output_dir=str(tmp_path), save_only_model=False), loop.state)

    saved = torch.load(tmp_path / "checkpoint-0/wiretune-0.pt")
    assert torch.equal(saved["own"]["weight"], before) and not saved["fingerprint"][0]


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize(
    ("how", "has_best"),
    [({"sync": LOCAL}, False), ({"sync": LOCAL}, True), ({"exchange": {"kind": "cser"}}, True)],
    ids=["mean", "best", "drifts"],
)
def test_a_training_ends_with_the_mean_of_the_ranks_or_with_the_best_that_was_loaded(
    callback_type: type[Any], how: dict[str, Any], has_best: bool, lent: bool
):
    loop = Loop(callback_type, max_steps=8, **how)
    arguments = SimpleNamespace(max_grad_norm=0.0, load_best_model_at_end=has_best)
    loop.told = arguments, loop.state, loop.control
    with_a_mean_of_zeros(loop)
    loop.control.should_evaluate = lent
    loop.callback.on_epoch_end(*loop.told)
    if has_best:
        nn.init.ones_(loop.model.weight)
        loop.state.best_model_checkpoint = "checkpoint-4"

    loop.callback.on_train_end(arguments, loop.state)
    loop.callback.on_train_begin(arguments, loop.state)

    assert loop.model.weight.unique().tolist() == [float(has_best)]


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
        **how: Any,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        weights = folder / f"checkpoint-{step}" / WEIGHTS
        if weights.is_file():
            self.model.load_state_dict(torch.load(weights), strict=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        trainer = made(self.model, self.optimizer)
        self.callback = callback_type(trainer, sync=sync, **how)
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


def test_a_controller_of_none_is_no_controller(callback_type: type[Any], tmp_path: Path):
    whole = Run(callback_type, tmp_path, controller=None)
    whole.train(2)
    whole.save()

    resumed = Run(callback_type, tmp_path, step=2, controller=None)

    assert resumed.callback.tuner is None
    assert resumed.callback.handle._steps.taken == 2


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

    assert "saved beside the weights that are loaded" in caplog.text
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

    assert resumed.callback.handle._steps.taken == (2 if is_taken_back else 0)
    assert ("`state` must be of the same" in caplog.text) != is_taken_back


@pytest.mark.parametrize(("saved", "is_taken_back"), [([2, 8], True), (["2", "8"], False)])
def test_a_memory_of_a_searched_range_goes_on_with_a_number(
    callback_type: type[Any], tmp_path: Path, saved: list[Any], is_taken_back: bool
):
    before = Run(callback_type, tmp_path)
    before.train(2)
    before.save()
    place = tmp_path / "checkpoint-2/wiretune-0.pt"
    memory = torch.load(place)
    state = memory["handle"]["rank-0"]
    fields = json.loads(state["fields"])
    fields["methods"]["sync"]["period"] = saved
    state["fields"] = json.dumps(fields)
    torch.save(memory, place)

    resumed = Run(callback_type, tmp_path, step=2)

    assert resumed.callback.handle._steps.taken == (2 if is_taken_back else 0)


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
