"""The stage loop, with two real spawned workers and no Ray."""

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.cluster.reporter import Stopped
from service.job.parts import TrialSpec
from service.wire.records import (
    AnyRecord,
    Bill,
    Checkpointed,
    Control,
    MetricPoints,
    ProbeDone,
    StageClosed,
    StageDecided,
    TrialFinished,
)
from tests.support.killed_workers import KilledInAverage
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Segment
from trainers.training.elastic import ElasticGroup
from trainers.training.process_group import ProcessGroup
from trainers.training.repair import RepairingGroup


class Stopping(Memory):
    """Ends the run after `stop_after` closed stages."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.stop_after = stop_after
        self.num_pushes = 0  # before each, the run asks whether it may go on

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        self.num_pushes += not records
        if self.stop_after is not None and len(self.of(StageClosed)) >= self.stop_after:
            raise Stopped(Control.CANCEL, "told to cancel")

    def losses(self) -> dict[int, float]:
        return self._series("loss")

    def validation(self) -> dict[int, float]:
        return self._series("validation_loss")

    def _series(self, name: str) -> dict[int, float]:
        series = [record for record in self.of(MetricPoints) if record.name == name]
        return {step: value for record in series for step, value in zip(record.steps, record.values, strict=True)}


def _spec(**changes: Any) -> TrialSpec:
    job = {
        "exchange": {"kind": "threshold", "density": [0.003, 0.1]},
        "controller": {"kind": "bo", "revisit": "stages", "max_search_fraction": 0.5},
        "objective": {"every": 25},
        "budget": {"steps": 480, "bytes": 10**12},  # which counts what a density sends
    }
    return digits_trial(**(job | changes))


FIXED: dict[str, Any] = {
    "controller": {"kind": "fixed"},
    "exchange": {"kind": "none"},
    "budget": {"steps": 130},
}


@pytest.fixture
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    def run(spec: TrialSpec, sink: Stopping | None = None, resume: dict[str, Any] | None = None) -> Stopping:
        sink = sink or Stopping()
        url = f"file://{tmp_path_factory.mktemp('results')}"
        with ProcessGroup(spec.replica, num_workers=spec.workers.count) as group:
            trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=url, resume=resume)
        return sink

    yield run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Stopping:
    spec, sink = _spec(), Stopping()
    with ProcessGroup(spec.replica, num_workers=2) as group:
        url = f"file://{tmp_path_factory.mktemp('undisturbed')}"
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=url)
    return sink


def test_a_fixed_arm_spends_its_budget_to_the_step_and_reports_every_loss(train: Any) -> None:
    sink = train(_spec(**FIXED))

    [finished] = sink.of(TrialFinished)
    assert finished.outcome == "completed"
    assert sorted(sink.losses()) == list(range(130))
    assert finished.bill.steps == 130 and finished.bill.steps_search == 0
    assert [(e.step, e.num_steps) for e in finished.schedule] == [(0, 130)]


def test_every_stage_shows_its_search_and_the_incumbent_is_always_probed(undisturbed: Stopping) -> None:
    decided = undisturbed.of(StageDecided)
    probes = {(p.stage, p.probe_id): p for p in undisturbed.of(ProbeDone)}

    assert len(decided) >= 4
    assert len([key for key in probes if key[0] == 0]) >= 5
    for before, stage in itertools.pairwise(decided):
        rates = [p.learning_rate for (number, _), p in probes.items() if number == stage.stage]
        assert before.learning_rate in rates
        assert len(rates) >= 3
    assert all(stage.reason for stage in decided)
    assert all(stage.loss is not None for stage in undisturbed.of(StageClosed))


def test_the_schedule_covers_every_committed_step_once_and_the_bill_adds_up(undisturbed: Stopping) -> None:
    [finished] = undisturbed.of(TrialFinished)

    covered = [step for e in finished.schedule for step in range(e.step, e.step + e.num_steps)]
    assert covered == list(range(finished.bill.steps)) == sorted(undisturbed.losses())
    assert finished.bill.steps + finished.bill.steps_search == 480
    assert sum(finished.bill.bytes_by_purpose.values()) == finished.bill.bytes_sent
    assert finished.bill.bytes_sent < finished.bill.bytes_dense


def test_promoted_probes_are_trained_as_if_there_had_been_no_search(undisturbed: Stopping) -> None:
    [finished], decided = undisturbed.of(TrialFinished), undisturbed.of(StageDecided)

    losses: list[float] = []
    with ProcessGroup(_spec().replica, num_workers=2) as group:
        for entry in finished.schedule:
            values = entry.model_dump(include={"num_steps", "learning_rate", "final_learning_rate", "level"})
            losses += group.run(Segment(**values)).losses

    assert [stage.decision.promoted is not None for stage in decided][0:2] == [False, True]
    assert losses == [loss for _, loss in sorted(undisturbed.losses().items())]
    assert finished.bill.steps_search == sum(stage.search_steps for stage in decided)
    assert finished.bill.bytes_search == sum(stage.search_bytes for stage in decided)


def test_a_run_that_was_cut_between_stages_goes_on_bit_for_bit(train: Any, undisturbed: Stopping) -> None:
    cut = Stopping(stop_after=2)
    with pytest.raises(Stopped):
        train(_spec(), cut)

    resumed = train(_spec(), resume=cut.of(StageClosed)[-1].resume)

    assert cut.losses() | resumed.losses() == undisturbed.losses()
    assert resumed.of(TrialFinished)[0].schedule == undisturbed.of(TrialFinished)[0].schedule
    assert resumed.of(TrialFinished)[0].validation_loss == undisturbed.of(TrialFinished)[0].validation_loss


@pytest.mark.long
def test_a_run_goes_on_from_a_checkpoint_inside_a_commit_bit_for_bit(train: Any) -> None:
    spec = _spec(**FIXED, checkpoint={"every_seconds": 0.01, "keep": 100})
    whole = train(spec)

    middle = whole.of(Checkpointed)[2]
    resumed = train(spec, resume=middle.resume)

    assert 0 < middle.step < 130
    assert {s: v for s, v in whole.losses().items() if s >= middle.step} == resumed.losses()


def test_workers_that_train_apart_are_evaluated_where_they_meet_which_sends_nothing(train: Any) -> None:
    spec = _spec(
        **FIXED | {"budget": {"steps": 128}, "sync": {"kind": "local_sgd", "period": 16}},
        checkpoint={"every_seconds": 1e-9, "keep": 100},
    )
    whole = train(spec)
    waiting = next(each for each in whole.of(Checkpointed) if each.resume["progress"]["evaluation_due"])
    resumed = train(spec, resume=waiting.resume)

    assert list(whole.validation()) == [0, 32, 64, 80, 112, 128]
    assert "state" not in whole.of(TrialFinished)[0].bill.bytes_by_purpose
    assert 25 <= waiting.step < 32
    assert resumed.validation() == {step: loss for step, loss in whole.validation().items() if step > waiting.step}


def test_a_diverging_arm_ends_as_diverged_with_its_last_good_weights(train: Any) -> None:
    spec = _spec(**FIXED | {"optimizer": {"kind": "sgd", "learning_rate": 1000.0}})

    [finished] = train(spec).of(TrialFinished)

    assert finished.outcome == "diverged"
    assert finished.validation_loss is not None and finished.weights_url is not None


class Killer(Stopping):
    """Kills a worker at seeded moments: soon after some of the calls that precede every push to the workers."""

    def __init__(self, group: ProcessGroup, *, seed: int, num_kills: int, num_pushes: int) -> None:
        super().__init__()
        self.group, self.dice = group, random.Random(seed)
        # Three pushes apart, so that a kill has been met before the next one.
        self.moments = set(self.dice.sample(range(1, num_pushes - 3, 3), num_kills))
        self.timers: list[threading.Timer] = []

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        if records:
            return
        for timer in self.timers:
            timer.join()
        if self.num_pushes in self.moments:
            victim = self.group.pids[self.dice.randrange(self.group.num_workers)]
            self.timers = [threading.Timer(0.1 * self.dice.random(), os.kill, (victim, signal.SIGKILL))]
            self.timers[0].start()


def test_a_trial_whose_worker_is_killed_goes_on_without_it_and_says_so_on_the_bill(tmp_path: Path) -> None:
    local = {"sync": {"kind": "diloco", "period": 5}, "workers": {"count": 2, "min": 1}}
    spec = _spec(**FIXED | local)
    sink = Stopping()
    with ElasticGroup(KilledInAverage(spec.replica, num_workers=2), least=1) as group:
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}")

    [finished] = sink.of(TrialFinished)
    assert finished.outcome == "completed" and finished.bill.steps == 130
    assert sorted(sink.losses()) == list(range(130))
    assert finished.bill.repairs == 1 and list(finished.bill.absences) == [1]


@pytest.mark.long  # the service's kills, and those of tests/distributed, are of the default suite
@pytest.mark.parametrize(("seed", "num_kills"), [(0, 3), (1, 10)])
def test_a_run_whose_workers_are_killed_at_random_moments_ends_with_the_same_bits(
    undisturbed: Stopping, tmp_path: Path, seed: int, num_kills: int
) -> None:
    spec, [expected] = _spec(), undisturbed.of(TrialFinished)
    started = time.monotonic()
    with RepairingGroup(inner := ProcessGroup(spec.replica, num_workers=2)) as group:
        sink = Killer(inner, seed=seed, num_kills=num_kills, num_pushes=undisturbed.num_pushes)
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}")

    [finished] = sink.of(TrialFinished)
    assert finished.bill.repairs >= num_kills
    assert finished.bill.seconds_recovery > 0 and finished.bill.bytes_recovery > 0
    assert finished.bill.seconds_training + finished.bill.seconds_recovery < time.monotonic() - started
    assert finished.model_dump(exclude=NOT_BITS) == expected.model_dump(exclude=NOT_BITS)
    assert _weights(finished) == _weights(expected)
    assert sink.losses() == undisturbed.losses()


SECONDS = {name for name in Bill.model_fields if name.startswith("seconds_")}
RECOVERY = {"repairs", "seconds_recovery", "bytes_recovery"}
NOT_BITS: Any = {"weights_url": True, "bill": SECONDS | RECOVERY | {"memory_bytes"}}


def _weights(finished: TrialFinished) -> bytes:
    return Path(str(finished.weights_url).removeprefix("file://")).read_bytes()
