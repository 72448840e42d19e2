"""Users steer a running job from the next stage on; cut off anywhere, it ends like an undisturbed one."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search.types import Band, Steer
from service.cluster import trial
from service.job.parts import TrialSpec
from service.wire.records import AnyRecord, Checkpointed, ProbeDone, Searched, StageClosed, StageDecided, TrialFinished
from tests.support.small_trials import Memory, digits_trial

#: What holds from the opening of each stage on, as people say it while the run trains.
SAID: dict[int, tuple[Steer, ...]] = {
    1: (Steer(id=1, by="ada", pin={"learning_rate": 0.8}),),
    2: (Steer(id=2, by="bob", veto={"learning_rate": Band(above=0.9)}, search_now=True),),
}


class Steered(Memory):
    """Its API says what holds with every answer; a stage that closes opens the next."""

    def __init__(self, stage: int = 0) -> None:
        super().__init__()
        self._stage = stage

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        for record in records:
            if isinstance(record, StageClosed):
                self._stage = record.stage + 1

    def steers(self) -> tuple[Steer, ...]:
        return SAID.get(min(self._stage, max(SAID)), ())


SPEC = digits_trial(
    budget={"steps": 900},
    checkpoint={"every_seconds": 1e-9, "keep": 100},  # after every push
    objective={"every": 30},
    controller={"kind": "bo", "max_search_fraction": 0.5, "cooldown": 0.15},
    optimizer={"kind": "sgd"},
)


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Callable[..., Memory]:
    attempts = itertools.count()

    def train(spec: TrialSpec, point: Any = None) -> Memory:
        stage = 0 if point is None else point.stage + isinstance(point, StageClosed)
        sink, url = Steered(stage), f"file://{tmp_path}/attempt-{next(attempts)}"
        resume = point and point.resume
        trial.train(spec, arithmetic_group(), sink, trial_id="job.tuned.0", storage_url=url, resume=resume)
        return sink

    return train


def _end(sink: Memory) -> tuple[Any, ...]:
    [finished] = sink.of(TrialFinished)
    return finished.outcome, finished.validation_loss, finished.schedule, finished.bill.steps_search


def test_a_steered_run_cut_off_anywhere_ends_like_the_undisturbed_one(train: Callable[..., Memory]) -> None:
    whole = train(SPEC)
    points = whole.of(Checkpointed, StageClosed, Searched)
    chosen = {(point.stage, type(point)): point for point in points}  # the last of each kind in each stage
    ends = [_end(train(SPEC, point)) for point in chosen.values()]

    assert {Checkpointed, StageClosed, Searched} == {type(point) for point in chosen.values()}
    assert ends == [_end(whole)] * len(ends)


def test_what_people_say_holds_from_the_next_stage_on_and_the_schedule_names_them(
    train: Callable[..., Memory],
) -> None:
    sink = train(SPEC)
    first, second, third, *_ = sink.of(StageDecided)

    assert first.decision.steers == ()
    assert second.learning_rate == 0.8 and "ada pinned learning rate 0.8" in second.reason
    assert third.learning_rate <= 0.9 and "bob asked for a search" in third.reason
    assert {probe.stage for probe in sink.of(ProbeDone)} >= {0, 2}
    assert 1 not in {probe.stage for probe in sink.of(ProbeDone)}
    [finished] = sink.of(TrialFinished)
    people = [entry.steered_by for entry in finished.schedule]
    assert [names for names, _ in itertools.groupby(people)] == [(), ("ada",), ("bob",)]
    assert all(entry.learning_rate <= 0.9 for entry in finished.schedule if entry.steered_by == ("bob",))
