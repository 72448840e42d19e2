"""A job with SGD or Schedule-Free begins with the rate measured on its model, whatever the guess, also when resumed."""

from pathlib import Path
from typing import Any

import pytest

from service.cluster.opening import opening_space
from service.cluster.reporter import Stopped
from service.job.parts import TrialSpec
from service.wire.records import Checkpointed, StageDecided, TrialFinished
from tests.support.small_trials import Memory, Stopping, digits_trial, train
from trainers.training.process_group import ProcessGroup
from trainers.training.replica import Replica


def _spec(rate: float = 0.1, **changes: Any) -> TrialSpec:
    job: dict[str, Any] = {
        "optimizer": {"kind": "sgd", "learning_rate": rate},
        "exchange": {"kind": "none"},
        "budget": {"steps": 60},
        "objective": {"every": 20},
    }
    return digits_trial(**(job | changes))


def _outcome(finished: TrialFinished) -> tuple[Any, ...]:
    assert finished.origin is not None and finished.origin.weights is not None
    return finished.schedule, finished.origin.weights


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Memory, TrialFinished]:
    """Return what an undisturbed run reports."""
    sink = Memory()
    return sink, train(_spec(), tmp_path_factory.mktemp("whole"), sink, num_workers=1)


def test_its_first_decision_has_the_models_rate_and_no_probe(whole: tuple[Memory, TrialFinished]) -> None:
    sink, finished = whole
    first = sink.of(StageDecided)[0]

    assert first.decision.is_usual and not first.decision.probes
    assert "is usual for a loss of" in first.reason
    assert finished.schedule[0].learning_rate == first.learning_rate != 0.1


def test_every_guess_leads_to_the_same_run(whole: tuple[Memory, TrialFinished], tmp_path: Path) -> None:
    _, finished = whole
    other = train(_spec(rate=10.0), tmp_path, Memory(), num_workers=1)

    assert _outcome(other) == _outcome(finished)


def test_a_run_cut_off_goes_on_bit_for_bit(whole: tuple[Memory, TrialFinished], tmp_path: Path) -> None:
    _, finished = whole
    cut = Stopping()
    with pytest.raises(Stopped):
        train(_spec(), tmp_path, cut, num_workers=1)
    resumed = train(_spec(), tmp_path, Memory(), resume=cut.of(Checkpointed)[-1].resume, num_workers=1)

    assert _outcome(resumed) == _outcome(finished)


def test_measuring_leaves_the_training_as_it_would_be_without(tmp_path: Path) -> None:
    spec = _spec()
    with ProcessGroup(spec.replica, 1) as group:
        before = group.export(str(tmp_path / "before.safetensors"))
        space, _ = opening_space(spec, [group])
        after = group.export(str(tmp_path / "after.safetensors"))

    assert before == after
    alone = Replica(spec.replica, 0, 1).landscape()  # with other threads
    assert alone is not None
    assert (space.first_loss, space.sharpness) == pytest.approx((alone.loss, alone.sharpness), rel=1e-5)
    assert space.momentum == 0.9


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"kind": "schedulefree_sgd", "learning_rate": 0.1}},
        {"exchange": {"kind": "topk", "density": [0.01, 0.1]}},
        {"optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": [0.8, 0.95]}},
    ],
    ids=str,
)
def test_sharpness_is_measured_for_schedule_free_and_where_more_than_the_rate_is_searched(
    changes: dict[str, Any],
) -> None:
    spec = _spec(**changes)

    with ProcessGroup(spec.replica, 1) as group:
        space, _ = opening_space(spec, [group])
    alone = Replica(spec.replica, 0, 1).landscape()
    assert alone is not None and space.sharpness == pytest.approx(alone.sharpness, rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"exchange": {"kind": "signsgd", "feedback": False}},
        {"exchange": {"kind": "dgc"}, "optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.0}},
        {"sync": {"kind": "local_sgd", "period": 4}},
        {"controller": {"kind": "bo", "first_search": "always"}},
        {"controller": {"kind": "bo", "min_learning_rate": 0.001, "max_learning_rate": 1.0}},
        {"controller": {"kind": "off"}},
        {"optimizer": {"kind": "lars", "learning_rate": 0.1}},
        {"clip": 1e-3},
    ],
    ids=str,
)
def test_where_a_models_rate_says_little_of_a_step_nothing_is_measured(changes: dict[str, Any]) -> None:
    spec = _spec(**changes)

    with ProcessGroup(spec.replica, 1) as group:
        space, _ = opening_space(spec, [group])
    assert space.sharpness is None
