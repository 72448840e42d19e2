"""A controller in a loop: probes are undone, and the rest trains at the committed rates."""

import io
import math
import re
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wiretune
from search import strategies
from search.budget.link import StepCost
from search.config import BoConfig, Budget, FixedConfig
from search.loop.orders import Taken, Task
from search.protocol import Strategy
from search.space import SearchSpace
from search.types import Values
from trainers.methods.exchange.demo.spec import DemoConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import FromExchangeConfig, OwnOptimizerConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.diloco.spec import DiLoCoConfig
from trainers.own_loop.attach import attach
from trainers.snapshot import LIVE
from trainers.spec.workloads import OwnWorkload
from wiretune.committed import CommittedValues
from wiretune.gradient_signs import GradientSigns
from wiretune.leader import Leader
from wiretune.tuner import num_timed, options_of, space_of, steps_to_time

STEPS = 200
PERIODS = {"kind": "diloco", "period": [4, 32]}
OUTER = PERIODS | {"outer_learning_rate": [0.5, 1.0], "outer_momentum": [0.1, 0.9]}
LEVELS = {"kind": "topk", "density": [0.01, 0.1]}


class Script:
    """A user's loop on one batch, whose loss falls to 0; `report` is called once a step."""

    def __init__(self, *, drawn: int = 0, **how: Any) -> None:
        torch.manual_seed(drawn)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 1))
        groups: list[dict[str, Any]] = [{"params": self.model[0].parameters()}]
        groups.append({"params": self.model[2:].parameters(), "lr": 0.002})
        self.optimizer = torch.optim.SGD(groups, lr=0.001, momentum=0.9)
        self.tuner: object = wiretune.attach(self.model, self.optimizer, **how) if how else None
        self.inputs = torch.randn(32, 8)
        self.losses: list[float] = []
        self.rates: list[tuple[float, float]] = []

    def step(self, loss: float | None = None) -> None:
        """Train a step, and report its loss, or `loss` in its place."""
        self.optimizer.zero_grad()
        found = (self.model(self.inputs) - self.inputs[:, :1]).square().mean()
        found.backward()
        self.optimizer.step()
        self.losses.append(found.item())
        first, second = self.optimizer.param_groups
        self.rates.append((first["lr"], second["lr"]))
        if isinstance(self.tuner, wiretune.Tuner):
            self.tuner.report(found if loss is None else loss)

    @property
    def state(self) -> list[Tensor]:
        return [each.clone() for each in self.model.state_dict().values()]


@pytest.fixture(scope="module")
def tuned() -> Script:
    script = Script(controller={"kind": "bo", "num_stages": 1}, steps=STEPS)
    for _ in range(STEPS):
        script.step()
    return script


def test_every_probe_begins_where_the_run_began(tuned: Script):
    assert isinstance(tuned.tuner, wiretune.Tuner)
    probes = [probe.candidate for probe in tuned.tuner.decisions[0].probes]
    lengths = [probe.allowance.steps or 0 for probe in probes]
    starts = [sum(lengths[:index]) for index in range(len(lengths) + 1)]  # the last is the commit's

    assert len({tuned.rates[start] for start in starts[:-1]}) == len(probes) > 3
    assert {tuned.losses[start] for start in starts} == {tuned.losses[0]}


@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_search_that_stops_within_a_probe_leaves_what_is_committed(num_steps: int):
    script = Script(controller={"kind": "bo"}, steps=STEPS)
    tuner, before = script.tuner, script.state
    assert isinstance(tuner, wiretune.Tuner)
    for _ in range(num_steps):
        script.step()
    assert tuner.is_probing

    tuner.stop()

    assert all(map(torch.equal, script.state, before))
    assert [group["lr"] for group in script.optimizer.param_groups] == pytest.approx([0.001, 0.002])
    assert tuner.is_over and not tuner.is_probing
    script.step()
    assert not all(map(torch.equal, script.state, before))


def test_a_search_that_stops_within_a_later_probe_goes_back_to_the_committed_values():
    script = Script(controller={"kind": "local"}, steps=400)
    tuner, committed = script.tuner, list[float]()
    assert isinstance(tuner, wiretune.Tuner)
    for _ in range(100):
        if tuner.is_probing and tuner.decisions:
            break
        is_probing = tuner.is_probing
        script.step()
        committed += [] if is_probing else [script.rates[-1][0]]
    before = script.state
    script.step()

    tuner.stop()

    assert all(map(torch.equal, script.state, before))
    assert script.optimizer.param_groups[0]["lr"] == committed[-1]
    assert tuner.schedule().num_steps == len(committed)


def test_a_search_that_stops_within_a_probe_sets_a_rate_in_a_tensor_too():
    model, rate = nn.Linear(4, 1), torch.tensor(0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    tuner = wiretune.attach(model, optimizer, controller={"kind": "bo"}, steps=STEPS)
    for _ in range(20):
        tuner.report(1.0)
    assert tuner.is_probing and rate.item() != pytest.approx(0.01)

    tuner.stop()

    assert rate.item() == pytest.approx(0.01)


def test_a_search_that_stops_within_a_commit_keeps_its_steps():
    script = Script(controller={"kind": "fixed"}, steps=STEPS)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)
    for _ in range(3):
        script.step()
    before = script.state

    tuner.stop()
    tuner.stop()

    assert all(map(torch.equal, script.state, before))
    assert tuner.schedule().num_steps == 3


@pytest.mark.parametrize("num_good", [0, 5])
def test_a_search_whose_report_was_interrupted_says_so_until_it_is_stopped_and_then_leaves_what_is_committed(
    num_good: int, monkeypatch: pytest.MonkeyPatch
):
    script = Script(controller={"kind": "bo"}, steps=STEPS)
    tuner, before = script.tuner, script.state
    assert isinstance(tuner, wiretune.Tuner)
    for _ in range(num_good):
        script.step()
    with monkeypatch.context() as within, pytest.raises(KeyboardInterrupt):
        within.setattr(tuner, "_clock", interrupted)
        script.step()

    with pytest.raises(RuntimeError, match=r"an earlier `report` has failed.*: call `stop\(\)`"):
        script.step()
    tuner.stop()

    assert all(map(torch.equal, script.state, before)) and tuner.is_over
    assert [group["lr"] for group in script.optimizer.param_groups] == pytest.approx([0.001, 0.002])
    script.step()


def test_a_rewind_that_was_interrupted_is_made_by_stop(monkeypatch: pytest.MonkeyPatch):
    script = Script(controller={"kind": "fixed"}, steps=40)
    tuner, before = script.tuner, script.state
    assert isinstance(tuner, wiretune.Tuner)
    monkeypatch.setattr(tuner.handle, "restore", interrupted)
    with pytest.raises(KeyboardInterrupt):
        while True:
            script.step(loss=math.nan)
    monkeypatch.undo()

    tuner.stop()

    assert all(map(torch.equal, script.state, before))
    with pytest.raises(RuntimeError, match="the search ended before its first commit"):
        tuner.schedule()


def interrupted(*_: object) -> float:
    raise KeyboardInterrupt


def test_a_search_that_is_detached_within_a_probe_leaves_what_is_committed():
    script = Script(controller={"kind": "bo"}, steps=STEPS)
    tuner, before = script.tuner, script.state
    assert isinstance(tuner, wiretune.Tuner)
    for _ in range(3):
        script.step()
    assert tuner.is_probing

    tuner.handle.detach()

    assert tuner.is_over and all(map(torch.equal, script.state, before))


def replace_a_buffer(script: Script) -> None:
    script.model[2].running_mean = torch.zeros(16)


def add_a_group(script: Script) -> None:
    script.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.1})


@pytest.mark.parametrize("spoil", [replace_a_buffer, add_a_group])
def test_a_search_whose_probe_cannot_be_taken_back_says_so_once_and_has_ended(spoil: Callable[[Script], None]):
    script = Script(controller={"kind": "bo"}, steps=STEPS)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)
    script.step()
    spoil(script)

    with pytest.raises(RuntimeError, match="the search has ended, and model and optimizer are not as they were commit"):
        tuner.stop()
    tuner.stop()

    assert tuner.is_over and not tuner.is_probing


@pytest.mark.parametrize("spoil", [replace_a_buffer, add_a_group])
def test_a_handle_whose_probe_cannot_be_taken_back_is_detached_with_a_warning(
    spoil: Callable[[Script], None], caplog: pytest.LogCaptureFixture
):
    script = Script(controller={"kind": "bo"}, steps=STEPS)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)
    script.step()
    spoil(script)

    tuner.handle.detach()

    assert "model and optimizer are not as they were committed" in caplog.text
    assert not script.optimizer._optimizer_step_post_hooks
    assert not script.optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("is_tensor", [False, True])
def test_a_scheduler_that_overwrites_the_rates_of_a_search_is_refused(is_tensor: bool):
    script = Script()
    for group in script.optimizer.param_groups:
        group["lr"] = torch.tensor(group["lr"]) if is_tensor else group["lr"]
    script.tuner = wiretune.attach(script.model, script.optimizer, controller={"kind": "bo"}, steps=STEPS)
    scheduler = torch.optim.lr_scheduler.LambdaLR(script.optimizer, lambda step: 0.9**step)
    script.step()
    scheduler.step()

    with pytest.raises(RuntimeError, match=r"group 0 must have the rate that the tuner has set, .* leave out your l"):
        script.step()


def test_a_scheduler_that_steps_before_each_report_changes_no_rate():
    script, alone = (Script(controller={"kind": "fixed"}, steps=9) for _ in range(2))
    scheduler = torch.optim.lr_scheduler.LambdaLR(script.optimizer, lambda step: 0.9**step)
    tuner, script.tuner = script.tuner, None
    assert isinstance(tuner, wiretune.Tuner)

    for _ in range(9):
        script.step()
        scheduler.step()
        tuner.report(script.losses[-1])
        alone.step()

    assert script.losses == alone.losses


@pytest.mark.parametrize("accumulates", [False, True])
def test_a_report_without_a_step_for_the_gradients_that_wait_is_refused(accumulates: bool):
    script, num_reports = Script(controller={"kind": "bo"}, steps=STEPS), 0
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)

    with pytest.raises(RuntimeError, match=r"call `report` once, after each `optimizer.step\(\)`"):
        for number in range(20):
            loss = (script.model(script.inputs) - script.inputs[:, :1]).square().mean()
            loss.backward()
            if accumulates and number % 2 == 0:
                script.optimizer.step()
                script.optimizer.zero_grad()
            tuner.report(loss)
            num_reports += 1

    assert num_reports == (7 if accumulates else 3)


@pytest.mark.parametrize("clips", [False, True])
def test_a_report_before_the_first_step_is_refused_at_that_step(clips: bool):
    script = Script(controller={"kind": "bo"}, steps=STEPS)
    assert isinstance(script.tuner, wiretune.Tuner)
    loss = (script.model(script.inputs) - script.inputs[:, :1]).square().mean()
    loss.backward()
    script.tuner.report(loss)
    if clips:
        nn.utils.clip_grad_norm_(script.model.parameters(), 1e-3)

    with pytest.raises(RuntimeError, match=r"after each `optimizer.step\(\)`: .* was reported before it"):
        script.optimizer.step()


def test_a_script_may_leave_out_its_first_steps():
    script = Script(controller={"kind": "bo"}, steps=STEPS)
    assert isinstance(script.tuner, wiretune.Tuner)
    for _ in range(2):
        script.optimizer.zero_grad()
        loss = (script.model(torch.randn(32, 8)) - 100).square().mean()
        loss.backward()
        script.tuner.report(loss)

    for _ in range(5):
        script.step()


def test_a_search_that_resumes_knows_that_its_loop_has_stepped():
    script, tuner = committing_script()
    kept = saved(script, tuner)
    resumed, again = resumable(0)
    again.load_state_dict(kept["tuner"])

    for _ in range(5):  # more than a loop may leave out that has taken a few steps
        resumed.optimizer.zero_grad()
        loss = (resumed.model(resumed.inputs) - resumed.inputs[:, :1]).square().mean()
        loss.backward()
        again.report(loss)


def test_steps_that_a_grad_scaler_or_a_script_leaves_out_may_be_reported():
    script = Script(controller={"kind": "fixed"}, steps=STEPS)
    scaler, tuner = torch.amp.GradScaler("cpu", init_scale=2.0**127), script.tuner
    assert isinstance(tuner, wiretune.Tuner)

    for number in range(40):
        script.optimizer.zero_grad()
        loss = (script.model(script.inputs) - script.inputs[:, :1]).square().mean() * 1e6
        scaler.scale(loss).backward()
        if number < 38:
            scaler.step(script.optimizer)
            scaler.update()
        tuner.report(loss)

    assert scaler.get_scale() < 2.0**120  # so many steps were left out
    assert tuner.schedule().num_steps == 40


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (torch.ones(4, 2), r"`loss` must be one number, got shape \(4, 2\): give its mean"),
        (None, "`loss` must be one number, or a tensor of one, got None"),
    ],
)
def test_a_loss_that_is_not_one_number_is_refused_and_the_search_goes_on(loss: Any, message: str):
    script = Script(controller={"kind": "fixed"}, steps=3)
    assert isinstance(script.tuner, wiretune.Tuner)

    with pytest.raises(ValueError, match=message):
        script.tuner.report(loss)

    for _ in range(3):
        script.step()
    assert script.tuner.is_over


@pytest.mark.parametrize("stops", [False, True])
def test_a_search_that_is_over_keeps_no_copy_of_the_model(stops: bool):
    script = Script(controller={"kind": "fixed"}, steps=5)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner) and tuner.handle._state.images().keys() == {LIVE, "stage"}

    for _ in range(1 if stops else 6):
        script.step()
    if stops:
        tuner.stop()

    assert tuner.handle._state.images().keys() == {LIVE}


def test_what_stays_is_plain_training_at_the_committed_rates(tuned: Script):
    assert isinstance(tuned.tuner, wiretune.Tuner)
    committed = tuned.rates[tuned.tuner.decisions[0].search_steps :]
    plain = Script()

    for rates in committed:
        for group, rate in zip(plain.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        plain.step()

    assert len(committed) > STEPS / 2
    assert all(map(torch.equal, plain.state, tuned.state))


def test_a_plain_loop_follows_what_was_learned(tuned: Script):
    assert isinstance(tuned.tuner, wiretune.Tuner)
    committed = [first for first, _ in tuned.rates[tuned.tuner.decisions[0].search_steps :]]
    schedule = wiretune.Schedule.from_json(tuned.tuner.schedule().to_json())
    plain = Script()
    scheduler = schedule.scheduler(plain.optimizer)

    for _ in range(schedule.num_steps):
        plain.step()
        scheduler.step()

    assert [first for first, _ in plain.rates] == pytest.approx(committed, rel=1e-4)
    assert len(schedule.entries) < len(committed) / 2
    assert schedule.optimizer == "sgd"


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "plain sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.02),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.8, nesterov=True, weight_decay=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.02, betas=(0.8, 0.9), weight_decay=0.1),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_schedule_builds_an_optimizer_with_the_options_of_the_one_that_learned_it(name: str):
    learned, again = nn.Linear(4, 1), nn.Linear(4, 1)
    again.load_state_dict(learned.state_dict())
    optimizer = OPTIMIZERS[name](learned.parameters())
    tuner = wiretune.attach(learned, optimizer, controller={"kind": "cosine"}, steps=8)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, end_step: Callable[[Tensor], None]) -> None:
        for step in range(8):
            optimizer.zero_grad()
            loss = (model(torch.eye(4)) - step).square().mean()
            loss.backward()
            optimizer.step()
            end_step(loss)

    train(learned, optimizer, tuner.report)
    schedule = wiretune.Schedule.from_json(tuner.schedule().to_json())
    optimizer = wiretune.build_optimizer(again, schedule.optimizer_fields)
    scheduler = schedule.scheduler(optimizer)
    train(again, optimizer, lambda _: scheduler.step())

    assert torch.allclose(again.weight, learned.weight, rtol=1e-4)


def test_a_schedule_keeps_no_option_in_which_the_groups_differ():
    weight, bias = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    groups = [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.8, 0.9))

    assert options_of(optimizer.param_groups, "adamw") == {"betas": [0.8, 0.9]}


def test_rates_of_an_optimizer_that_the_tuner_does_not_know_are_kept_as_multiples_of_the_guess():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
    tuner = wiretune.attach(model, optimizer, controller={"kind": "fixed"}, steps=5)

    for _ in range(5):
        tuner.report(1.0)

    again = torch.optim.Adagrad(model.parameters(), lr=0.03)
    assert tuner.schedule().optimizer == "own"
    assert tuner.schedule().scheduler(again).get_last_lr() == pytest.approx([0.03])


def resumable(drawn: int, **budget: float) -> tuple[Script, wiretune.Tuner]:
    """Return a script with a search that reads no clock."""
    script = Script(drawn=drawn)
    handle = attach(script.model, script.optimizer, exchange={"kind": "none"})
    tuner = wiretune.Tuner(handle, BoConfig(), budget=Budget(**budget or {"steps": 400}), seed=0, clock=lambda: 0.0)
    script.tuner = tuner
    return script, tuner


def committing_script() -> tuple[Script, wiretune.Tuner]:
    """Return a script within the first commit of its search, and the search."""
    script, tuner = resumable(0)
    while tuner.is_probing or len(tuner._committed) < 20:
        script.step()
    return script, tuner


def saved(script: Script, tuner: wiretune.Tuner) -> dict[str, Any]:
    """Return what `script` would load, by way of a file."""
    parts = {"model": script.model, "optimizer": script.optimizer, "tuner": tuner}
    file = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


MOMENTS: dict[str, Callable[[wiretune.Tuner], bool]] = {
    "within an order": lambda tuner: len(tuner._progress.losses) == 5 and len(tuner._committed) > 40,
    "at an order's end": lambda tuner: not tuner._progress.losses and len(tuner._committed) > 40,
    "after a rollback": lambda tuner: tuner.num_taken_back > 0,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_search_that_resumes_goes_on_as_if_it_had_not_stopped(moment: str):
    (whole, tuner), kept, begun = resumable(0), dict[str, Any](), 0

    def train(script: Script, step: int) -> None:
        script.step(loss=math.nan if 250 <= step < 256 else None)  # in a commit, which is rolled back

    for step in range(400):
        if not kept and not tuner.is_probing and MOMENTS[moment](tuner):
            kept, begun = saved(whole, tuner), step
        train(whole, step)
    resumed, again = resumable(1)
    resumed.inputs = whole.inputs
    resumed.model.load_state_dict(kept["model"])
    resumed.optimizer.load_state_dict(kept["optimizer"])
    again.load_state_dict(kept["tuner"])
    for step in range(begun, 400):
        train(resumed, step)

    assert tuner.num_taken_back > 0 and 0 < begun < 390
    assert (resumed.rates, resumed.losses) == (whole.rates[begun:], whole.losses[begun:])
    assert all(map(torch.equal, resumed.state, whole.state))
    assert again._leader.loop.strategy.state_dict() == tuner._leader.loop.strategy.state_dict()
    assert again.schedule() == tuner.schedule() and again.decisions == tuner.decisions
    assert (again.is_over, again.num_taken_back) == (True, tuner.num_taken_back)


@pytest.mark.parametrize("kind", ["bo", "linear"])
def test_a_search_that_resumes_with_a_larger_budget_trains_and_decays_to_its_end(kind: str):
    script = Script(controller={"kind": kind}, steps=120)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)
    while tuner.is_probing or not tuner.decisions or len(script.losses) < 70:
        script.step()
    kept, begun = saved(script, tuner), len(script.losses)
    longer = Script(controller={"kind": kind}, steps=240)
    again = longer.tuner
    assert isinstance(again, wiretune.Tuner)
    longer.model.load_state_dict(kept["model"])
    longer.optimizer.load_state_dict(kept["optimizer"])

    again.load_state_dict(kept["tuner"])
    while not again.is_over:
        longer.step()

    rates = [first for first, _ in longer.rates]
    assert begun < 110 and begun + len(rates) == 240
    assert rates[-1] < 0.1 * rates[120 - begun]


def test_a_search_that_is_over_does_not_grow():
    script = Script(controller={"kind": "fixed"}, steps=5)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)
    while not tuner.is_over:
        script.step()

    with pytest.raises(ValueError, match="`steps` must be as in the search that `state` is of, 5, got 100"):
        committing().load_state_dict(saved(script, tuner)["tuner"])


def test_a_search_that_is_over_resumes_as_one():
    script, tuner = resumable(0, steps=30)
    while not tuner.is_over:
        script.step()
    kept = saved(script, tuner)
    resumed, again = resumable(1, steps=30)

    again.load_state_dict(kept["tuner"])
    resumed.step()

    assert again.is_over and again.schedule() == tuner.schedule()


def test_a_search_is_not_saved_within_a_probe():
    _, tuner = resumable(0)
    assert tuner.is_probing

    with pytest.raises(RuntimeError, match="save while `is_probing` is false"):
        tuner.state_dict()


def committing(**how: Any) -> wiretune.Tuner:
    tuner = Script(**{"controller": {"kind": "fixed"}, "steps": 100} | how).tuner
    assert isinstance(tuner, wiretune.Tuner)
    return tuner


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"steps": 50}, "`steps` must be as in the search that `state` is of, 100 or larger, got 50"),
        ({"steps": 100, "seconds": 9}, "`seconds` must be as in the search that `state` is of, None, got 9"),
        ({"controller": {"kind": "cosine"}}, "`controller.kind` must be .*'fixed', got 'cosine'"),
        ({"batch_size": 4}, "`batch_size` must be .*None, got 4"),
        ({"sync": {"kind": "local_sgd", "period": 4}}, "`period` must be"),
        ({"exchange": {"kind": "fp16"}}, "`exchange.kind` is 'fp16' here, got 'none'"),
    ],
)
def test_the_state_of_another_search_is_refused_by_field(how: dict[str, Any], message: str):
    state, other = committing().state_dict(), committing(**how)

    with pytest.raises(ValueError, match=message):
        other.load_state_dict(state)

    assert not other.is_over


def test_before_a_step_is_committed_there_is_no_schedule():
    script = Script(controller={"kind": "bo"}, steps=STEPS)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner) and tuner.is_probing
    script.step()

    with pytest.raises(RuntimeError, match="no step is committed yet"):
        tuner.schedule()


def test_a_ramp_is_one_entry_and_other_values_are_another():
    rates = [0.1, 0.1, 0.1, 0.08, 0.06, 0.04, 0.02]
    rows = [[rate, 0.5 if step < 5 else 0.1, *[math.nan] * 3] for step, rate in enumerate(rates)]

    entries = CommittedValues(chain.from_iterable(rows)).entries(unit=2.0)

    assert [(each.step, each.num_steps, each.level) for each in entries] == [(0, 3, 0.5), (3, 2, 0.5), (5, 2, 0.1)]
    assert [entry.learning_rate_at(step) for entry in entries for step in range(entry.step, entry.step + 2)] == [
        0.05, 0.05, 0.04, 0.03, 0.02, 0.01
    ]  # fmt: skip


def test_the_schedule_of_a_long_run_takes_little_memory():
    script = Script(controller={"kind": "fixed"}, steps=10**6)
    tuner, num_steps = script.tuner, 200_000
    assert isinstance(tuner, wiretune.Tuner)
    rates = (0.1 if step < 1000 else 0.1 * (1 - step / num_steps) for step in range(num_steps))
    tuner._committed = CommittedValues(chain.from_iterable([rate, 0.01, 8.0, math.nan, math.nan] for rate in rates))

    tracemalloc.start()
    schedule = tuner.schedule()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 20e6
    assert [(each.step, each.num_steps, each.level) for each in schedule.entries] == [
        (0, 1000, 0.01), (1000, 199_000, 0.01)
    ]  # fmt: skip


def test_a_rate_in_a_tensor_stays_that_tensor():
    model, rate = nn.Linear(4, 1), torch.tensor(0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    tuner = wiretune.attach(model, optimizer, controller={"kind": "linear"}, steps=5)
    tuner.report(1.0)

    assert optimizer.param_groups[0]["lr"] is rate
    assert 0 < rate.item() < 0.01


def test_a_group_that_is_added_later_is_refused_with_a_remedy():
    script = Script(controller={"kind": "linear"}, steps=5)
    script.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.1})

    with pytest.raises(ValueError, match=r"keep the 2 parameter groups .* got 3: add all groups before `attach`"):
        script.tuner.report(1.0)  # type: ignore[attr-defined]


def test_groups_keep_their_ratio(tuned: Script):
    assert all(second == 2 * first for first, second in tuned.rates)


def test_after_the_budget_the_last_rate_stays():
    script = Script(controller={"kind": "linear"}, steps=5)

    for _ in range(7):
        script.step()

    falling, after = script.rates[:5], script.rates[5:]
    assert sorted(set(falling), reverse=True) == falling
    assert after == [falling[-1]] * 2


def test_an_optimizer_whose_state_is_loaded_later_is_steered_too():
    script = Script(controller={"kind": "linear"}, steps=5)
    script.optimizer.load_state_dict(script.optimizer.state_dict())

    for _ in range(5):
        script.step()

    assert len(set(script.rates)) == 5


def test_seconds_end_the_search_and_the_run_though_steps_become_slower():
    now, script = 0.0, Script()
    handle = attach(script.model, script.optimizer)
    script.tuner = tuner = wiretune.Tuner(handle, BoConfig(), budget=Budget(seconds=20), seed=0, clock=lambda: now)

    while not tuner.is_over:
        now += 0.02 if now < 12 else 0.04
        script.step()

    assert 0 < tuner.decisions[0].search_seconds < 0.2 * 20
    assert abs(now - 20) <= 4 * 0.04


def searched_in_seconds(**budget: int) -> wiretune.Tuner:
    """Return a tuner after its first search, in a loop whose steps take 0.02 s."""
    now, script = 0.0, Script()
    handle = attach(script.model, script.optimizer)
    script.tuner = tuner = wiretune.Tuner(
        handle, BoConfig(), budget=Budget(**budget), seed=0, batch_size=8, clock=lambda: now
    )
    while not tuner.decisions:
        now += 0.02
        script.step()
    return tuner


def test_a_second_cap_that_is_never_reached_changes_no_search():
    [alone], [capped] = (searched_in_seconds(seconds=40, **more).decisions for more in ({}, {"steps": 10**6}))

    assert (capped.values, capped.search_steps) == (alone.values, alone.search_steps)


def test_a_budget_that_the_timed_steps_spend_keeps_them():
    now, script = 0.0, Script()
    handle = attach(script.model, script.optimizer)
    script.tuner = tuner = wiretune.Tuner(handle, BoConfig(), budget=Budget(seconds=3), seed=0, clock=lambda: now)

    while not tuner.is_over:
        now += 1.0
        script.step()

    assert script.losses[-1] < script.losses[0] and len(script.losses) == tuner.schedule().num_steps == 4
    assert not tuner.is_probing


def test_a_short_loop_trains_its_steps_and_times_none():
    script = Script(controller={"kind": "bo"}, steps=3, seconds=600)
    assert isinstance(script.tuner, wiretune.Tuner)

    while not script.tuner.is_over:
        script.step()

    assert len(script.losses) == script.tuner.schedule().num_steps == 3


def test_a_search_that_ends_before_its_first_commit_says_so():
    script = Script(controller={"kind": "bo"}, steps=STEPS)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)
    tuner.stop()

    with pytest.raises(RuntimeError, match="the search ended before its first commit"):
        tuner.schedule()


@pytest.mark.parametrize(("batch_size", "num_steps"), [(32, 7), (8, 14)])
def test_seconds_are_searched_in_probes_as_long_as_those_of_as_many_steps(batch_size: int, num_steps: int):
    now, script, budget = 0.0, Script(), Budget(seconds=40)
    handle = attach(script.model, script.optimizer)
    script.tuner = tuner = wiretune.Tuner(
        handle, BoConfig(), budget=budget, seed=0, batch_size=batch_size, clock=lambda: now
    )

    while not tuner.decisions:
        now += 0.02
        script.step()

    assert {each.candidate.allowance.steps for each in tuner.decisions[0].probes} == {num_steps}
    # The first steps, which timed one, are taken back as probes are.
    assert script.losses[4] == script.losses[4 + num_steps] == script.losses[0]


class Building:
    """Builds strategies without a search, and keeps what their spaces say of a step's cost."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.found = budget, list[StepCost | None]()

    def __call__(self, space: SearchSpace) -> Strategy:
        self.found.append(space.step)
        return strategies.build(FixedConfig(), space=space, seed=0, budget=self.budget)


@pytest.mark.parametrize(
    ("interval", "step_seconds", "seconds"),
    [(1, [30, 10, 1, 1], 1.0), (2, [30, 9, 1, 9], 5.0), (4, [30, 10, 1, 9], 3.0)],
)
def test_a_steps_seconds_have_a_part_of_an_average_and_none_of_what_compiles(
    interval: int, step_seconds: list[float], seconds: float
):
    build = Building(Budget(seconds=100))
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))

    orders = Leader(build, space, build.budget, clock=lambda: 0.0, num_timed=4, interval=interval).orders()
    tasks = [next(orders)[0], orders.send(None)[0], orders.send(Taken([1.0] * 4, step_seconds, [], [], 8))[0]]
    orders.send(None)

    assert tasks == [Task.SNAPSHOT, Task.PROBE, Task.RESTORE]
    assert build.found == [None, StepCost(bytes=2, seconds=seconds)]


@pytest.mark.parametrize(("seconds", "task"), [(200, Task.RESTORE), (300, Task.PROBE)])
def test_a_round_is_timed_to_its_end_only_where_the_budget_has_room(seconds: float, task: Task):
    now, build = 0.0, Building(Budget(seconds=seconds))
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))
    orders = Leader(build, space, build.budget, clock=lambda: now, num_timed=16, interval=16).orders()
    next(orders)
    orders.send(None)

    now = 4.0

    assert orders.send(Taken([1.0] * 4, [1.0] * 4, [], [], 0))[0] == task
    assert build.found == [None]


@pytest.mark.parametrize(("period", "num_steps"), [(1, 4), (3, 6), (8, 8), (500, 0)])
def test_steps_are_timed_over_whole_rounds_unless_they_are_long(period: int, num_steps: int):
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1), period=period)

    assert steps_to_time(space) == num_steps


@pytest.mark.parametrize(
    ("config", "budget", "num_steps"),
    [
        (BoConfig(), Budget(seconds=60), 4),
        (BoConfig(), Budget(steps=1000, bytes=10**9), 4),
        (BoConfig(), Budget(steps=1000), 0),
        (BoConfig(), Budget(steps=20, seconds=60), 0),  # 4 steps are a large part of 20
        (FixedConfig(), Budget(seconds=60), 0),
    ],
    ids=["seconds", "bytes", "steps", "few steps", "no search"],
)
def test_steps_are_timed_where_a_search_asks_how_many_the_budget_has(config: Any, budget: Budget, num_steps: int):
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))

    assert num_timed(config, space, budget) == num_steps


@pytest.mark.parametrize(("sync", "interval"), [("diloco", 8), ("streaming_diloco", 2)])
def test_steps_are_timed_by_how_often_a_part_of_the_model_meets(
    monkeypatch: pytest.MonkeyPatch, sync: str, interval: int
):
    asked = list[int]()
    monkeypatch.setattr("wiretune.tuner.Leader", lambda *_, **how: asked.append(how["interval"]) or Leader(*_, **how))

    Script(controller={"kind": "fixed"}, steps=20, sync={"kind": sync, "period": 8})

    assert asked == [interval]


def test_the_rate_of_a_direction_is_searched_as_a_job_would():
    exchange, optimizer = DemoConfig(), FromExchangeConfig()
    config = ReplicaConfig(workload=OwnWorkload(factory="script:model"), exchange=exchange, optimizer=optimizer)

    assert space_of(config, "sgd", 0.1, budget=Budget(steps=100)).optimizer == "from_exchange"


def test_the_search_knows_after_how_many_steps_ranks_meet():
    sync, optimizer = DiLoCoConfig(period=30), OwnOptimizerConfig()
    config = ReplicaConfig(
        workload=OwnWorkload(factory="script:model"), exchange=NoneConfig(), optimizer=optimizer, sync=sync
    )

    assert space_of(config, "sgd", 0.1, budget=Budget(steps=100)).longest_period == 30


@pytest.mark.parametrize(("budget", "level"), [({"steps": 100}, 0.1), ({"steps": 100, "bytes": 10**9}, None)])
def test_a_level_is_searched_only_where_the_budget_counts_what_a_step_sends(budget: dict[str, int], level: float):
    config = ReplicaConfig(
        workload=OwnWorkload(factory="script:model"), exchange=LEVELS, optimizer=OwnOptimizerConfig()
    )

    space = space_of(config, "sgd", 0.1, budget=Budget(**budget))

    assert space.guess.level == level
    assert (space.axis("level") is None) == (level is not None)


@pytest.mark.parametrize(("batch_size", "num_steps"), [(None, 7), (32, 7), (8, 14), (4, 19)])
def test_probes_on_small_batches_are_longer(batch_size: int | None, num_steps: int):
    script = Script(controller={"kind": "bo"}, steps=1000, batch_size=batch_size)

    while len(script.rates) < 2 or script.rates[-1] == script.rates[0]:
        script.step()

    assert len(script.rates) - 1 == num_steps


@pytest.mark.parametrize("seen_by", ["", "its owner", "its weights"])
def test_a_model_that_was_trained_before_does_not_begin_with_the_rate_of_a_new_one(seen_by: str):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    if seen_by == "its weights":
        with torch.no_grad():  # as gradients leave them, of rank 1
            for layer in model:
                layer.weight += torch.outer(torch.randn(64), torch.randn(64)) * 0.05
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    controller = {"kind": "bo", "first_search": "unless_known"}

    tuner = wiretune.attach(model, optimizer, controller=controller, steps=400, pretrained=seen_by == "its owner")

    assert tuner.is_probing == bool(seen_by)


@pytest.mark.parametrize("kind", ["bo", "autolrs"])
def test_a_commit_that_blows_up_is_taken_back(kind: str):
    script = Script(controller={"kind": kind}, steps=400)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)

    num_committed = 0
    while not tuner.is_over:
        if len(tuner.decisions) == 1:  # the first commit trains
            script.inputs, inputs = script.inputs * math.nan, script.inputs
            script.step()
            script.inputs = inputs
        num_committed += len(tuner.decisions) > 1 and not tuner.is_probing
        script.step()

    assert len(tuner.decisions) > 1
    assert tuner.schedule().num_steps == num_committed
    assert all(each.isfinite().all() for each in script.state)


@pytest.mark.parametrize(("num_lost", "num_taken_back"), [(1, 0), (3, 0), (4, 30), (5, 30)])
def test_a_few_lost_losses_of_a_sound_model_do_not_take_its_commit_back(num_lost: int, num_taken_back: int):
    script = Script(controller={"kind": "fixed"}, steps=40)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)

    for step in range(40):
        script.step(loss=math.nan if 20 <= step < 20 + num_lost else None)

    assert tuner.num_taken_back == num_taken_back
    assert tuner.schedule().num_steps == 40 - num_taken_back


@pytest.mark.parametrize("lost_at", [10, 13])
def test_a_lost_loss_of_a_sound_model_does_not_bar_higher_rates(lost_at: int):
    script = Script(controller={"kind": "bo"}, steps=STEPS)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)

    while not tuner.decisions:
        script.step(loss=math.nan if len(script.losses) == lost_at else None)  # in the second of the probes

    probes = tuner.decisions[0].probes
    assert len(probes) >= 5 and all(each.reward is not None for each in probes[:5])


@pytest.mark.parametrize("kind", ["bo", "fixed", "cosine", "autolrs"])
def test_a_loss_that_is_never_finite_ends_the_run_and_says_so_and_leaves_the_model_as_it_was(kind: str):
    script = Script(controller={"kind": kind}, steps=2000)
    tuner, before, num_steps = script.tuner, script.state, 0
    assert isinstance(tuner, wiretune.Tuner)

    with pytest.raises(RuntimeError, match="not finite in 2 commits in a row") as refusal:
        while not tuner.is_over:
            num_steps += 1
            script.step(loss=math.nan)

    rates = ", ".join(f"{decision.values.learning_rate:.3g}" for decision in tuner.decisions)
    assert f"decided at learning rates of {rates}:" in str(refusal.value)
    assert tuner.is_over and num_steps < 1000
    assert all(map(torch.equal, script.state, before))
    script.step(loss=math.nan)  # the loop may go on without the controller


def test_in_a_long_commit_a_lost_loss_is_noticed_soon():
    script = Script(controller={"kind": "fixed"}, steps=100_000)
    tuner, num_lost = script.tuner, 0
    assert isinstance(tuner, wiretune.Tuner)
    for _ in range(1000):
        script.step(loss=1.0)

    while not tuner.num_taken_back:
        script.step(loss=math.nan)
        num_lost += 1

    assert num_lost <= 64


def test_a_batch_that_is_always_bad_ends_the_run_whatever_the_rate():
    script, since = Script(controller={"kind": "bo"}, steps=2000), 0
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)

    with pytest.raises(RuntimeError, match="not finite in 3 commits in a row") as refusal:
        while not tuner.is_over:
            since = 0 if tuner.is_probing else since + 1
            taken_back = tuner.num_taken_back
            script.step(loss=math.nan if since > 60 else None)
            since = since if tuner.num_taken_back == taken_back else 0

    assert len(re.findall(r"\d[\d.e-]*", str(refusal.value).partition("rates of")[2])) == 3
    assert len(script.losses) < 1000


def test_a_commit_that_blows_up_late_is_tried_once_more_and_then_no_more():
    script, num_steps = Script(controller={"kind": "fixed"}, steps=400), 0
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)

    with pytest.raises(RuntimeError, match="look at the loss and the data"):
        while not tuner.is_over:
            num_steps += 1
            script.step(loss=math.nan if num_steps % 100 > 70 else None)

    assert 80 < num_steps < 300  # not at once, and not to the end


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The losses of all steps as the leader is told them."""
    losses, tell = list[float](), wiretune.Tuner._told
    monkeypatch.setattr(wiretune.Tuner, "_told", lambda *given: losses.append(tell(*given)) or losses[-1])
    return losses


def test_a_lost_loss_in_the_first_step_of_a_commit_is_told_as_that_of_its_state(told: list[float]):
    script = Script(controller={"kind": "bo", "num_stages": 2}, steps=STEPS)
    tuner, stage, of_first_steps = script.tuner, 0, list[float]()
    assert isinstance(tuner, wiretune.Tuner)

    while not tuner.is_over:
        begins, stage = len(tuner.decisions) > stage, len(tuner.decisions)
        script.step(loss=math.nan if begins else 1 / (1 + stage))
        of_first_steps += told[-1:] if begins else []

    assert of_first_steps == [1.0, 0.5]
    assert tuner.num_taken_back == 0


def test_after_a_rewind_a_lost_loss_is_told_as_that_of_the_state_gone_back_to(told: list[float]):
    script = Script(controller={"kind": "fixed"}, steps=40)

    for loss in [1.0] * 4 + [9e9] + [math.nan] * 8:  # the last one is that of the first step after it
        script.step(loss=loss)

    assert told[-1] == 1.0


def test_a_run_that_ends_with_a_setback_keeps_what_it_has_gained():
    script = Script(controller={"kind": "bo", "num_stages": 1, "cooldown": 0}, steps=200)
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)

    while not tuner.is_over:
        script.step(loss=1.0 - 0.6 * min(1.0, 2 * len(script.losses) / 200) + 0.4 * (len(script.losses) > 150))
    kept = script.state

    assert any(not torch.equal(one, other) for one, other in zip(kept, Script().state, strict=True))


def test_after_the_budget_nothing_reads_the_gradients_any_more():
    script = Script(controller={"kind": "fixed"}, steps=5)
    assert script.optimizer._optimizer_step_pre_hooks

    for _ in range(6):
        script.step()

    assert not script.optimizer._optimizer_step_pre_hooks


def test_a_rate_that_is_too_low_rises_without_a_probe_as_in_a_job():
    script = Script(controller={"kind": "bo", "max_search_fraction": 0.01}, steps=400)  # too little for a search
    tuner = script.tuner
    assert isinstance(tuner, wiretune.Tuner)

    while not tuner.is_over:
        script.step()

    first, _ = script.rates[0]
    assert not any(each.probes for each in tuner.decisions)
    assert max(rate for rate, _ in script.rates) > 1.2 * first


def test_seconds_that_are_spent_leave_probes_their_least_steps():
    now, script = 0.0, Script()
    handle = attach(script.model, script.optimizer, sync={"kind": "diloco", "period": 4})
    tuner = wiretune.Tuner(handle, BoConfig(), budget=Budget(seconds=100), seed=0, clock=lambda: now)
    script.tuner = tuner

    while not tuner.is_over:
        now += 12 if len(script.losses) < 2 else 0.1
        script.step()

    assert tuner.decisions


def test_the_first_cap_that_is_reached_ends_the_run():
    now, script = 0.0, Script()
    handle = attach(script.model, script.optimizer)
    budget = Budget(seconds=20, steps=50)
    script.tuner = tuner = wiretune.Tuner(handle, FixedConfig(), budget=budget, seed=0, clock=lambda: now)

    while not tuner.is_over:
        now += 0.02
        script.step()

    assert len(script.losses) == 50


def test_a_controller_that_does_not_search_changes_no_loss():
    fixed, plain = Script(controller={"kind": "fixed"}, steps=20), Script()

    for _ in range(20):
        fixed.step()
        plain.step()

    assert fixed.losses == plain.losses


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"controller": {"kind": "bo"}}, "at least one of `seconds`, `steps`, `bytes`"),
        ({"controller": {"kind": "bo"}, "bytes": 10**6}, "one node sends nothing"),
        ({"controller": {"kind": "fixed"}, "steps": 100, "sync": PERIODS}, "`sync/period`.* and this is `fixed`"),
        ({"controller": {"kind": "local"}, "steps": 100, "sync": PERIODS}, "`local` searches rate and level alone"),
        ({"controller": {"kind": "bo"}, "steps": 100, "sync": OUTER, "exchange": LEVELS}, "at most 3 values"),
        ({"sync": PERIODS}, "`sync/period` must be one number"),
        ({"controller": {"kind": "bo"}, "steps": 100, "batch_size": 0}, "`batch_size` must be .* at least 1, got 0"),
        ({"controller": {"kind": "bo"}, "steps": 100, "batch_size": "8"}, "`batch_size` must be a whole .*, got '8'"),
        ({"controller": {"kind": "bo"}, "steps": 100, "batch_size": 2.5}, "`batch_size` must be a whole .*, got 2.5"),
        ({"controller": {"kind": "bo", "prob": 3}, "steps": 100}, "prob"),
        ({"controller": {"kind": "autolars"}, "steps": 100}, "autolars"),
    ],
)
def test_a_controller_that_a_job_would_refuse_is_refused(how: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Script(**how)


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"sync": {"kind": "diloco", "perod": 4}}, "`sync.perod`: there is no field `perod`; did you mean `period`?"),
        ({"sync": {"kind": "diloc"}}, "`sync.kind`: unknown: `diloc`; available: every_step, local_sgd, diloco, "),
        ({"exchange": {"kind": "topk", "density": 2}}, "`exchange.density`: `density` should be .* equal to 1, got 2"),
        ({"seed": -1}, "`seed` should be greater than or equal to 0, got -1"),
        ({"controller": {"kind": "bo"}}, "a budget needs at least one of"),
        ({"controller": {"kind": "bo"}, "steps": 0}, "`steps` should be greater than 0, got 0"),
        ({"controller": {"kind": "bq"}, "steps": 9}, "`controller.kind`: unknown: `bq`; available: bo, "),
        ({"controller": {"kind": "bo", "prob": 3}, "steps": 9}, "`controller.prob`: there is no field `prob`; did you"),
        ({"controller": {"kind": "schedule", "schedule": {}}, "steps": 9}, "`controller.schedule.num_steps`: .*requir"),
    ],
    ids=str,
)
def test_a_part_is_refused_by_its_field_in_a_jobs_words(how: dict[str, Any], line: str):
    with pytest.raises(ValueError, match=f"(?m)^{line.replace('?', '[?]')}") as refused:
        Script(**how)

    assert "pydantic" not in str(refused.value)


@pytest.mark.parametrize("name", ["steps", "seconds", "bytes", "batch_size", "pretrained"])
def test_what_a_controller_needs_is_refused_without_one(name: str):
    with pytest.raises(ValueError, match=f"`{name}` is .* controller: give `controller={{'kind': 'bo'}}`, or leave"):
        Script(**{name: 100})


def following(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a controller that follows a schedule whose second entry has `entry` in it."""
    steps = {"num_steps": 10, "learning_rate": 0.1}
    entries = [steps | {"step": 0}, steps | {"step": 10} | entry]
    return {"kind": "schedule", "schedule": {"optimizer": "sgd", "num_steps": 20, "entries": entries}}


def test_a_schedules_level_is_one_of_the_exchange():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    topk = {"kind": "topk", "density": 0.1}

    with pytest.raises(ValueError, match=r"entries\[1\].level` is the exchange's `density` .* in \(0, 1\].*, got 2"):
        wiretune.attach(model, optimizer, exchange=topk, controller=following({"level": 2.0}), steps=20)


@pytest.mark.parametrize(
    "values", [{"momentum": 0.8}, {"weight_decay": 0.1}, {"nesterov": True}, {"batch_size": 16}, {"option": "fp16"}]
)
def test_what_a_controller_in_a_loop_would_ignore_of_a_schedule_is_refused(values: dict[str, Any]):
    with pytest.raises(ValueError, match=rf"entries\[1\].values` sets `{next(iter(values))}`.*Schedule.scheduler"):
        Script(controller=following({"values": values}), steps=20)


@pytest.mark.parametrize("values", [{"share": 0.5}, {"gamma": 0.9}])
def test_what_only_a_job_sets_of_a_schedule_is_refused(values: dict[str, Any]):
    with pytest.raises(ValueError, match=rf"sets `{next(iter(values))}`, and .* does not: train by it as a job"):
        Script(controller=following({"values": values}), steps=20)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("diloco", {"outer_momentum": 0.5}, r"entries\[1\].values` do not fit: .*give `sync: {outer_momentum: 0.5}`"),
        ("local_sgd", {"outer_momentum": 0.5}, "nothing here has a `outer_momentum`"),
    ],
)
def test_what_a_schedule_sets_must_fit_what_is_attached(kind: str, values: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Script(controller=following({"values": values}), steps=20, sync={"kind": kind, "period": 4})


@pytest.mark.parametrize("controller", [{"kind": "bo", "promote": True}, BoConfig(promote=True)])
def test_a_promotion_that_a_loop_cannot_make_is_refused(controller: Any):
    with pytest.raises(ValueError, match=r"`controller\.promote` must be false or left out in a loop, got true"):
        Script(controller=controller, steps=20)


@pytest.mark.parametrize("controller", [{"kind": "bo"}, {"kind": "local", "promote": False}])
def test_a_search_in_a_loop_knows_that_nothing_is_promoted(controller: dict[str, Any]):
    tuner = Script(controller=controller, steps=20).tuner

    assert isinstance(tuner, wiretune.Tuner)
    assert not tuner._leader.loop.strategy.state_dict()["config"]["promote"]


def test_past_jobs_are_refused_where_there_is_no_service():
    with pytest.raises(ValueError, match=r"`controller\.transfer` learns from past jobs of a service"):
        Script(controller={"kind": "bo", "transfer": "auto"}, steps=20)


def test_a_schedule_is_followed_in_what_a_loop_can_set():
    script = Script(controller=following({"values": {"optimizer": "sgd"}, "learning_rate": 0.05}), steps=20)

    for _ in range(20):
        script.step()

    assert [first for first, _ in script.rates] == [0.1] * 10 + [0.05] * 10


def test_a_schedule_is_followed_with_the_warm_up_that_it_was_learned_with():
    controller = following({})
    controller["schedule"] |= {"warmup_steps": 4}
    script = Script(controller=controller, steps=20)

    for _ in range(20):
        script.step()

    assert [first for first, _ in script.rates] == pytest.approx([0.025, 0.05, 0.075] + [0.1] * 17)


def test_a_schedule_of_a_jobs_own_optimizer_multiplies_the_rates_of_all_groups():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups: list[dict[str, Any]] = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[1].parameters()}]
    optimizer = torch.optim.Adagrad(groups, lr=0.03)
    entries = [{"step": 0, "num_steps": 10, "learning_rate": 0.5}]
    schedule = {"optimizer": "own", "num_steps": 10, "entries": entries}

    wiretune.attach(model, optimizer, controller={"kind": "schedule", "schedule": schedule}, steps=10)

    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.005, 0.015])


def test_gradients_that_a_closure_computes_later_tell_nothing_of_the_rate():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    signs = GradientSigns(optimizer, parameters_may_differ=False)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure=closure)
    closure()
    optimizer.step()

    scales, alignments = signs.take(3)
    assert [math.isnan(each) for each in scales] == [True, True, False]
    assert alignments == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_gradients_tell_is_saved_to_the_bit_whatever_the_parameters_type(dtype: torch.dtype):
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(64, dtype=dtype))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    signs, resumed = (GradientSigns(optimizer, parameters_may_differ=False) for _ in range(2))
    for _ in range(3):
        parameter.grad = torch.randn(64, dtype=dtype)
        optimizer.step()

    resumed.load_state_dict(signs.state_dict())

    taken = signs.take(3)
    assert resumed.take(3) == taken
    assert all(taken[1][1:])


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("overflows", [False, True])
def test_of_a_fused_optimizer_under_a_grad_scaler_only_what_it_steps_by_tells_something(clips: bool, overflows: bool):
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1, fused=True)
    signs = GradientSigns(optimizer, parameters_may_differ=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    scaler.scale(parameter.sum() * (math.inf if overflows else 1.0)).backward()
    if clips:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)

    (scale,), alignments = signs.take(1)
    assert math.isnan(scale) if overflows or not clips else scale == 1.0
    assert alignments == [0.0]


@pytest.mark.parametrize("init_scale", [1.0, 1024.0])
def test_several_optimizers_tell_nothing_while_a_scaler_unscales_one_after_the_other(init_scale: float):
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in model]
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    how = {"controller": {"kind": "fixed"}, "steps": 9, "scale": scaler.get_scale}
    signs = wiretune.attach(model, optimizers, **how)._signs

    for _ in range(2):
        model.zero_grad()
        scaler.scale(model(torch.ones(3, 4)).sum()).backward()
        for each in optimizers:
            scaler.step(each)
        scaler.update()

    scales, alignments = signs.take(2)
    is_known = init_scale == 1.0
    assert [math.isfinite(each) for each in scales] == [is_known] * 2
    assert (alignments[1] != 0.0) == is_known


def test_a_sparse_gradient_tells_nothing_of_the_rate():
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    signs = GradientSigns(optimizer, parameters_may_differ=False)

    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([1, 3])).sum().backward()
        optimizer.step()

    scales, alignments = signs.take(2)
    assert all(map(math.isnan, scales)) and alignments == [0.0, 0.0]


class Around(torch.optim.Optimizer):
    """An optimizer that has another one step, and would keep something itself."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer = optimizer

    def step(self, closure: None = None) -> None:
        self.optimizer.step(closure)


def test_an_optimizer_around_another_one_is_refused_where_a_probe_would_be_taken_back():
    model = nn.Linear(4, 4)
    optimizer = Around(torch.optim.SGD(model.parameters(), lr=0.1))

    with pytest.raises(ValueError, match=r"must hold its whole state .*got Around, whose `optimizer` is SGD"):
        wiretune.attach(model, optimizer, controller={"kind": "bo"}, steps=100)

    wiretune.attach(model, optimizer)


def test_one_state_of_both_is_put_back():
    model = nn.Linear(4, 1)
    wrapped = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = Around(wrapped)
    optimizer.state = wrapped.state

    def step() -> Tensor:
        loss = model(torch.ones(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def momentum() -> list[Tensor]:
        return [wrapped.state[each]["momentum_buffer"].clone() for each in model.parameters()]

    step()
    before = momentum()
    tuner = wiretune.attach(model, optimizer, controller={"kind": "bo"}, steps=STEPS)
    for _ in range(3):
        tuner.report(step())
    assert tuner.is_probing and not all(map(torch.equal, momentum(), before))

    tuner.stop()

    assert all(map(torch.equal, momentum(), before))


@pytest.mark.parametrize("keeps", [False, True])
def test_the_wrapper_of_a_framework_is_looked_through(keeps: bool):
    model = nn.Linear(4, 4)
    wrapped: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = type("AcceleratedOptimizer", (Around,), {"__module__": "accelerate.optimizer"})

    with pytest.raises(ValueError, match="got Around") if keeps else nullcontext():
        wiretune.attach(model, wrapper(Around(wrapped) if keeps else wrapped), controller={"kind": "bo"}, steps=100)


def test_a_rate_of_zero_is_no_guess():
    model = nn.Linear(4, 4)

    with pytest.raises(ValueError, match="must have a positive learning rate"):
        wiretune.attach(model, torch.optim.SGD(model.parameters(), lr=0.0), controller={"kind": "bo"}, steps=100)


def test_an_optimizer_that_a_search_was_refused_can_be_attached_again():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    with pytest.raises(ValueError, match="must have a positive learning rate"):
        wiretune.attach(model, optimizer, controller={"kind": "bo"}, steps=100)

    wiretune.attach(model, optimizer)


@pytest.mark.parametrize("how", [{"controller": {"kind": "bo"}, "steps": 100}, {"exchange": {"kind": "cser"}}])
def test_an_optimizer_without_a_rate_is_refused_where_the_rate_is_searched_or_followed(how: dict[str, Any]):
    model = nn.Linear(4, 4)
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias], "lr": None}]

    with pytest.raises(ValueError, match=r"must have a learning rate for .* group 1 has no `lr`"):
        wiretune.attach(model, torch.optim.SGD(groups, lr=0.1), **how)


def test_an_optimizer_without_a_rate_trains_by_what_does_not_follow_it():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = wiretune.attach(model, optimizer, sync={"kind": "local_sgd", "period": 1})
    optimizer.param_groups[0]["lr"] = None

    optimizer.step()  # nothing has a gradient

    assert handle.last is not None
