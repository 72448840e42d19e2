"""Real workers that leave and come back between two averages: the others go on, and nothing is trained twice."""

import math
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file

from tests.support.killed_workers import KilledInAverage
from tests.support.patience import crowd
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.methods.optimizer.spec import AdamWConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.diloco.spec import DiLoCoConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.streaming_diloco.spec import StreamingDiLoCoConfig
from trainers.segment import Segment, SegmentResult
from trainers.spec.workloads import DigitsMlp
from trainers.training import elastic
from trainers.training.call_results import Built, Outcome, Unfit, WorkerLost
from trainers.training.elastic import (
    AS_FAST,
    HUNG,
    KNOWN,
    LEAST_GRACE,
    LEAST_PACE,
    MAX_LOSSES,
    ElasticGroup,
    deadline_s,
)
from trainers.training.group import Group, Recovery, WorkerGroup
from trainers.training.process_group import ProcessGroup
from trainers.workload import WorkloadError

CONFIG = ReplicaConfig(
    workload=DigitsMlp(batch_size=16),
    optimizer=AdamWConfig(learning_rate=0.003),
    exchange=SparseLoCoConfig(),
    sync=DiLoCoConfig(period=4, outer_momentum=0.5),
    collective_timeout_s=20.0 * crowd(),
)
#: Two fragments, of which one is averaged every two steps.
STREAMED = CONFIG.model_copy(
    update={"sync": StreamingDiLoCoConfig(period=4, fragments=2, overlap_steps=0, outer_momentum=0.5)}
)
#: Neither ends where the workers meet.
SEGMENTS = [
    Segment(num_steps=10, learning_rate=0.003, final_learning_rate=0.001, level=1 / 64),
    Segment(num_steps=21, learning_rate=0.001, level=1 / 64),
]
#: Of a result, what no clock and no other use of the memory decides.
EXACT = SegmentResult.model_fields.keys() - {"step_seconds", "waits", "times", "memory_bytes"}


class Run:
    """Three workers, of which two are enough."""

    def __init__(self, workers: ProcessGroup) -> None:
        self.workers, self.group = workers, ElasticGroup(workers, least=2)

    def train(self, num_steps: int) -> SegmentResult:
        return self.group.run(Segment(num_steps=num_steps, learning_rate=0.003, level=1 / 64))

    def train_until_all_are_back(self) -> None:
        while _absent(self.group):
            self.train(4)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.workers.pids[rank], number)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine nobody is late unless a test says so."""
    monkeypatch.setattr(elastic, "LEAST_GRACE_S", 60.0)


@pytest.fixture(scope="module")
def workers() -> Iterator[Run]:
    run = Run(ProcessGroup(CONFIG, 3, device="cpu"))
    with run.group:
        yield run


@pytest.fixture
def run(workers: Run) -> Run:
    """All three, before their first step."""
    workers.group.call("reset")
    workers.group.recovery = Recovery()
    return workers


def _absent(group: ElasticGroup) -> list[int]:
    return sorted(group._away)


def _anchors(group: Group, folder: Path) -> list[torch.Tensor]:
    group.save(f"file://{folder}")
    return [load_file(path)["sync.anchor"] for path in sorted(folder.glob("rank-*"))]


def _results(group: Group) -> list[Any]:
    results = [group.run(segment) for segment in SEGMENTS]
    for each in results:
        assert each.times is not None and len(each.waits) == len(each.losses)
    assert results[-1].waits[-1] > 0
    return [[getattr(each, name) for name in sorted(EXACT)] for each in results] + [group.evaluate()]


@pytest.mark.parametrize(
    "config",
    [CONFIG, CONFIG.model_copy(update={"sync": LocalSgdConfig(period=3), "exchange": NoneConfig()}), STREAMED],
    ids=["diloco by sparse_loco", "local_sgd", "streaming_diloco"],
)
def test_workers_that_all_stay_train_as_those_that_may_not_leave_bit_for_bit(config: ReplicaConfig):
    with ProcessGroup(config, 3, device="cpu") as workers:
        expected = _results(workers)
        workers.call("reset")

        assert _results(ElasticGroup(workers, least=2)) == expected


def test_workers_go_on_without_a_killed_one_and_no_survivor_restarts_or_repeats_a_step(run: Run):
    before = [*run.workers.pids]

    run.signal(1, signal.SIGKILL)
    result = run.train(4)

    assert _absent(run.group) == [1] and run.group.recovery.absences == {1: 1}
    assert (result.first_step, len(result.losses), result.steps_by_workers) == (0, 4, {2: 4})
    assert result.bytes_sent[1] == {} and result.bytes_sent[0]["parameters"] > 0
    assert [run.workers.pids[rank] for rank in (0, 2)] == [before[0], before[2]]


def test_a_worker_that_comes_back_has_the_others_anchor_and_trains_on_with_them(run: Run, tmp_path: Path):
    run.signal(2, signal.SIGKILL)
    run.train(8)

    run.train_until_all_are_back()
    step = run.train(4).first_step + 4

    first, *others = _anchors(run.group, tmp_path / "all")
    assert all(torch.equal(first, each) for each in others) and len(others) == 2
    assert run.train(4).first_step == step


def test_a_worker_that_is_ready_within_a_round_waits_for_the_next_one_also_after_a_restore(run: Run):
    run.signal(1, signal.SIGKILL)
    run.train(2)
    assert wait([run.workers._workers[1].connection], 60 * crowd())  # the new one is built

    run.group.snapshot("within")
    run.train(1)
    run.group.restore("within")
    run.train(2)
    assert _absent(run.group) == [1]
    run.train(1)

    assert _absent(run.group) == []


def test_a_worker_lost_within_a_round_is_back_for_a_checkpoint_there(run: Run, tmp_path: Path):
    run.signal(1, signal.SIGKILL)
    run.train(2)

    first, *others = _anchors(run.group, tmp_path)

    assert _absent(run.group) == []
    assert all(torch.equal(first, each) for each in others) and len(others) == 2


def test_a_slot_that_the_others_made_earlier_is_there_for_the_one_that_comes_back(run: Run):
    run.train(4)
    run.group.snapshot("stage")
    expected = run.train(6).losses
    run.signal(0, signal.SIGKILL)
    run.train(4)
    run.train_until_all_are_back()

    run.group.restore("stage")
    again = run.train(6).losses

    # worker 0 has Adam's moments of worker 1 there: the first step's loss is that of equal parameters
    assert again[0] == expected[0]


def test_a_worker_killed_in_a_meeting_leaves_the_others_where_one_without_it_does(run: Run, tmp_path: Path):
    in_average = Run(KilledInAverage(CONFIG, 3, device="cpu"))

    run.signal(1, signal.SIGKILL)

    with in_average.group:
        assert run.train(4).losses[3] == in_average.train(4).losses[3]
        assert run.group.recovery.absences == in_average.group.recovery.absences == {1: 1}
        anchors = [*_anchors(run.group, tmp_path / "early"), *_anchors(in_average.group, tmp_path / "in average")]
    assert all(torch.equal(anchors[0], each) for each in anchors)


@pytest.fixture(scope="module")
def streamed() -> Iterator[Run]:
    run = Run(ProcessGroup(STREAMED, 3, device="cpu"))
    with run.group:
        yield run


def _shards(group: Group, folder: Path, name: str) -> list[list[torch.Tensor]]:
    """Return what each rank has of both fragments as `name`."""
    group.save(f"file://{folder}")
    shards = [load_file(path) for path in sorted(folder.glob("rank-*"))]
    return [[shard[f"sync.{fragment}.{name}"] for fragment in range(2)] for shard in shards]


def test_a_worker_comes_back_between_two_fragments_with_their_anchors_and_velocities_and_nothing_unsent(
    streamed: Run, tmp_path: Path
):
    streamed.train(8)
    before = [*streamed.workers.pids]
    streamed.signal(2, signal.SIGKILL)
    step = streamed.train(2).first_step  # a fragment's average
    assert _absent(streamed.group) == [2]
    while _absent(streamed.group):
        step = streamed.train(2).first_step

    for name in ("anchor", "velocity"):
        first, *others = _shards(streamed.group, tmp_path / name, name)
        assert all(torch.equal(*pair) for each in others for pair in zip(first, each, strict=True))
    unsent = _shards(streamed.group, tmp_path / "unsent", "exchange.residual")
    # the one that is back has taken part in one average since, and does not hold what its donor has not sent
    assert [[bool(each.any()) for each in rank].count(True) for rank in unsent] == [2, 2, 1]
    assert streamed.workers.pids[:2] == before[:2] and streamed.group.recovery.repairs == 1
    assert streamed.train(2).first_step == step + 2


def test_a_worker_killed_in_a_fragments_average_leaves_the_others_where_one_without_it_does(
    streamed: Run, tmp_path: Path
):
    streamed.group.call("reset")
    streamed.group.recovery = Recovery()
    in_average = Run(KilledInAverage(STREAMED, 3, device="cpu"))

    streamed.signal(1, signal.SIGKILL)

    with in_average.group:
        assert streamed.train(2).losses[1] == in_average.train(2).losses[1]
        assert streamed.group.recovery.absences == in_average.group.recovery.absences == {1: 1}
        early = _shards(streamed.group, tmp_path / "early", "anchor")
        late = _shards(in_average.group, tmp_path / "in average", "anchor")
    assert all(torch.equal(*pair) for rank in (*early, *late) for pair in zip(early[0], rank, strict=True))


@pytest.mark.parametrize("num_steps", [1, 4], ids=["a part of a round", "a round"])
def test_a_stopped_worker_is_late_and_comes_back_without_a_restart(
    run: Run, num_steps: int, monkeypatch: pytest.MonkeyPatch
):
    run.train(12)
    monkeypatch.setattr(elastic, "LEAST_GRACE_S", 0.5)
    before = [*run.workers.pids]

    run.signal(1, signal.SIGSTOP)
    run.train(num_steps)
    assert 1 in _absent(run.group)
    run.signal(1, signal.SIGCONT)
    run.train_until_all_are_back()

    assert run.workers.pids == before and run.group.recovery.repairs == 0


def test_a_worker_without_which_too_few_would_average_is_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch):
    group = ElasticGroup(run.workers, least=3)
    group.run(SEGMENTS[1].model_copy(update={"num_steps": 12}))
    monkeypatch.setattr(elastic, "LEAST_GRACE_S", 0.1)
    timer = threading.Timer(1.0, run.signal, (1, signal.SIGCONT))

    run.signal(1, signal.SIGSTOP)
    timer.start()
    group.run(SEGMENTS[1].model_copy(update={"num_steps": 4}))
    timer.join()

    assert group.recovery.absences == {}


def test_the_run_waits_where_too_few_workers_are_left_and_goes_on_when_one_is_back(run: Run):
    for rank in (1, 2):
        run.signal(rank, signal.SIGKILL)

    run.train(4)  # a round that has begun is ended by whoever is left
    run.train(4)

    assert len(_absent(run.group)) <= 1
    assert run.group.recovery.seconds > 0


class KilledGiving(ProcessGroup):
    """The worker that gives its state to another dies of it."""

    def ask(self, rank: int, method: str, args: Sequence[Any]) -> None:
        super().ask(rank, method, args)
        if method == "give_state":
            os.kill(self.pids[rank], signal.SIGKILL)


def test_the_last_state_lost_on_its_way_is_the_callers():
    workers = KilledGiving(CONFIG, 2, device="cpu")
    with ElasticGroup(workers, least=2) as group, pytest.raises(WorkerLost):
        os.kill(workers.pids[1], signal.SIGKILL)
        group.run(SEGMENTS[1])


#: Of a step that no average follows.
STEP = SegmentResult(
    first_step=0, losses=(1.0,), step_seconds=(1.0,), bytes_sent=[{}], bytes_within=[{}], bytes_dense=0
).model_dump()
ONE_STEP = SEGMENTS[0].model_copy(update={"num_steps": 1})


class Answering(WorkerGroup):
    """Workers that answer at once; worker 1 dies in its first evaluation, and its successor is on another machine."""

    def __init__(self) -> None:
        self.config, self.num_workers, self.backend, self.device = CONFIG, 2, "gloo", "cpu"
        self.shapes, self.nodes = ((1,),), ((0,), (1,))
        self.introduced: list[int] = []
        self.num_killed = 0
        self._asked: dict[int, str] = {}
        self._is_lost = False

    def ask(self, rank: int, method: str, args: Sequence[Any]) -> None:
        self._asked[rank] = method

    def hear(self, ranks: Collection[int], timeout_s: float) -> dict[int, Outcome]:
        return {rank: self._outcome(rank, self._asked[rank]) for rank in ranks}

    def _outcome(self, rank: int, method: str) -> Outcome:
        if (rank, method, self._is_lost) == (1, "evaluate", False):
            return Outcome("death", "killed")
        connected = ("gloo", "cpu", self.shapes, self.nodes)
        answers = {"build": Built()._asdict(), "connect": connected, "run_until_average": STEP}
        return Outcome("answer", answers.get(method))

    def kill(self, rank: int) -> None:
        self._is_lost = True
        self.num_killed += 1

    def await_places(self, ranks: Collection[int]) -> None:
        self.introduced += ranks

    def start(self, rank: int) -> None: ...

    def close(self) -> None: ...

    def _adopt(self, other: WorkerGroup, first: int) -> None: ...

    def _rendezvous(self, host: int) -> str:
        return "tcp://nowhere"


def test_a_worker_that_comes_back_says_which_machine_it_is_on_also_where_nobody_has_waited_for_it():
    workers = Answering()

    ElasticGroup(workers, least=1).call("evaluate")

    assert workers.introduced == [1]


def test_a_machine_that_is_not_fit_for_a_lost_worker_is_told_from_a_job_that_cannot_be_trained(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(ranks: Collection[int]) -> None:
        raise WorkloadError(f"worker {ranks} lacks data")

    monkeypatch.setattr(Answering, "await_places", lambda self, ranks: refuse(ranks))

    for least in (1, 2):  # 2: the others wait for it
        with pytest.raises(Unfit, match=r"worker \[1\] lacks data"):
            ElasticGroup(Answering(), least=least).call("evaluate")


class Hanging(Answering):
    """Worker 1 ends no call of a round once it `hangs`; `waited` are the seconds that it was given after the others."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = True
        self.waited: list[float] = []

    def hear(self, ranks: Collection[int], timeout_s: float) -> dict[int, Outcome]:
        if self._asked[1] != "run_until_average" or not self.hangs:
            return super().hear(ranks, timeout_s)
        if 0 in ranks:
            return super().hear([0], timeout_s)
        self.waited.append(timeout_s)
        return {}


def test_a_hung_worker_keeps_as_many_as_are_enough_no_longer_than_an_exchange_may_take():
    workers = Hanging()
    group = ElasticGroup(workers, least=1)

    group.run(ONE_STEP)

    assert _absent(group) == [1]
    assert [0 < each <= CONFIG.collective_timeout_s for each in workers.waited] == [True]


def test_a_hung_worker_keeps_too_few_as_long_as_the_slowest_one_would_that_trains():
    workers, started = Hanging(), time.monotonic()
    group = ElasticGroup(workers, least=2)
    workers.hangs = False
    group.run(ONE_STEP)
    workers.hangs = True

    group.run(ONE_STEP)

    assert _absent(group) == [1] and group.recovery.repairs == 1
    longest_s = CONFIG.collective_timeout_s + HUNG * (time.monotonic() - started)
    assert [0 < each <= longest_s for each in workers.waited] == [True]


def test_a_worker_without_which_too_few_would_average_has_more_time_for_its_first_steps():
    workers = Hanging()
    group = ElasticGroup(workers, least=2)

    for _ in range(2):  # and its replacement has
        group.run(ONE_STEP)

    assert group.recovery.repairs == 2
    assert all(each > CONFIG.reply_timeout_s for each in workers.waited) and len(workers.waited) == 2


def test_a_worker_that_comes_back_and_never_ends_a_round_is_not_waited_for_without_end():
    workers = Hanging()

    with pytest.raises(WorkerLost, match=r"worker 1 is lost: not back after 6 attempts .*it has not arrived"):
        ElasticGroup(workers, least=2).run(SEGMENTS[0].model_copy(update={"num_steps": 100}))

    assert len(workers.waited) == 1 + MAX_LOSSES + 1


class Failing(Answering):
    """Worker 1's successors die as they are built, `failures` of them in a row; then one is built."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures, self.num_started, self._left = failures, 0, failures

    def start(self, rank: int) -> None:
        self.num_started += 1
        assert self.num_started < 100

    def lose_again(self) -> None:
        self._is_lost, self._left = False, self.failures

    def _outcome(self, rank: int, method: str) -> Outcome:
        if method != "build" or not self._left:
            return super()._outcome(rank, method)
        self._left -= 1
        return Outcome("death", "out of memory")


def test_a_worker_that_keeps_failing_to_come_back_is_not_waited_for_without_end():
    workers = Failing(1000)

    with pytest.raises(WorkerLost, match=r"worker 1 is lost: not back after 6 attempts .*out of memory"):
        ElasticGroup(workers, least=2).call("evaluate")

    assert workers.num_started == MAX_LOSSES + 1


def test_others_train_on_while_a_worker_fails_to_come_back_and_start_it_less_often(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(elastic, "PAUSES_S", (0.0, 0.0, 3600.0))
    workers = Failing(1000)
    group = ElasticGroup(workers, least=1)

    for _ in range(10):
        group.call("evaluate")

    assert _absent(group) == [1] and workers.num_started == 2
    with pytest.raises(WorkerLost):
        group.call("save")
    assert workers.num_started == MAX_LOSSES + 1


def test_only_failures_in_a_row_count():
    workers = Failing(MAX_LOSSES)
    group = ElasticGroup(workers, least=2)

    for _ in range(3):
        workers.lose_again()
        group.call("evaluate")
        group.run(ONE_STEP)

    assert _absent(group) == [] and workers.num_started == 3 * (MAX_LOSSES + 1)


class Staggered(Failing):
    """Three workers, of which the last one answers first, and worker 2 only where it is waited for."""

    def __init__(self, failures: int) -> None:
        super().__init__(failures)
        self.num_workers, self.nodes, self.is_last_lost = 3, ((0,), (1,), (2,)), False

    def hear(self, ranks: Collection[int], timeout_s: float) -> dict[int, Outcome]:
        heard = [rank for rank in ranks if timeout_s or rank != 2]
        return super().hear(heard and [max(heard)], timeout_s)

    def _outcome(self, rank: int, method: str) -> Outcome:
        if (rank, method, self.is_last_lost) == (2, "evaluate", True):
            return Outcome("death", "killed")
        return super()._outcome(rank, method)


def test_a_worker_that_has_often_failed_is_waited_for_while_it_starts_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(elastic, "PAUSES_S", (*[0.0] * (MAX_LOSSES + 1), 3600.0))
    workers = Staggered(MAX_LOSSES + 1)
    group = ElasticGroup(workers, least=1)
    group.call("evaluate")
    workers.is_last_lost = True
    group.call("evaluate")
    assert _absent(group) == [1, 2] and workers.num_started == MAX_LOSSES + 2

    group.call("save")

    assert _absent(group) == []


class HandingOver(Answering):
    """A handover lasts an hour. Worker 1 may hang then; `waited` are the seconds that it was given after the other."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._hangs = hangs

    def hear(self, ranks: Collection[int], timeout_s: float) -> dict[int, Outcome]:
        if "take_state" not in {self._asked[rank] for rank in ranks}:
            return super().hear(ranks, timeout_s)
        if 0 not in ranks:
            self.waited.append(timeout_s)
            return {}
        return super().hear([0] if self._hangs else ranks, timeout_s) if timeout_s >= 3600 else {}


@pytest.mark.parametrize("hangs", [False, True])
def test_a_handover_may_take_longer_than_a_reply_but_a_rank_whose_peer_has_ended_it_may_not(hangs: bool):
    workers = HandingOver(hangs=hangs)
    group = ElasticGroup(workers, least=1)

    group.call("evaluate")

    assert (_absent(group), group.recovery.repairs) == (([1], 2) if hangs else ([], 1))
    assert workers.num_killed == group.recovery.repairs  # also the one that is not started again yet
    assert workers.waited == [CONFIG.reply_timeout_s] * hangs


def test_a_run_ends_while_a_lost_worker_is_not_replaced_yet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(elastic, "PAUSES_S", (3600.0,))
    run = Run(ProcessGroup(CONFIG, 3, device="cpu"))
    lost = run.workers._workers[1]
    run.signal(1, signal.SIGKILL)

    run.train(4)
    assert lost.connection.closed
    run.group.close()

    assert _absent(run.group) == [1]


def test_all_workers_lost_at_once_are_the_callers():
    run = Run(ProcessGroup(CONFIG, 3, device="cpu"))
    for rank in range(3):
        run.signal(rank, signal.SIGKILL)

    with run.group, pytest.raises(WorkerLost):
        run.train(4)


@pytest.mark.parametrize("num_steps", [12, 3, 1])
def test_slower_workers_take_fewer_steps_and_agree_with_the_others_after_each_average(
    run: Run, num_steps: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(elastic, "paces", lambda speeds: {0: 1.0, 1: 0.5, 2: 0.25})
    group = ElasticGroup(run.workers, least=2, own_pace=True)

    for _ in range(12 // num_steps):  # of the first round, four steps, nobody knows who is slower
        group.run(SEGMENTS[1].model_copy(update={"num_steps": num_steps}))

    first, *others = _anchors(group, tmp_path)
    steps = [load_file(path)["optimizer.0.weight.step"].item() for path in sorted(tmp_path.glob("rank-*"))]

    assert all(torch.equal(first, each) for each in others)
    assert steps == [12, 4 + 4, 4 + 2]


def test_workers_keep_up_with_the_fastest_of_those_that_are_there(run: Run, monkeypatch: pytest.MonkeyPatch):
    compared: list[set[int]] = []
    monkeypatch.setattr(elastic, "paces", lambda speeds: compared.append({*speeds}) or {})
    group, segment = ElasticGroup(run.workers, least=2, own_pace=True), SEGMENTS[1]
    group.run(segment.model_copy(update={"num_steps": 4}))
    run.signal(1, signal.SIGKILL)

    with monkeypatch.context() as patched:  # a fast machine would have it back by the second average
        hear = run.workers.hear
        patched.setattr(run.workers, "hear", lambda ranks, wait_s: hear(ranks, wait_s) if wait_s else {})
        group.run(segment.model_copy(update={"num_steps": 8}))

    assert _absent(group) == [1]
    assert compared == [{0, 1, 2}, {0, 2}]
    group.call("reset")  # when all are back


@given(st.dictionaries(st.integers(0, 7), st.floats(1e-3, 1e6), min_size=1))
def test_the_fastest_and_those_about_as_fast_take_all_steps_and_others_what_their_speed_allows(
    speeds: dict[int, float],
):
    shares = elastic.paces(speeds)
    fastest = max(speeds.values())

    for rank, share in shares.items():
        assert LEAST_PACE <= share <= 1
        assert share == 1 if speeds[rank] >= AS_FAST * fastest else share <= AS_FAST


@given(
    arrivals=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=6),
    num_ranks=st.integers(1, 8),
    lateness=st.lists(st.floats(-1, 100), max_size=20),
)
def test_nobody_is_late_before_most_have_arrived_and_little_is_known(
    arrivals: list[float], num_ranks: int, lateness: list[float]
):
    deadline = deadline_s(arrivals, num_ranks, lateness)

    if len(arrivals) <= num_ranks / 2 or len(lateness) < KNOWN:
        assert deadline == math.inf
    else:
        assert deadline >= sorted(arrivals)[num_ranks // 2] * (1 + LEAST_GRACE)


def test_ranks_that_are_usually_uneven_have_more_time():
    even, uneven = [0.0] * KNOWN, [-0.3, 0.0, 0.4, -0.2, 0.1, 0.3, -0.4, 0.2]

    assert deadline_s([1000.0] * 2, 3, uneven) > deadline_s([1000.0] * 2, 3, even) == 1000 * (1 + LEAST_GRACE)


def test_grace_is_a_share_of_the_whole_round_however_it_is_cut():
    even = [0.0] * KNOWN

    assert deadline_s([100.0] * 2, 3, even, done=0.1) == 100 + LEAST_GRACE * 1000
