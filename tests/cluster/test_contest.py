"""A run of several optimizers, with two real workers: compared by probes, cut off, gone on with, replayed.

Or one is chosen before the first step, by what a step costs and is worth: then it trains as if it were alone.
"""

from pathlib import Path
from typing import Any

import pytest

from search.schedule_file import ScheduleFile
from service.cluster import trial
from service.cluster.reporter import Stopped
from service.cluster.warm_up import opening_space
from service.job.parts import TrialSpec
from service.wire.records import Control, ProbeDone, Searched, StageDecided, TrialFinished
from tests.small_trials import Memory, digits_trial
from trainers.segment import Segment, SegmentResult
from trainers.training.group import ProcessGroup

OPTIONS = ["sgd", {"kind": "adamw", "learning_rate": 0.002}, "muon", "schedulefree_sgd"]


class Stopping(Memory):
    """Ends the run after so many probes."""

    def __init__(self, num_probes: int) -> None:
        super().__init__()
        self._num_probes = num_probes

    def report(self, *records: Any) -> None:
        super().report(*records)
        if len(self.of(Searched)) >= self._num_probes:
            raise Stopped(Control.CANCEL, "told to cancel")


def _spec(**changes: Any) -> TrialSpec:
    search = {"first_search": "always", "max_search_fraction": 0.6, "coarse_probe_steps": 3, "min_probe_steps": 6}
    job: dict[str, Any] = {
        "optimizer": {"kind": "auto", "options": OPTIONS},
        "exchange": {"kind": "threshold", "density": 0.05},
        "controller": {"kind": "bo", **search},
        "budget": {"steps": 140},  # which reads no clock
        "objective": {"every": 20},
    }
    return digits_trial(**(job | changes))


def _train(spec: TrialSpec, folder: Path, sink: Memory, resume: dict[str, Any] | None = None) -> None:
    with ProcessGroup(spec.replica, 2) as group:
        trial.train(spec, group, sink, trial_id="t", storage_url=str(folder), resume=resume)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Memory:
    """Return what an undisturbed run reports."""
    sink = Memory()
    _train(_spec(), tmp_path_factory.mktemp("whole"), sink)
    return sink


def test_every_optimizer_is_tried_and_one_trains_all_that_is_committed(whole: Memory) -> None:
    [finished] = whole.of(TrialFinished)
    kinds = {probe.values["optimizer"] for probe in whole.of(ProbeDone)}
    chosen = whole.of(StageDecided)[0].values["optimizer"]

    assert len(kinds) == 4
    assert f"{chosen} learned " in whole.of(StageDecided)[0].reason
    assert {entry.values["optimizer"] for entry in finished.schedule} == {chosen}
    by_option = finished.bill.by_option
    assert set(by_option) == kinds
    assert by_option[chosen].steps - by_option[chosen].steps_search == finished.bill.steps


def test_a_run_whose_optimizers_compete_goes_on_bit_for_bit(whole: Memory, tmp_path: Path) -> None:
    cut, resumed = Stopping(9), Memory()
    with pytest.raises(Stopped):
        _train(_spec(), tmp_path, cut)
    _train(_spec(), tmp_path, resumed, cut.of(Searched)[-1].resume)

    [finished], [again] = whole.of(TrialFinished), resumed.of(TrialFinished)
    assert (again.schedule, again.validation_loss) == (finished.schedule, finished.validation_loss)


@pytest.mark.parametrize("is_alone", [False, True])
def test_its_schedule_replays_bit_for_bit_among_the_others_and_alone(
    whole: Memory, tmp_path: Path, *, is_alone: bool
) -> None:
    [finished] = whole.of(TrialFinished)
    chosen, steps = whole.of(StageDecided)[0].values["optimizer"], finished.bill.steps
    entries = tuple(entry.model_dump() for entry in finished.schedule)
    schedule = ScheduleFile(optimizer=chosen, num_steps=steps, entries=entries)
    follow: dict[str, Any] = {"controller": {"kind": "schedule", "schedule": schedule}, "budget": {"steps": steps}}
    [own] = [option for option in _spec().replica.optimizer.options if option.kind == chosen]
    replayed = Memory()
    _train(_spec(**follow | ({"optimizer": own} if is_alone else {})), tmp_path, replayed)

    assert replayed.of(TrialFinished)[0].validation_loss == finished.validation_loss


@pytest.mark.parametrize(
    ("controller", "options", "best"),
    [("bo", OPTIONS, "muon"), ("bo", ["sgd", "adamw"], "adamw"), ("off", ["sgd", "adamw"], "adamw")],
    ids=str,
)
def test_without_probes_the_one_whose_steps_are_worth_most_trains_as_if_it_were_alone(
    tmp_path: Path, controller: str, options: list[Any], best: str
) -> None:
    several, alone = Memory(), Memory()
    changes: dict[str, Any] = {"controller": {"kind": controller}}
    _train(_spec(optimizer={"kind": "auto", "options": options}, **changes), tmp_path / "several", several)
    _train(_spec(optimizer={"kind": best}, **changes), tmp_path / "alone", alone)

    [finished], [other] = several.of(TrialFinished), alone.of(TrialFinished)
    assert several.of(StageDecided)[0].values["optimizer"] == best
    assert f"{best} is expected to learn most: a step of " in several.of(StageDecided)[0].reason
    rates = [[(entry.step, entry.learning_rate) for entry in each.schedule] for each in (finished, other)]
    assert (rates[0], finished.validation_loss) == (rates[1], other.validation_loss)


@pytest.mark.parametrize(("muon_s", "best"), [(0.014, "muon"), (0.016, "adamw")], ids=["worth it", "too slow"])
def test_under_seconds_an_optimizer_whose_steps_take_long_must_be_worth_it(
    monkeypatch: pytest.MonkeyPatch, muon_s: float, best: str
) -> None:
    taken = {"muon": muon_s, "adamw": 0.01, "sgd": 0.009}
    spec = _spec(optimizer={"kind": "auto", "options": [*taken]}, controller={"kind": "bo"}, budget={"seconds": 60})
    with ProcessGroup(spec.replica, 1) as group:
        run = group.run

        def timed(segment: Segment) -> SegmentResult:
            seconds = taken[segment.optimizer or ""]
            return run(segment).model_copy(update={"step_seconds": (0.5 * seconds, 3 * seconds, seconds)})

        monkeypatch.setattr(group, "run", timed)
        space, warm_ups = opening_space(spec, [group])

    assert (space.optimizer, space.guess.optimizer, space.optimizers) == (best, best, ())
    assert space.chosen_because.startswith(f"{best} is expected to learn most: a step of muon is worth 1.5 and takes 1")
    assert len(warm_ups) == 7  # two turns of each, and the run's own
