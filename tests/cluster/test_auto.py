"""A run with competing exchanges and two real workers: searched, cut off, resumed, and replayed by its schedule."""

from pathlib import Path
from typing import Any

import pytest

from search.schedule_file import ScheduleFile
from service.cluster.reporter import Stopped
from service.job.parts import TrialSpec
from service.wire.records import AnyRecord, Control, ProbeDone, StageClosed, StageDecided, TrialFinished
from tests.support.small_trials import Memory, digits_trial, train

OPTIONS = ["threshold 0.02", "powersgd 4", "powersgd 1", "local_sgd 64"]


class Stopping(Memory):
    """Ends the run after `stop_after` closed stages."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.stop_after = stop_after

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        if self.stop_after is not None and len(self.of(StageClosed)) >= self.stop_after:
            raise Stopped(Control.CANCEL, "told to cancel")


def _spec(**changes: Any) -> TrialSpec:
    job: dict[str, Any] = {
        "optimizer": {"kind": "sgd"},
        "exchange": {"kind": "auto", "options": OPTIONS},
        "controller": {"kind": "bo", "revisit": "stages", "max_search_fraction": 0.6},
        "budget": {"bytes": 30_000_000},  # which reads no clock
        "objective": {"every": 25},
    }
    return digits_trial(**(job | changes))


@pytest.mark.long
def test_a_run_whose_exchanges_compete_goes_on_and_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    whole, cut, resumed, replayed = Stopping(), Stopping(stop_after=2), Stopping(), Stopping()
    train(_spec(), tmp_path / "whole", whole, num_workers=2)
    with pytest.raises(Stopped):
        train(_spec(), tmp_path / "cut", cut, num_workers=2)
    train(_spec(), tmp_path / "cut", resumed, cut.of(StageClosed)[-1].resume, num_workers=2)
    [finished] = whole.of(TrialFinished)
    schedule = ScheduleFile(
        optimizer="sgd",
        num_steps=finished.bill.steps,
        entries=tuple(entry.model_dump() for entry in finished.schedule),
    )
    follow = {"controller": {"kind": "schedule", "schedule": schedule}, "budget": {"steps": finished.bill.steps}}
    train(_spec(**follow), tmp_path / "replayed", replayed, num_workers=2)

    assert len({probe.values["option"] for probe in whole.of(ProbeDone)}) > 2
    assert all("option" in decided.reason for decided in whole.of(StageDecided))
    [again] = resumed.of(TrialFinished)
    assert (again.schedule, again.validation_loss) == (finished.schedule, finished.validation_loss)
    assert replayed.of(TrialFinished)[0].validation_loss == finished.validation_loss
    by_option, probes = finished.bill.by_option, whole.of(ProbeDone)
    assert set(by_option) == {probe.values["option"] for probe in probes}
    assert (
        sum(took.steps for took in by_option.values())
        == finished.bill.steps + finished.bill.steps_search + finished.bill.steps_taken_back
    )
    assert 0 < sum(took.bytes_sent for took in by_option.values()) <= finished.bill.bytes_sent
