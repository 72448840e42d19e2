"""A run whose rate warms up after its search, with a real worker: cut off on the ramp, resumed, and replayed."""

from pathlib import Path
from typing import Any

import pytest

from search.schedule_file import ScheduleFile
from service.cluster.reporter import Stopped
from service.job.parts import TrialSpec
from service.wire.records import Checkpointed, StageDecided, TrialFinished
from tests.support.small_trials import Memory, Stopping, digits_trial, train

RAMP_STEPS = 60


def _spec(**changes: Any) -> TrialSpec:
    job: dict[str, Any] = {
        "optimizer": {"kind": "adamw", "learning_rate": 0.002},
        "exchange": {"kind": "none"},
        "controller": {"kind": "bo", "max_search_fraction": 0.4, "coarse_probe_steps": 3, "ramp_steps": RAMP_STEPS},
        "budget": {"steps": 140},
        "objective": {"every": 20},
    }
    return digits_trial(**(job | changes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Memory:
    """Return what an undisturbed run reports."""
    sink = Memory()
    train(_spec(), tmp_path_factory.mktemp("whole"), sink, num_workers=1)
    return sink


def test_the_schedule_has_the_ramp_and_the_decision_says_so(whole: Memory) -> None:
    [finished], decided = whole.of(TrialFinished), whole.of(StageDecided)[0]
    found = decided.learning_rate
    first = finished.schedule[0]

    assert f"the rate rises to it over {RAMP_STEPS} steps" in decided.reason
    assert first.learning_rate == pytest.approx(found / RAMP_STEPS)
    assert first.final_learning_rate == pytest.approx(found * first.num_steps / RAMP_STEPS)


def test_a_run_cut_off_on_the_ramp_goes_on_bit_for_bit(whole: Memory, tmp_path: Path) -> None:
    cut = Stopping()
    with pytest.raises(Stopped):
        train(_spec(), tmp_path, cut, num_workers=1)
    last = cut.of(Checkpointed)[-1]
    assert 0 < last.step < RAMP_STEPS
    again = train(_spec(), tmp_path, Memory(), last.resume, num_workers=1)

    [finished] = whole.of(TrialFinished)
    assert (again.schedule, again.validation_loss) == (finished.schedule, finished.validation_loss)


def test_its_schedule_replays_bit_for_bit(whole: Memory, tmp_path: Path) -> None:
    [finished] = whole.of(TrialFinished)
    steps, entries = finished.bill.steps, tuple(entry.model_dump() for entry in finished.schedule)
    schedule = ScheduleFile(optimizer="adamw", num_steps=steps, entries=entries)
    replayed = train(
        _spec(controller={"kind": "schedule", "schedule": schedule}, budget={"steps": steps}),
        tmp_path,
        Memory(),
        num_workers=1,
    )

    assert replayed.validation_loss == finished.validation_loss
