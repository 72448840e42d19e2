"""Several worker groups in one trial find the same side by side as one after the other."""

import itertools
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from search.config import Budget
from search.types import Allowance, Candidate, Spent, Values
from service.cluster import ending, trial
from service.cluster.lanes import Lane, ProbeRun, for_a_lane, require_equal, side_by_side
from service.cluster.measured import Probe
from service.cluster.reporter import Stopped
from service.cluster.slots import BEST, STAGE
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from service.wire.records import (
    AnyRecord,
    Bill,
    Checkpointed,
    Control,
    MetricPoints,
    ProbeDone,
    StageClosed,
    StageDecided,
)
from tests.support.patience import PATIENCE_S
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Evaluation, Segment, SegmentResult
from trainers.training.call_results import Built
from trainers.training.process_group import ProcessGroup
from trainers.training.repair import RepairingGroup
from trainers.workload import WorkloadError

BUDGET = Budget(steps=1000)
WAIT_S = PATIENCE_S


def _candidate(number: int) -> Candidate:
    values = Values(learning_rate=0.5 / (1 + number))
    return Candidate(id=f"0-{number}", stage=0, values=values, allowance=Allowance(steps=12), origin="wide")


def _run(lane: Lane, candidate: Candidate) -> Probe:
    run = ProbeRun(lane.group, candidate, opened=Spent(), budget=BUDGET)
    return run.run(watch=lambda observation: "go_on", check=lambda: None)


def _told(lanes: list[Lane], *, in_rounds: bool) -> list[str]:
    """Probe three candidates on two lanes, the first of which waits for the other; return who is told when."""
    candidates, told = iter([_candidate(number) for number in range(3)]), list[str]()
    neighbour_ended, waits = threading.Event(), not in_rounds

    def probe(lane: Lane, given: Sequence[Candidate]) -> list[Probe]:
        [candidate] = given
        if candidate.id == "0-0":
            assert neighbour_ended.wait(WAIT_S)
        elif candidate.id == ("0-2" if waits else "0-1"):
            neighbour_ended.set()
        return [_run(lane, candidate)]

    ask = for_a_lane(lambda: next(candidates, None), 2)
    for ended, _ in side_by_side(lanes, ask=ask, probe=probe, in_rounds=in_rounds):
        told.extend(probe.candidate.id for probes in ended for probe in probes)
    return told


def test_in_rounds_what_is_told_does_not_depend_on_which_lane_is_faster(arithmetic_group: Callable[..., Any]) -> None:
    lanes = [Lane(arithmetic_group()) for _ in range(2)]

    assert _told(lanes, in_rounds=True) == ["0-0", "0-1", "0-2"]


def test_outside_of_rounds_a_free_lane_goes_on_at_once(arithmetic_group: Callable[..., Any]) -> None:
    lanes = [Lane(arithmetic_group()) for _ in range(2)]

    assert _told(lanes, in_rounds=False)[0] == "0-1"


def test_what_ends_one_lane_ends_the_search_when_the_others_have_ended(arithmetic_group: Callable[..., Any]) -> None:
    candidates, ended = iter([_candidate(0), _candidate(1)]), list[str]()

    def probe(lane: Lane, given: Sequence[Candidate]) -> list[Probe]:
        [candidate] = given
        if candidate.id == "0-0":
            raise WorkloadError("no such file")
        ended.append(candidate.id)
        return [_run(lane, candidate)]

    lanes = [Lane(arithmetic_group()) for _ in range(2)]
    with pytest.raises(WorkloadError, match="no such file"):
        for probes, _ in side_by_side(
            lanes, ask=for_a_lane(lambda: next(candidates, None), 2), probe=probe, in_rounds=True
        ):
            list(probes)
    assert ended == ["0-1"]


def test_who_leaves_the_search_waits_for_what_runs(arithmetic_group: Callable[..., Any]) -> None:
    candidates, ended = iter([_candidate(0), _candidate(1)]), list[str]()
    first_is_told = threading.Event()

    def probe(lane: Lane, given: Sequence[Candidate]) -> list[Probe]:
        [candidate] = given
        if candidate.id == "0-1":
            assert first_is_told.wait(WAIT_S)
        ended.append(candidate.id)
        return [_run(lane, candidate)]

    lanes, ask = [Lane(arithmetic_group()) for _ in range(2)], for_a_lane(lambda: next(candidates, None), 2)
    with closing(side_by_side(lanes, ask=ask, probe=probe, in_rounds=False)) as rounds:
        next(rounds)
        first_is_told.set()

    assert ended == ["0-0", "0-1"]


def test_lanes_of_different_models_are_refused(arithmetic_group: Callable[..., Any]) -> None:
    groups = [arithmetic_group(), arithmetic_group()]
    groups[1].built = Built(fingerprint="another model")

    with pytest.raises(WorkloadError, match="different models or data"):
        require_equal(groups)


# -- whole runs ----------------------------------------------------------------------------------------------


def _spec(**changes: Any) -> TrialSpec:
    job = {"optimizer": {"kind": "sgd"}, "controller": {"kind": "bo", "max_search_fraction": 0.5}}
    return digits_trial(**(job | changes))


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Callable[..., Memory]:
    runs = itertools.count()

    def train(spec: TrialSpec, resume: dict[str, Any] | None = None) -> Memory:
        sink, url = Memory(), f"file://{tmp_path}/{next(runs)}"
        group, *spare = [arithmetic_group() for _ in range(spec.lanes.count)]
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=url, resume=resume, spare=spare)
        return sink

    return train


@pytest.mark.parametrize("count", [2, 3])
def test_the_steps_of_all_lanes_are_on_the_bill_and_in_the_budget(train: Callable[..., Memory], count: int) -> None:
    sink = train(_spec(lanes={"count": count}))

    bill = sink.finished.bill
    promoted = {stage.decision.promoted for stage in sink.of(StageDecided)}
    probes = {probe.probe_id: probe for probe in sink.of(ProbeDone) if probe.probe_id not in promoted}
    assert bill.steps + bill.steps_search == 900
    coarse = [probe.num_steps for probe in probes.values() if probe.origin == "wide"]
    others = [probe.num_steps for probe in probes.values() if probe.origin != "wide"]
    assert bill.steps_search == 7 * math.ceil(len(coarse) / 2) + sum(others)  # a lane has two workers
    assert bill.bytes_search == sum(probe.bytes_sent for probe in probes.values())


def test_the_insurance_is_what_an_arm_without_a_search_would_train(train: Callable[..., Memory]) -> None:
    # without events no later search has a lane less
    once = {"kind": "bo", "max_search_fraction": 0.5, "event_gradient_scale": 1e3}
    own = train(_spec(controller={"kind": "off"})).finished
    searched = train(_spec(lanes={"count": 2}, controller=once)).finished
    sink = train(_spec(lanes={"count": 2, "after": "insurance"}, controller=once))

    insured = sink.finished
    assert own.validation_loss is not None and searched.validation_loss is not None
    kept = min((searched.validation_loss, "main"), (own.validation_loss, "insurance"))
    assert (insured.validation_loss, insured.line) == kept
    assert insured.schedule == {"main": searched, "insurance": own}[insured.line].schedule
    assert (insured.bill.steps, insured.bill.steps_insurance) == (searched.bill.steps, own.bill.steps)
    assert insured.bill.bytes_insurance > 0
    [last] = [point for point in sink.of(MetricPoints) if point.name == "insurance_validation_loss"][-1:]
    assert last.values == (own.validation_loss,)


def test_of_two_lines_the_better_one_is_kept(train: Callable[..., Memory]) -> None:
    lanes = {"count": 2, "after": "insurance"}
    rates = (1e-4, 20.0)  # this group's validation loss is the sum of the rates
    lines = [
        train(_spec(lanes=lanes, optimizer={"kind": "sgd", "learning_rate": rate})).finished.line for rate in rates
    ]

    assert lines == ["insurance", "main"]


def test_lanes_that_join_take_no_probe_along(train: Callable[..., Memory]) -> None:
    changes = {
        "controller": {"kind": "local", "max_search_fraction": 0.5},
        "optimizer": {"kind": "sgd", "learning_rate": 10.0},
    }
    joined, idle = (train(_spec(**changes, lanes={"count": 2, "after": after})) for after in ("batch", "idle"))

    started = joined.of(Checkpointed)[0]  # of the workers together: an older one may go once this is stored
    assert started.step == 0 and started.resume["checkpoint"] == started.resume["stage"]["checkpoint"]
    first, *_ = idle.of(StageDecided)
    assert first.decision.promoted is not None  # so it would be, were there no joining
    finished = joined.finished
    assert finished.bill.steps + finished.bill.steps_search == 900
    steps = [step for entry in finished.schedule for step in range(entry.step, entry.step + entry.num_steps)]
    assert steps == list(range(finished.bill.steps))


class Cancelled(Exception):
    pass


class Cancelling(Memory):
    """Cancels the run when its first committed steps are reported."""

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        if any(point.name == "loss" for point in self.of(MetricPoints)):
            raise Cancelled

    flush = report


def test_a_run_that_is_cancelled_ends_the_line_beside_it(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> None:
    spec = _spec(controller={"kind": "fixed"}, budget={"steps": 10**9}, lanes={"count": 2, "after": "insurance"})
    url = f"file://{tmp_path}"
    with pytest.raises(Cancelled):
        trial.train(spec, arithmetic_group(), Cancelling(), trial_id="t", storage_url=url, spare=[arithmetic_group()])

    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("insurance", "lane"))]


class PausesAtTheEnd(Memory):
    """Its user pauses the run once a checkpoint is reported after the main line has `ended`, with its budget spent."""

    def __init__(self, budget: int) -> None:
        super().__init__()
        self._budget = budget
        self.ended, self.reported = threading.Event(), threading.Event()

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        for each in records:
            if self.ended.is_set() and isinstance(each, Checkpointed):
                self.reported.set()
            elif isinstance(each, StageClosed):
                bill = each.bill
                if bill.steps + bill.steps_search + bill.steps_taken_back == self._budget:
                    self.ended.set()

    def asked(self) -> Control:
        return Control.PAUSE if self.reported.is_set() else Control.RUN


def test_a_second_line_that_trains_on_alone_is_paused_with_its_newest_checkpoint(
    tmp_path: Path, arithmetic_group: Callable[..., Any], train: Callable[..., Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "POLL_S", 0.001)
    lanes = {"count": 2, "after": "insurance"}
    spec = _spec(budget={"steps": 400}, checkpoint={"every_seconds": 1e-9}, lanes=lanes)

    def paused(user: PausesAtTheEnd, resume: Any = None, **until: int) -> Checkpointed:
        """Train until the pause. The second line waits for the user's events before its steps of those numbers."""
        behind = arithmetic_group()
        run, url = behind.run, f"file://{tmp_path}/{'first' if resume is None else 'second'}"

        def in_turn(segment: Segment) -> SegmentResult:
            for name, step in until.items():
                assert len(behind.rates) < step or getattr(user, name).wait(WAIT_S)
            result: SegmentResult = run(segment)
            return result

        behind.run = in_turn
        with pytest.raises(Stopped, match="told to pause"):
            trial.train(spec, arithmetic_group(), user, trial_id="t", storage_url=url, resume=resume, spare=[behind])
        last: Checkpointed = user.of(Checkpointed)[-1]
        return last

    first = paused(PausesAtTheEnd(400), ended=200, reported=300)
    user = PausesAtTheEnd(400)
    user.ended.set()
    second = paused(user, first.resume, reported=390)

    assert second.bill.steps_insurance > first.resume["insurance"]["progress"]["step"] >= 200
    for each in (first, second):
        assert each.bill == Bill.model_validate(each.resume["progress"]["bill"])
        assert train(spec, each.resume).end == train(spec).end


@pytest.mark.parametrize("first", ["main", "insurance"])
def test_the_line_that_is_first_at_the_target_ends_both(
    first: str, tmp_path: Path, arithmetic_group: Callable[..., Any]
) -> None:
    spec = _spec(
        controller={"kind": "fixed"},
        objective={"every": 10, "target": 1.0},
        budget={"steps": 10**9},
        lanes={"count": 2, "after": "insurance"},
    )
    groups = {"main": arithmetic_group(), "insurance": arithmetic_group()}
    for line, group in groups.items():
        group.evaluate = partial(_evaluated, group, at=30 if line == first else 10**9)
    main, spare = groups.values()

    finished = trial.train(spec, main, Memory(), trial_id="t", storage_url=f"file://{tmp_path}", spare=[spare])

    assert (finished.line, finished.validation_loss, finished.at_target) == (first, 0.5, True)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("insurance", "lane"))]


def _evaluated(group: Any, *, at: int, averaged: bool = False) -> Evaluation:
    """Return a loss of 0.5 from `at` steps on, and of 2 before."""
    loss = 0.5 if len(group.rates) >= at else 2.0
    return Evaluation(loss=loss, metrics={}, num_samples=10, bytes_sent=({"control": 8},) * 2)


# -- real workers --------------------------------------------------------------------------------------------

SMALL = JobSpec.model_validate(
    {
        "workload": {"kind": "digits-mlp"},
        "workers": {"count": 1},
        "exchange": {"kind": "threshold", "density": 0.05},
        "budget": {"steps": 100},
    }
)
SEGMENT = Segment(num_steps=6, learning_rate=0.3, level=0.05)


@pytest.fixture(scope="module")
def groups() -> Iterator[list[ProcessGroup]]:
    [spec] = SMALL.trials()
    with ProcessGroup(spec.replica, 1) as first, ProcessGroup(spec.replica, 1) as second:
        yield [first, second]


def test_a_probe_gives_the_same_losses_whichever_lane_runs_it(groups: list[ProcessGroup], tmp_path: Path) -> None:
    main, spare = (Lane(group) for group in groups)
    require_equal(groups)

    def losses(lane: Lane, checkpoint: str) -> list[float]:
        lane.rewind(checkpoint)
        lane.ends.ended(probe := _run(lane, _candidate(0)))
        return probe.measured.losses

    for number in range(2):  # at the first step, and at a later stage
        checkpoint = f"file://{tmp_path}/{number}"
        main.group.save(checkpoint)
        main.hold(checkpoint)
        found = losses(main, checkpoint)
        assert len(found) == 12
        assert losses(spare, checkpoint) == losses(main, checkpoint) == found


def test_lanes_that_join_train_as_a_group_of_all_their_workers_would(groups: list[ProcessGroup]) -> None:
    [spec] = SMALL.trials()
    with ProcessGroup(spec.replica, 2) as whole:
        expected = [whole.run(SEGMENT).losses for _ in range(2)]

    first, second = groups
    joined = RepairingGroup(first)
    joined.absorb([RepairingGroup(second)])
    results = [joined.run(SEGMENT)]
    os.kill(first.pids[1], signal.SIGKILL)
    results.append(joined.run(SEGMENT))

    assert joined.num_workers == len(results[0].bytes_sent) == 2
    assert [result.losses for result in results] == expected
    assert joined.recovery.repairs == 1


def test_what_was_put_aside_is_forgotten_once_the_stage_goes_on(arithmetic_group):
    group = arithmetic_group()
    lane = Lane(group)
    lane.hold("start")
    for number in range(3):
        lane.rewind("start", leading="0-0")
        lane.ends.ended(_run(lane, _candidate(number)))
    assert set(group.slots) == {STAGE, BEST}

    found = lane.ends.go_to("0-0")

    assert found is not None and found[0].candidate.id == "0-0"
    assert group.rates == [0.5] * 12
    assert set(group.slots) == {STAGE}
