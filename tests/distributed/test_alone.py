"""Real workers that train one candidate each: their results, the restored state, and failures of one of them."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import ScheduleFreeSgdConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment, SegmentResult
from trainers.spec.workloads import DigitsMlp
from trainers.training.call_results import WorkerFailed
from trainers.training.group import Group
from trainers.training.process_group import ProcessGroup
from trainers.training.repair import RepairingGroup

RATES = (0.02, 0.2)


def _config(**changes: Any) -> ReplicaConfig:
    given = {"workload": DigitsMlp(batch_size=16), "optimizer": SgdConfig(), "exchange": NoneConfig()}
    return ReplicaConfig(**(given | changes))


def _segments(*rates: float, num_steps: int = 6) -> list[Segment]:
    return [Segment(num_steps=num_steps, learning_rate=rate, level=0.05) for rate in rates]


def _together(group: Group) -> SegmentResult:
    [segment] = _segments(0.1)
    return group.run(segment).model_copy(update={"step_seconds": (), "waits": (), "times": None, "memory_bytes": 0})


def _alone(group: Group, *rates: float, num_steps: int = 6) -> list[tuple[float, ...]]:
    """Return the losses of each rate, and go back to where it was."""
    group.snapshot("stage")
    results = group.run_alone(_segments(*rates, num_steps=num_steps))
    group.restore("stage")
    return [result.losses for result in results]


@pytest.fixture(scope="module")
def two() -> Iterator[Group]:
    config = _config(optimizer=ScheduleFreeSgdConfig(), exchange=ThresholdConfig(density=(0.005, 1.0)))
    with ProcessGroup(config, 2, device="cpu") as group:
        group.run(_segments(0.3)[0])  # so that all memories hold something
        yield group


@pytest.fixture(scope="module")
def three() -> Iterator[Group]:
    with RepairingGroup(ProcessGroup(_config(), 3, device="cpu")) as group:
        yield group


def test_which_worker_trains_which_candidate_makes_no_difference(two: Group):
    low, high = _alone(two, *RATES)

    assert low != high
    assert _alone(two, *reversed(RATES)) == [high, low]
    assert [*_alone(two, RATES[0]), *_alone(two, RATES[1])] == [low, high]


def test_the_stage_goes_on_from_its_start_with_equal_bits(two: Group):
    two.snapshot("start")
    expected = _together(two), two.evaluate()
    two.restore("start")

    _alone(two, *RATES)

    assert (_together(two), two.evaluate()) == expected
    two.restore("start")


def test_nothing_is_sent(two: Group):
    two.snapshot("stage")
    for result in two.run_alone(_segments(*RATES)):
        assert result.bytes_sent == result.bytes_within == ({},)
    two.restore("stage")


def test_a_candidate_that_diverges_disturbs_no_other(three: Group):
    [sound] = _alone(three, 0.1, num_steps=30)

    diverged, beside, also = _alone(three, 1e6, 0.1, 0.1, num_steps=30)

    assert len(diverged) < 30
    assert beside == also == sound


def test_of_more_candidates_than_workers_the_group_says_so(three: Group):
    with pytest.raises(ValueError, match="`segments` must be at most 3, one for each rank, got 4"):
        three.run_alone(_segments(0.1, 0.1, 0.1, 0.1))


def test_a_worker_lost_while_all_train_alone_is_replaced_and_nothing_changes(three: Group):
    assert isinstance(three, RepairingGroup) and isinstance(three._group, ProcessGroup)
    expected = _alone(three, *RATES, num_steps=60)

    pids = three._group.pids
    killing = threading.Timer(0.05, os.kill, (pids[1], signal.SIGKILL))
    killing.start()
    found = [_alone(three, *RATES, num_steps=60) for _ in range(2)]
    killing.join()

    assert found == [expected, expected]
    assert three._group.pids[1] != pids[1] and three._group.pids[::2] == pids[::2]


def test_an_error_on_one_worker_is_the_groups_at_once():
    with ProcessGroup(_config(), 2, device="cpu") as group:
        fine, wrong = _segments(0.1, 0.1)
        started = time.monotonic()
        with pytest.raises(WorkerFailed, match=r"worker 1 failed: Traceback"):
            group.run_alone([fine, wrong.model_copy(update={"batch_size": -1})])

    assert time.monotonic() - started < group.config.collective_timeout_s
