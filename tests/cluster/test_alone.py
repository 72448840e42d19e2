"""Coarse probes by single workers, in whole runs: their cost, their reports, and when all workers train each one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search.types import Allowance, Candidate, Values
from service.cluster import trial
from service.cluster.lanes import for_a_lane
from service.wire.records import ProbeDone, Searched, StageDecided, TrialFinished
from tests.support.small_trials import Memory, digits_trial

Train = Callable[..., Memory]


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Train:
    def train(*, num_workers: int = 2, lanes: int = 1, **changes: Any) -> Memory:
        spec, sink = digits_trial(optimizer={"kind": "sgd"}, lanes={"count": lanes}, **changes), Memory()
        group, *spare = [arithmetic_group() for _ in range(lanes)]
        for each in (group, *spare):
            each.num_workers = num_workers
            each.config = spec.replica
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}", spare=spare)
        return sink

    return train


def _coarse(sink: Memory) -> dict[str, ProbeDone]:
    return {probe.probe_id: probe for probe in sink.of(ProbeDone) if probe.origin == "wide"}


@pytest.mark.parametrize(
    ("num_workers", "lanes", "told", "steps"), [(1, 1, 1, 7), (2, 1, 2, 7), (4, 1, 4, 7), (2, 2, 4, 14)]
)
def test_a_round_is_told_together_and_costs_a_lane_the_steps_of_one_probe(
    train: Train, num_workers: int, lanes: int, told: int, steps: int
) -> None:
    first = train(num_workers=num_workers, lanes=lanes).of(Searched)[0]

    assert len(first.probes) == told
    assert first.bill.steps_search == steps


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_steps_add_up_however_many_workers_train_alone(train: Train, num_workers: int) -> None:
    sink = train(num_workers=num_workers)

    [finished], decided = sink.of(TrialFinished), sink.of(StageDecided)
    bill = finished.bill
    assert bill.steps + bill.steps_search + bill.steps_taken_back == 900
    assert bill.steps_search == sum(stage.search_steps for stage in decided)
    assert sum(entry.num_steps for entry in finished.schedule) == bill.steps
    assert bill.steps_by_workers == {num_workers: 900}


def test_each_probe_reports_what_it_trained_and_that_it_sent_nothing(train: Train) -> None:
    sink = train(num_workers=3)

    coarse = _coarse(sink).values()
    assert [probe.num_steps for probe in coarse] == [7] * 5
    assert {probe.bytes_sent for probe in coarse} == {0}
    told = sink.of(StageDecided)[0].decision.probes
    assert [each.candidate.id for each in told if each.candidate.alone] == list(_coarse(sink))


def test_what_the_workers_save_is_left_for_finalists(train: Train) -> None:
    def num_finalists(num_workers: int) -> int:
        sink = train(num_workers=num_workers, budget={"steps": 300}, controller={"kind": "bo", "wide_probes": 3})
        return len({probe.probe_id for probe in sink.of(ProbeDone) if probe.origin == "finalist"})

    assert num_finalists(1) < num_finalists(4)


def test_where_data_differ_all_workers_train_each_candidate(train: Train) -> None:
    sink = train(partition={"kind": "by_label"})

    assert len(sink.of(Searched)[0].probes) == 1
    assert all(probe.bytes_sent > 0 for probe in _coarse(sink).values())


def _candidate(number: int, *, alone: bool) -> Candidate:
    values, allowance = Values(learning_rate=0.1), Allowance(steps=6)
    return Candidate(id=f"0-{number}", stage=0, values=values, allowance=allowance, origin="wide", alone=alone)


def test_a_lane_is_never_given_a_candidate_for_one_worker_and_one_for_all() -> None:
    order = [True, True, True, False, True, False, False, True]
    asked = iter([_candidate(number, alone=alone) for number, alone in enumerate(order)])

    given = list(iter(for_a_lane(lambda: next(asked, None), 2), ()))

    assert [len(candidates) for candidates in given] == [2, 1, 1, 1, 1, 1, 1]
    assert [each.alone for candidates in given for each in candidates] == order
