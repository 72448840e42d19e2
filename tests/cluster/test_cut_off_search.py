"""A search that was cut off resumes after its last acknowledged probe, and ends like an undisturbed one."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.cluster.resume import Resume
from service.job.parts import TrialSpec
from service.wire.records import (
    AnyRecord,
    Checkpointed,
    Control,
    ProbeDone,
    Searched,
    StageClosed,
    StageDecided,
    TrialFinished,
)
from tests.support.small_trials import Memory, digits_trial

BO = {"kind": "bo", "max_search_fraction": 0.5}
ARMS: dict[str, dict[str, Any]] = {
    "bo with a cool-down": {"controller": BO, "optimizer": {"kind": "sgd"}},
    "bo at every stage": {
        "controller": BO | {"revisit": "stages", "probe_fraction": 0.01, "min_probe_steps": 4},
        "optimizer": {"kind": "schedulefree_sgd", "learning_rate": 3.0},
    },
    "sobol": {"controller": {"kind": "sobol", "max_search_fraction": 0.5}},
    "autolrs": {"controller": {"kind": "autolrs"}, "optimizer": {"kind": "sgd", "learning_rate": 0.5}},
    "two lanes": {"controller": BO, "lanes": {"count": 2}},
    "lanes that join": {"controller": BO, "lanes": {"count": 2, "after": "batch"}},
    "beside the own schedule": {"controller": BO, "lanes": {"count": 3, "after": "insurance"}},
}
BUDGETS: dict[str, dict[str, int]] = {"steps": {"steps": 700}, "bytes": {"bytes": 800_000}}

#: What is tried in every run of the tests.
OFTEN = [("bo with a cool-down", "steps"), ("lanes that join", "bytes")]


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Callable[..., Memory]:
    attempts = itertools.count()

    def train(spec: TrialSpec, resume: dict[str, Any] | None = None, sink: Memory | None = None) -> Memory:
        sink, url = sink or Memory(), f"file://{tmp_path}/attempt-{next(attempts)}"
        group, *spare = [arithmetic_group(limit=1.5, patience=60) for _ in range(spec.lanes.count)]
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=url, resume=resume, spare=spare)
        return sink

    return train


def _spec(arm: str, budget: str = "steps") -> TrialSpec:
    return digits_trial(budget=BUDGETS[budget], checkpoint={"keep": 100}, objective={"every": 30}, **ARMS[arm])


def _probes(sink: Memory, stage: int) -> list[str]:
    """Return the stage's probes in the order in which they ended."""
    return list(dict.fromkeys(probe.probe_id for probe in sink.of(ProbeDone) if probe.stage == stage))


def _until_decided(sink: Memory, stage: int) -> list[str]:
    """Return the probes that were made before the decision, which reports all of them again."""
    decision = next(each for each in sink.of(StageDecided) if each.stage == stage)
    before = sink.records[: sink.records.index(decision)]
    reported = [probe.probe_id for probe in before if isinstance(probe, ProbeDone) and probe.stage == stage]
    return reported[: -len(_probes(sink, stage))]


CASES = [
    pytest.param(arm, budget, marks=[] if (arm, budget) in OFTEN else [pytest.mark.long])
    for arm, budget in itertools.product(ARMS, BUDGETS)
]


@pytest.mark.parametrize(("arm", "budget"), CASES)
def test_a_search_cut_off_behind_any_probe_ends_like_the_undisturbed_one(
    train: Callable[..., Memory], arm: str, budget: str
) -> None:
    whole = train(_spec(arm, budget))
    points = whole.of(Searched)

    for point in points[:: max(1, len(points) // 4)]:
        again = train(_spec(arm, budget), point.resume)
        assert again.end == whole.end
        rest = [probe for probe in _probes(whole, point.stage) if probe not in point.probes]
        assert _until_decided(again, point.stage) == rest

    assert len(points) >= 3


class StoppedWithin(Memory):
    """Its user stops the run after the report number `number` of a search: before the next probe, or within it."""

    def __init__(self, number: int, *, is_within: bool) -> None:
        super().__init__()
        self._left, self._is_within, self._asked = number, is_within, Control.RUN

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        self._left -= sum(isinstance(each, Searched) for each in records)
        if self._left <= 0 and not (self._is_within and records):  # a probe that trains reports nothing
            self._asked = Control.STOP

    def asked(self) -> Control:
        return self._asked


@pytest.mark.parametrize(
    "arm",
    ["bo with a cool-down", *(pytest.param(arm, marks=pytest.mark.long) for arm in ("bo at every stage", "two lanes"))],
)
def test_a_run_that_was_stopped_within_a_search_and_goes_on_ends_like_the_undisturbed_one(
    train: Callable[..., Memory], arm: str
) -> None:
    spec = _spec(arm)
    whole = train(spec)
    points = whole.of(Searched)
    inner = [number for number, (each, after) in enumerate(itertools.pairwise(points), 1) if each.stage == after.stage]

    for number, is_within in itertools.product((inner[0], inner[-1]), (False, True)):
        stopped = train(spec, sink=StoppedWithin(number, is_within=is_within))
        [*_, last] = stopped.of(Searched)
        assert stopped.finished.stopped and stopped.finished.bill.steps == last.step
        assert stopped.finished.bill.steps_search >= last.bill.steps_search  # those of the probe that was cut, too
        assert not any(each.stage >= last.stage for each in stopped.of(StageDecided, StageClosed))
        assert train(spec, last.resume).end == whole.end


@pytest.mark.long
def test_an_attempt_may_be_cut_off_behind_every_single_probe(train: Callable[..., Memory]) -> None:
    spec, resume, made = _spec("bo with a cool-down"), None, []
    whole = train(spec)

    for _ in whole.of(Searched):
        sink = train(spec, resume)
        [*_, point] = sink.of(Searched)[:1]
        made += [probe for probe in point.probes if probe not in made]
        resume = point.resume

    assert made == list(dict.fromkeys(probe for point in whole.of(Searched) for probe in point.probes))
    assert train(spec, resume).end == whole.end


def test_only_the_winners_steps_are_trained_again_and_that_is_on_the_bill(train: Callable[..., Memory]) -> None:
    spec = _spec("bo at every stage")
    whole = train(spec)
    decided = next(each for each in whole.of(StageDecided) if each.decision.promoted)
    winner = next(probe for probe in whole.of(ProbeDone) if probe.probe_id == decided.decision.promoted)
    last = [point for point in whole.of(Searched) if point.stage == decided.stage][-1]

    again = train(spec, last.resume)

    assert again.of(TrialFinished)[0].bill.bytes_recovery == winner.bytes_sent
    assert again.of(TrialFinished)[0].bill.repairs == whole.of(TrialFinished)[0].bill.bytes_recovery == 0
    for point in whole.of(Searched):
        resume = Resume.model_validate(point.resume)
        assert resume.checkpoint == resume.stage.checkpoint and resume.open_commit is None
        assert Path(resume.checkpoint.removeprefix("file://")).is_dir()
    assert all(Resume.model_validate(point.resume).search is None for point in whole.of(Checkpointed, StageClosed))
