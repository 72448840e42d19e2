"""Verbs on a running job: a pause changes nothing, a stop keeps the results, a larger budget continues."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search.config import Budget
from service.cluster import trial
from service.cluster.reporter import Stopped
from service.cluster.resume import Resume
from service.job.parts import TrialSpec
from service.wire.records import AnyRecord, Checkpointed, Control, MetricPoints, StageClosed, TrialFinished
from tests.support.small_trials import Memory, digits_trial

ARMS: dict[str, dict[str, Any]] = {
    "fixed": {"controller": {"kind": "fixed"}},
    "cosine": {"controller": {"kind": "cosine"}, "optimizer": {"kind": "sgd", "learning_rate": 0.5}},
    "off with a cool-down": {"controller": {"kind": "off"}, "optimizer": {"kind": "sgd", "learning_rate": 0.5}},
    "bo with a cool-down": {
        "controller": {"kind": "bo", "max_search_fraction": 0.5, "wide_probes": 0},
        "optimizer": {"kind": "sgd"},
    },
    "bo beside the own schedule": {
        "controller": {"kind": "bo", "max_search_fraction": 0.5},
        "optimizer": {"kind": "sgd"},
        "lanes": {"count": 3, "after": "insurance"},
    },
}


class User(Memory):
    """A sink whose user asks for `control` once the run has looked `after` times whether it may go on."""

    def __init__(self, control: Control = Control.RUN, after: int = 0) -> None:
        super().__init__()
        self.num_looks, self._control, self._after = 0, control, after

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        self.num_looks += not records

    def asked(self) -> Control:
        return self._control if self.num_looks > self._after else Control.RUN


def _spec(arm: str, steps: int) -> TrialSpec:
    return digits_trial(budget={"steps": steps}, objective={"every": 30}, **ARMS[arm])


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Callable[..., Any]:
    attempts = iter(range(10**6))

    def train(spec: TrialSpec, user: User, resume: dict[str, Any] | None = None) -> Any:
        """Return the group as the run left it."""
        group, *spare = [arithmetic_group() for _ in range(spec.lanes.count)]
        url = f"file://{tmp_path}/attempt-{next(attempts)}"
        trial.train(spec, group, user, trial_id="job.tuned.0", storage_url=url, resume=resume, spare=spare)
        return group

    return train


def _end(user: User) -> tuple[Any, ...]:
    [finished] = user.of(TrialFinished)
    bill = finished.bill
    return finished.outcome, finished.validation_loss, finished.schedule, bill.bytes_sent, bill.steps_search


def _moments(num_looks: int) -> list[int]:
    return [1, num_looks // 4, 3 * num_looks // 4]


@pytest.mark.parametrize("arm", ["cosine", "bo with a cool-down", "bo beside the own schedule"])
def test_a_run_paused_at_any_moment_ends_like_the_undisturbed_one(train: Callable[..., Any], arm: str) -> None:
    spec, whole = _spec(arm, 400), User()
    train(spec, whole)

    for moment in _moments(whole.num_looks):
        first, second = User(Control.PAUSE, moment), User()
        with pytest.raises(Stopped) as stopped:
            train(spec, first)
        assert stopped.value.control is Control.PAUSE
        kept = first.of(Checkpointed, StageClosed)
        train(spec, second, kept[-1].resume if kept else None)
        assert _end(second) == _end(whole)


def test_a_pause_within_a_commit_loses_no_step(train: Callable[..., Any]) -> None:
    first, second = User(Control.PAUSE, 7), User()
    with pytest.raises(Stopped):
        train(_spec("fixed", 200), first)
    paused = first.of(Checkpointed)[-1]

    train(_spec("fixed", 200), second, paused.resume)

    assert _trained(first) == list(range(paused.step))
    assert _trained(second) == list(range(paused.step, 200))


@pytest.mark.parametrize("arm", ARMS)
def test_a_run_stopped_at_any_moment_keeps_its_committed_line(train: Callable[..., Any], arm: str) -> None:
    spec, whole = _spec(arm, 400), User()
    train(spec, whole)

    for moment in _moments(whole.num_looks):
        user = User(Control.STOP, moment)
        group = train(spec, user)
        [finished] = user.of(TrialFinished)
        assert finished.outcome == "completed"
        assert user.num_looks <= moment + 9 * spec.lanes.count  # a probe goes on to its next quarter
        if finished.line == "main":
            assert sum(entry.num_steps for entry in finished.schedule) == finished.bill.steps == len(group.rates)
            assert finished.validation_loss == pytest.approx(sum(group.rates))
        assert all(stage.num_steps is not None for stage in user.of(StageClosed))


GOES_ON = [*itertools.product(["fixed", "cosine", "off with a cool-down"], [400, 405])]


@pytest.mark.parametrize(("arm", "steps"), GOES_ON)
def test_an_extended_run_ends_like_one_that_had_the_larger_budget(
    train: Callable[..., Any], arm: str, steps: int
) -> None:
    short, extended, long = User(), User(), User()
    train(_spec(arm, steps), short)
    last = ([each for each in short.of(Checkpointed) if each.steady] or short.of(StageClosed))[-1]

    train(_spec(arm, 700), extended, last.resume)
    train(_spec(arm, 700), long)

    before_the_cooldown = {"fixed": steps, "cosine": 0, "off with a cool-down": 200}
    assert last.step == pytest.approx(before_the_cooldown[arm], abs=10)
    [ended], [expected] = extended.of(TrialFinished), long.of(TrialFinished)
    assert ended.validation_loss == expected.validation_loss
    assert _rates(ended) == _rates(expected)


@pytest.mark.parametrize("arm", ["fixed", "cosine", "off with a cool-down"])
def test_a_stopped_run_that_gets_its_old_budget_again_trains_no_step_twice_and_keeps_to_its_course(
    train: Callable[..., Any], arm: str
) -> None:
    spec, whole = _spec(arm, 400), User()
    train(spec, whole)

    for moment in _moments(whole.num_looks):
        first, second = User(Control.STOP, moment), User()
        train(spec, first)
        train(spec, second, first.of(StageClosed)[-1].resume)
        assert _trained(first) + _trained(second) == list(range(400))
        [ended], [expected] = second.of(TrialFinished), whole.of(TrialFinished)
        assert (ended.validation_loss, _rates(ended)) == (expected.validation_loss, _rates(expected))


def test_an_extended_search_keeps_its_values_and_cools_down_at_the_new_end(train: Callable[..., Any]) -> None:
    short, extended = User(), User()
    train(_spec("bo with a cool-down", 400), short)
    [steady] = [each for each in short.of(Checkpointed) if each.steady]
    stretched = Resume.model_validate(steady.resume).within(Budget(steps=700))
    assert stretched.open_commit is not None
    *_, decided = [event["decide"] for event in stretched.journal["events"] if "decide" in event]
    assert decided == stretched.open_commit.decision.model_dump(mode="json")  # what the controller knows of its end

    group = train(_spec("bo with a cool-down", 700), extended, steady.resume)

    [finished] = extended.of(TrialFinished)
    held = set(group.rates[steady.step - 10 : steady.step + 100])
    assert len(held) == 1
    assert group.rates[-1] < 0.05 * held.pop()
    assert finished.bill.steps + finished.bill.steps_search == 700


def _trained(user: User) -> list[int]:
    points = [record for record in user.of(MetricPoints) if record.name == "loss"]
    return [step for record in points for step in record.steps]


def _rates(finished: TrialFinished) -> list[float]:
    return [entry.learning_rate for entry in finished.schedule for _ in range(entry.num_steps)]
