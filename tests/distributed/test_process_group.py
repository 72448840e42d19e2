"""A group of real processes as one object."""

import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import OptimizerConfig, ScheduleFreeSgdConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.cocod_sgd.spec import CocodSgdConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.segment import Segment, SegmentResult
from trainers.spec.link import EmulateLink
from trainers.spec.workloads import DigitsMlp
from trainers.traffic import collectives, cost
from trainers.traffic.payload_layout import PayloadLayout
from trainers.training.call_results import WorkerFailed, WorkerLost
from trainers.training.group import Group
from trainers.training.process_group import ProcessGroup
from trainers.workload import WorkloadError

D = 64 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10
SGD = SgdConfig(learning_rate=0.1, warmup_steps=3)
SCHEDULE_FREE = ScheduleFreeSgdConfig(learning_rate=0.5, warmup_steps=3)
DENSE, SPARSE = NoneConfig(), ThresholdConfig(density=(0.005, 1.0))


def config(optimizer: OptimizerConfig, exchange: NoneConfig | ThresholdConfig, **changes: object) -> ReplicaConfig:
    return ReplicaConfig(workload=DigitsMlp(), optimizer=optimizer, exchange=exchange, **changes)


@pytest.fixture(scope="module")
def dense_sgd() -> Iterator[Group]:
    with ProcessGroup(config(SGD, DENSE), 2, device="cpu") as group:
        group.snapshot("start")
        yield group


@pytest.fixture(scope="module")
def sparse_sgd() -> Iterator[Group]:
    with ProcessGroup(config(SGD, SPARSE), 2, device="cpu") as group:
        group.snapshot("start")
        yield group


@pytest.fixture(scope="module")
def dense_schedule_free() -> Iterator[Group]:
    with ProcessGroup(config(SCHEDULE_FREE, DENSE, workers_per_node="auto"), 2, device="cpu") as group:
        group.snapshot("start")
        yield group


@pytest.fixture(scope="module")
def sparse_schedule_free() -> Iterator[Group]:
    with ProcessGroup(config(SCHEDULE_FREE, SPARSE), 2, device="cpu") as group:
        group.snapshot("start")
        yield group


@pytest.fixture(params=["dense_sgd", "sparse_sgd", "dense_schedule_free", "sparse_schedule_free"])
def group(request: pytest.FixtureRequest) -> Group:
    group: Group = request.getfixturevalue(request.param)
    group.restore("start")
    return group


def train(group: Group, num_steps: int, *, level: float = 0.02) -> SegmentResult:
    learning_rate = group.config.optimizer.learning_rate
    return group.run(Segment(num_steps=num_steps, learning_rate=learning_rate, level=level))


def test_every_restore_leads_to_the_same_losses(group: Group):
    train(group, 5)
    group.snapshot("stage")
    expected = train(group, 8)

    runs = []
    for _ in range(2):
        train(group, 3, level=0.1)
        group.restore("stage")
        runs.append(train(group, 8))

    assert [run.losses for run in runs] == [expected.losses] * 2
    assert [run.bytes_sent for run in runs] == [expected.bytes_sent] * 2


def test_a_fresh_group_continues_a_checkpoint_with_equal_bits(sparse_schedule_free: Group, tmp_path: Path):
    sparse_schedule_free.restore("start")
    train(sparse_schedule_free, 6)
    sparse_schedule_free.save(f"{tmp_path}/checkpoint")
    expected, evaluation = train(sparse_schedule_free, 8), sparse_schedule_free.evaluate()

    with ProcessGroup(sparse_schedule_free.config, 2, device="cpu") as fresh:
        fresh.load(f"{tmp_path}/checkpoint")
        continued = train(fresh, 8)
        evaluated = fresh.evaluate()

    assert (continued.first_step, continued.losses) == (6, expected.losses)
    assert evaluated == evaluation


def test_density_one_trains_like_the_dense_exchange_bit_for_bit(dense_sgd: Group, sparse_sgd: Group):
    for group in (dense_sgd, sparse_sgd):
        group.restore("start")

    assert train(sparse_sgd, 15, level=1.0).losses == train(dense_sgd, 15).losses


def test_a_dense_step_sends_what_was_predicted(dense_sgd: Group):
    result = train(dense_sgd, 4)

    totals = [sum(rank.values()) for rank in result.bytes_sent]

    assert totals == [4 * collectives.dense_step(D, 2).bytes] * 2 == [result.bytes_dense] * 2


def test_workers_of_one_machine_are_found_to_share_it_and_send_nothing_beyond(dense_schedule_free: Group):
    result, evaluation = train(dense_schedule_free, 4), dense_schedule_free.evaluate()

    assert dense_schedule_free.nodes == ((0, 1),)
    assert [sum(rank.values()) for rank in result.bytes_sent + evaluation.bytes_sent] == [0] * 4
    within = cost.within_node([(D,)], num_workers=2, exchange=DENSE).bytes
    assert [sum(rank.values()) for rank in result.bytes_within] == [4 * within] * 2


def test_a_sparse_segment_is_billed_for_entries_padding_and_control(sparse_sgd: Group):
    sparse_sgd.restore("start")
    train(sparse_sgd, 20)

    result = train(sparse_sgd, 10)

    entry_bytes = 2 + 2  # an index in its block, and a value, of 16 bits each
    fixed = PayloadLayout(D, 0, "float16").num_bytes  # the values' unit, and the entries in each block
    entries = [(rank["gradient"] / 10 - fixed) / entry_bytes for rank in result.bytes_sent]
    assert result.density == pytest.approx(statistics.fmean(entries) / D)
    assert all(rank["control"] >= 10 * collectives.HEADER_BYTES for rank in result.bytes_sent)  # and calibrations
    assert all(rank["padding"] % entry_bytes == 0 for rank in result.bytes_sent)
    assert sum(result.bytes_sent[0].values()) < 0.2 * result.bytes_dense


@pytest.mark.parametrize("density", [0.005, 0.05])
def test_measured_density_stays_within_twice_the_plan(sparse_schedule_free: Group, density: float):
    sparse_schedule_free.restore("start")
    train(sparse_schedule_free, 15, level=density)

    measured = train(sparse_schedule_free, 20, level=density).density

    assert measured is not None
    assert density / 2 <= measured <= density * 2


def test_an_emulated_link_is_felt_in_real_time():
    link = EmulateLink(mbps=1000, latency_ms=2)
    with ProcessGroup(config(SGD, DENSE, link=link), 2, device="cpu") as group:
        seconds = train(group, 10).step_seconds

    assert min(seconds) >= collectives.dense_step(D, 2).seconds(link) > 0.013


def test_a_worker_killed_while_idle_is_named():
    with ProcessGroup(config(SGD, DENSE), 1, device="cpu") as group:
        os.kill(group.pids[0], signal.SIGKILL)

        with pytest.raises(WorkerLost, match=r"worker 0 is lost: .*exit code -9"):
            train(group, 5)


def test_a_silent_worker_is_given_up_after_the_timeout():
    with ProcessGroup(config(SGD, DENSE), 1, device="cpu") as group:
        os.kill(group.pids[0], signal.SIGSTOP)

        with pytest.raises(WorkerLost, match=r"worker 0 is lost: no answer to `snapshot` within 0.5"):
            group.call("snapshot", "stage", timeout_s=0.5)


def test_the_time_that_a_start_takes_has_a_name_of_its_own(busy_machine: str):
    slow = config(SGD, DENSE).model_copy(update={"start_timeout_s": 0.001})

    with pytest.raises(WorkerLost, match=r"no answer to `build` within .*`workers\.start_timeout_s`") as lost:
        ProcessGroup(slow, 1, device="cpu")

    assert str(lost.value).endswith(busy_machine)


def test_a_failure_carries_its_traceback_and_ends_no_worker(sparse_sgd: Group):
    with pytest.raises(WorkerFailed, match=r"(?s)worker 0 failed: Traceback.*`level` must be .*, got 7"):
        train(sparse_sgd, 5, level=7.0)

    assert _reconnected(sparse_sgd).losses == _reconnected(sparse_sgd).losses


def test_ranks_that_lose_touch_without_a_death_only_need_to_reconnect(sparse_sgd: Group):
    with pytest.raises(WorkerLost, match=r"the workers have lost touch with each other") as lost:
        sparse_sgd.call("connect", "nowhere://")

    assert lost.value.ranks == ()
    assert _reconnected(sparse_sgd).losses == _reconnected(sparse_sgd).losses


def _reconnected(group: Group) -> SegmentResult:
    assert isinstance(group, ProcessGroup)
    group.replace([])
    group.restore("start")
    return train(group, 5)


def test_a_replica_that_cannot_be_built_ends_the_group():
    too_large = config(SGD, DENSE).model_copy(update={"accumulate": 1000})

    with pytest.raises(WorkloadError, match="`batch_size` 32 x `accumulate` 1000"):
        ProcessGroup(too_large, 1, device="cpu")


PARENT = """
import sys
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.spec.link import EmulateLink
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import DigitsMlp
from trainers.training.process_group import ProcessGroup
from trainers.segment import Segment

if __name__ == "__main__":
    config = ReplicaConfig(
        workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig(), link=EmulateLink(mbps=1000, latency_ms=50)
    )
    group = ProcessGroup(config, 2, device="cpu")
    print(*group.pids, flush=True)
    group.run(Segment(num_steps=1000, learning_rate=0.1))
"""


def test_workers_do_not_outlive_the_process_that_made_them(tmp_path: Path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ends = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()

    gone = []
    while len(gone) < 2 and (ready := wait([end for end in ends if end not in gone], timeout=PATIENCE_S)):
        gone += ready

    assert sorted(gone) == sorted(ends)


@pytest.mark.parametrize("exchange", [DENSE, SPARSE])
def test_a_steps_time_is_split_into_what_it_computed_and_what_it_waited_for(exchange):
    link = EmulateLink(mbps=20, latency_ms=1)
    with ProcessGroup(config(SGD, exchange, link=link), 2, device="cpu") as group:
        result = group.run(Segment(num_steps=4, learning_rate=0.1, level=0.01 if exchange is SPARSE else None))

    times, steps_s = result.times, sum(result.step_seconds)
    traffic_s = 8 * max(sum(rank.values()) for rank in result.bytes_sent) / (link.mbps * 1e6)
    assert times is not None
    assert min(times.compute, times.exposed, times.compress, times.wire) > 0
    assert times.compute + times.exposed <= steps_s + 1e-6  # which is the slowest rank's, these are means
    assert traffic_s <= times.wire <= steps_s  # the pacer holds collectives back for as long as that
    assert times.exposed <= 1.05 * (times.wire + times.compress) + 0.05  # one waits for nothing else, but wakes up late
    assert len(result.waits) == 4 and min(result.waits) > 0
    assert sum(result.waits) == pytest.approx(times.exposed)


@pytest.mark.parametrize("sync", [LocalSgdConfig(period=4), CocodSgdConfig(period=4)])
def test_the_time_of_averages_is_waited_for_by_all_steps_of_a_round_alike_however_they_are_cut(sync):
    with ProcessGroup(config(SGD, DENSE, sync=sync, link=EmulateLink(mbps=20)), 2, device="cpu") as group:
        results = [group.run(Segment(num_steps=num_steps, learning_rate=0.1)) for num_steps in (8, 2, 1, 5)]
    first, *others = results

    average_s = 8 * first.bytes_sent[0]["parameters"] / 2 / 20e6
    assert first.times is not None
    assert first.times.exposed >= average_s / 2  # a step beside it hides less than a half
    assert all(math.isnan(wait) for wait in first.waits[:3])
    assert {*first.waits[3:7], first.waits[7]} == {first.waits[3], first.waits[7]}
    waits = [wait for each in others for wait in each.waits]
    assert waits[:3] == [first.waits[7]] * 3 and min(waits) > average_s / 4 / 4
