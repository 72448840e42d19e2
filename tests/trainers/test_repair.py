"""Repair with ranks that compute arithmetic instead of training, so that every path takes milliseconds."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp
from trainers.training.call_results import Built, Outcome, Unfit, WorkerFailed, WorkerLost
from trainers.training.elastic import ElasticGroup
from trainers.training.group import Group, WorkerGroup
from trainers.training.repair import MAX_REPAIRS, RepairingGroup
from trainers.workload import WorkloadError

Losses = dict[int, tuple[int, ...]]  # by number of the call, the first is 0: the ranks that do not survive it


class SummingRank:
    """Its state is the rates it was trained with. A call that is lost leaves a wrong one behind."""

    def __init__(self, storage: dict[str, list[float]]) -> None:
        self.storage = storage
        self.state: list[float] = []
        self.slots: dict[str, list[float]] = {}
        self.unreported = 0

    def answer(self, method: str, args: Sequence[Any]) -> Any:
        match method:
            case "run":
                self.state.append(args[0]["learning_rate"])
                return self._segment_result()
            case "snapshot":
                self.slots[args[0]] = list(self.state)
            case "restore":
                self.state = list(self.slots[args[0]])
            case "forget":
                self.slots.pop(args[0], None)
            case "save":
                self.storage[args[0]] = list(self.state)
                return []
            case "load":
                self.state = list(self.storage[args[0]])
            case "reset":
                self.state = []
            case "take_bytes":
                taken, self.unreported = self.unreported, 0
                return {"gradient": taken}

    def _segment_result(self) -> dict[str, Any]:
        taken, self.unreported = self.unreported, 0
        return {
            "first_step": len(self.state) - 1,
            "losses": [sum(self.state)],
            "step_seconds": [0.1],
            "bytes_sent": [{"gradient": 100 + taken}],
            "bytes_dense": 1000,
        }

    def spoil(self, method: str, args: Sequence[Any]) -> None:
        """Do half of a call."""
        if method == "snapshot":
            self.slots[args[0]] = list(self.state)
        elif method != "take_bytes":
            self.state = [*self.state, 777.0]
            self.unreported += 10


class SummingGroup(WorkerGroup):
    """Loses workers in the calls that `losses` names; those in repairs count."""

    def __init__(self, losses: Losses, num_workers: int = 2) -> None:
        self.config = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig())
        self.num_workers, self.backend, self.device, self.shapes = num_workers, "gloo", "cpu", [(1,)]
        self.nodes = tuple((rank,) for rank in range(num_workers))
        self.losses, self.num_calls = losses, 0
        self.storage: dict[str, list[float]] = {}
        self.replaced: list[tuple[int, ...]] = []
        self.ranks = [SummingRank(self.storage) for _ in range(num_workers)]

    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        lost = self.losses.get(self.num_calls)
        self.num_calls += 1
        if lost is not None:
            for rank in self.ranks:
                rank.spoil(method, args)
            raise WorkerLost(lost, "exit code -9")
        return [rank.answer(method, args) for rank in self.ranks]

    def replace(self, ranks: Collection[int]) -> None:
        self.replaced.append(tuple(ranks))
        for rank in ranks:
            self.ranks[rank] = SummingRank(self.storage)

    def close(self) -> None:
        raise AssertionError("closing is the caller's")

    def start(self, rank: int) -> None:
        raise AssertionError

    def _adopt(self, other: WorkerGroup, first: int) -> None:
        raise AssertionError

    def ask(self, rank: int, method: str, args: Sequence[Any]) -> None:
        raise AssertionError

    def hear(self, ranks: Collection[int], timeout_s: float) -> dict[int, Outcome]:
        raise AssertionError

    def kill(self, rank: int) -> None:
        raise AssertionError

    def _rendezvous(self, host: int) -> str:
        raise AssertionError


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Hypothesis tries hundreds of losses, and each is logged."""
    logging.getLogger("wiretune.repair").setLevel(logging.ERROR)
    yield
    logging.getLogger("wiretune.repair").setLevel(logging.NOTSET)


def train(group: Group, acts: Sequence[tuple[str, str]], url: str) -> list[Any]:
    """Do the acts, each a method and the name of a slot or checkpoint; return every segment's results."""
    results, slots, checkpoints = [], set(), {}
    for number, (method, name) in enumerate(acts):
        match method:
            case "run":
                result = group.run(Segment(num_steps=1, learning_rate=number + 1.0))
                results.append((result.first_step, result.losses, result.bytes_sent))
            case "snapshot":
                group.snapshot(name)
                slots.add(name)
            case "restore" if name in slots:
                group.restore(name)
            case "save":
                checkpoints[name] = f"{url}/{number}"
                group.save(checkpoints[name])
            case "load" if name in checkpoints:
                group.load(checkpoints[name])
    return results


ACTS = st.tuples(st.sampled_from(["run", "run", "snapshot", "restore", "save", "load"]), st.sampled_from(["a", "b"]))


@given(
    acts=st.lists(ACTS, max_size=14),
    losses=st.dictionaries(st.integers(0, 40), st.sampled_from([(), (0,), (1,)]), max_size=MAX_REPAIRS),
)
def test_a_run_with_losses_anywhere_is_the_undisturbed_one(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, str]], losses: Losses
):
    url = f"file://{tmp_path_factory.getbasetemp()}"
    undisturbed, disturbed = SummingGroup({}), SummingGroup(losses)

    expected = train(undisturbed, acts, url)
    results = train(RepairingGroup(disturbed), acts, url)

    assert results == expected
    assert [rank.state for rank in disturbed.ranks] == [rank.state for rank in undisturbed.ranks]
    assert [rank.slots for rank in disturbed.ranks] == [rank.slots for rank in undisturbed.ranks]


RUN = Segment(num_steps=1, learning_rate=1.0)


@pytest.mark.parametrize("outliving", [RepairingGroup, lambda group: ElasticGroup(group, least=1)], ids=["", "min"])
def test_a_group_that_outlives_its_workers_says_what_they_have_built(outliving: Callable[[WorkerGroup], Group]):
    workers = SummingGroup({})
    workers.built = Built(fingerprint="a net", metrics={"accuracy": "max"}, has_batch_norm=True)

    assert outliving(workers).built == workers.built


def test_only_the_lost_ranks_are_replaced():
    inner = SummingGroup({1: (2, 0), 6: ()}, num_workers=3)
    group = RepairingGroup(inner)

    for _ in range(12):
        group.run(RUN)

    assert inner.replaced == [(2, 0), ()]


def test_slots_are_given_up_before_a_second_state_is_built_and_filled_again():
    inner = SummingGroup({4: (1,)})
    group, kept = RepairingGroup(inner), []
    group.run(RUN)
    group.snapshot("best")
    group.run(RUN)
    group.snapshot("stage")
    answer = SummingRank.answer

    def watched(rank: SummingRank, method: str, args: Sequence[Any]) -> Any:
        if method == "reset":
            kept.append({*rank.slots})
        return answer(rank, method, args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SummingRank, "answer", watched)
        group.run(RUN)

    assert kept == [set(), set()]
    assert [rank.slots for rank in inner.ranks] == [{"best": [1.0], "stage": [1.0, 1.0]}] * 2


def test_losses_in_a_row_are_given_up():
    inner = SummingGroup(dict.fromkeys(range(100), (1,)))

    with pytest.raises(WorkerLost):
        RepairingGroup(inner).run(RUN)

    assert len(inner.replaced) == MAX_REPAIRS


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_group_without_survivors_is_not_repaired(num_workers: int):
    inner = SummingGroup({0: tuple(range(num_workers))}, num_workers)

    with pytest.raises(WorkerLost):
        RepairingGroup(inner).run(RUN)

    assert inner.replaced == []


def test_a_failure_is_not_repaired(monkeypatch: pytest.MonkeyPatch):
    inner = SummingGroup({})
    monkeypatch.setattr(inner, "call", _raise(WorkerFailed(0, "Traceback ...")))

    with pytest.raises(WorkerFailed):
        RepairingGroup(inner).run(RUN)

    assert inner.replaced == []


@pytest.mark.parametrize("error", [WorkloadError("this machine lacks data"), WorkerFailed(1, "no file `x`")])
def test_a_machine_that_is_not_fit_for_a_lost_worker_is_told_from_a_job_that_cannot_be_trained(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    inner = SummingGroup({0: (1,)})
    monkeypatch.setattr(inner, "replace", _raise(error))

    with pytest.raises(Unfit, match=str(error)):
        RepairingGroup(inner).run(RUN)


def test_code_that_fails_on_the_way_back_does_so_on_any_machine(monkeypatch: pytest.MonkeyPatch):
    inner = SummingGroup({1: (1,)})
    group = RepairingGroup(inner)
    group.run(RUN)
    replace = inner.replace

    def replace_and_fail(ranks: Collection[int]) -> None:
        replace(ranks)
        monkeypatch.setattr(inner, "call", _raise(WorkerFailed(0, "Traceback ...")))

    monkeypatch.setattr(inner, "replace", replace_and_fail)

    with pytest.raises(WorkerFailed):
        group.run(RUN)


def _raise(error: Exception) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        raise error

    return call


def test_a_checkpoint_ends_the_trail(tmp_path: Path):
    def calls_of_a_repair(num_runs: int) -> int:
        inner = SummingGroup({})
        group = RepairingGroup(inner)
        for _ in range(num_runs):
            group.run(RUN)
        group.save(f"file://{tmp_path}/{num_runs}")
        before = inner.num_calls
        inner.losses = {before: (1,)}
        group.run(RUN)
        return inner.num_calls - before

    assert calls_of_a_repair(50) == calls_of_a_repair(1) == len(["lost", "take_bytes", "load", "repeated"])


def test_a_checkpoint_that_a_repair_would_need_is_not_overwritten(tmp_path: Path):
    group = RepairingGroup(SummingGroup({}))
    group.save(f"file://{tmp_path}/first")
    group.run(RUN)

    with pytest.raises(ValueError, match=r"`url` must be a new folder, got .*first"):
        group.save(f"file://{tmp_path}/first")


def test_recovery_counts_repairs_and_the_bytes_of_lost_and_replayed_calls():
    inner = SummingGroup({3: (1,)})
    group = RepairingGroup(inner)

    results = [group.run(RUN) for _ in range(5)]

    assert (group.recovery.repairs, group.recovery.bytes) == (1, 3 * 100 + 10)
    assert group.recovery.seconds > 0
    assert {sum(rank.values()) for result in results for rank in result.bytes_sent} == {100}
