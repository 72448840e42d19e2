"""A run whose optimizers compete, with two real workers: searched, cut off, gone on with, replayed by its schedule."""

from pathlib import Path
from typing import Any

import pytest

from search.schedule_file import ScheduleFile
from service.cluster import trial
from service.cluster.reporter import Stopped
from service.job.parts import TrialSpec
from service.wire.records import Control, ProbeDone, Searched, StageDecided, TrialFinished
from tests.small_trials import Memory, digits_trial
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
    job: dict[str, Any] = {
        "optimizer": {"kind": "auto", "options": OPTIONS},
        "exchange": {"kind": "threshold", "density": 0.05},
        "controller": {"kind": "bo", "max_search_fraction": 0.6, "coarse_probe_steps": 3, "min_probe_steps": 6},
        "budget": {"steps": 140},  # which reads no clock
        "objective": {"every": 20},
    }
    return digits_trial(**(job | changes))


def _train(spec: TrialSpec, folder: Path, sink: Memory, resume: dict[str, Any] | None = None) -> None:
    with ProcessGroup(spec.replica, 2) as group:
        trial.train(spec, group, sink, trial_id="t", storage_url=str(folder), resume=resume)


def test_a_run_whose_optimizers_compete_goes_on_and_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    whole, cut, resumed, replayed, alone = Memory(), Stopping(9), Memory(), Memory(), Memory()
    _train(_spec(), tmp_path / "whole", whole)
    [finished] = whole.of(TrialFinished)
    kinds = {probe.values["optimizer"] for probe in whole.of(ProbeDone)}
    chosen = whole.of(StageDecided)[0].values["optimizer"]
    with pytest.raises(Stopped):
        _train(_spec(), tmp_path / "cut", cut)
    _train(_spec(), tmp_path / "cut", resumed, cut.of(Searched)[-1].resume)
    steps = finished.bill.steps
    entries = tuple(entry.model_dump() for entry in finished.schedule)
    schedule = ScheduleFile(optimizer=chosen, num_steps=steps, entries=entries)
    follow: dict[str, Any] = {"controller": {"kind": "schedule", "schedule": schedule}, "budget": {"steps": steps}}
    [own] = [option for option in _spec().replica.optimizer.options if option.kind == chosen]
    _train(_spec(**follow), tmp_path / "replayed", replayed)
    _train(_spec(optimizer=own, **follow), tmp_path / "alone", alone)

    assert len(kinds) == 4
    assert f"{chosen} learned " in whole.of(StageDecided)[0].reason
    assert {entry.values["optimizer"] for entry in finished.schedule} == {chosen}
    [again] = resumed.of(TrialFinished)
    assert (again.schedule, again.validation_loss) == (finished.schedule, finished.validation_loss)
    assert replayed.of(TrialFinished)[0].validation_loss == finished.validation_loss
    assert alone.of(TrialFinished)[0].validation_loss == finished.validation_loss
    by_option = finished.bill.by_option
    assert set(by_option) == kinds
    assert by_option[chosen].steps - by_option[chosen].steps_search == finished.bill.steps
