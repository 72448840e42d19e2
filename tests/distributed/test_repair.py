"""Real workers, killed or stopped at seeded moments of a run: the run ends as if nothing had happened."""

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import crowd
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import ScheduleFreeSgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp
from trainers.training.call_results import WorkerFailed
from trainers.training.group import Group
from trainers.training.process_group import ProcessGroup
from trainers.training.repair import RepairingGroup

CONFIG = ReplicaConfig(
    workload=DigitsMlp(batch_size=16),
    optimizer=ScheduleFreeSgdConfig(learning_rate=0.5, warmup_steps=3),
    exchange=ThresholdConfig(density=(0.005, 1.0)),
    collective_timeout_s=3 * crowd(),
)


def _probe(rate: float, level: float) -> Callable[[Group, str], Any]:
    def act(group: Group, url: str) -> Any:
        group.restore("stage")
        result = group.run(Segment(num_steps=15, learning_rate=rate, level=level))
        return result.losses, result.alignments, result.bytes_sent

    return act


def _commit(group: Group, url: str) -> Any:
    result = group.run(Segment(num_steps=40, learning_rate=0.5, final_learning_rate=0.3, level=0.02))
    return result.first_step, result.losses, result.alignments, result.bytes_sent, result.threshold


def _export(group: Group, url: str) -> bytes:
    group.export(f"{url}/weights.safetensors")
    return Path(url.removeprefix("file://"), "weights.safetensors").read_bytes()


Act = Callable[[Group, str], Any]
STAGE: list[Act] = [
    lambda group, url: group.snapshot("stage"),
    _probe(0.5, 0.02),
    _probe(1.0, 0.2),
    lambda group, url: group.restore("stage"),
    _commit,
    lambda group, url: group.evaluate(),
    _commit,
    lambda group, url: group.save(f"{url}/checkpoint"),
    lambda group, url: group.evaluate(),
]
ACTS: list[Act] = [*STAGE, *STAGE, *STAGE, _export]


class Run:
    """The acts' results and durations on a group to which nothing happens, and the group to disturb."""

    def __init__(self, num_workers: int, folder: Path) -> None:
        self.group, self.folder = ProcessGroup(CONFIG, num_workers, device="cpu"), folder
        self.group.save(f"file://{folder}/start")
        self.expected, self.seconds = [], []
        for act in ACTS:
            started = time.monotonic()
            self.expected.append(act(self.group, f"file://{folder}/undisturbed/{len(self.expected)}"))
            self.seconds.append(time.monotonic() - started)
        self.repairing = RepairingGroup(self.group)

    def repeat(self, harm: Callable[[int], Any]) -> list[Any]:
        """Return the acts' results once more; `harm(number)` is a context for each."""
        self.repairing.load(f"file://{self.folder}/start")
        results = []
        for number, act in enumerate(ACTS):
            with harm(number):
                results.append(act(self.repairing, f"file://{self.folder}/disturbed/{number}"))
        return results


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(2, tmp_path_factory.mktemp("two"))
    with run.repairing:
        yield run


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(3, tmp_path_factory.mktemp("three"))
    with run.repairing:
        yield run


def _moments(run: Run, seed: int, num_moments: int) -> dict[int, tuple[int, float]]:
    """Return a victim and a time, in seconds from its start, for each of some acts."""
    dice = random.Random(seed)
    # Not two acts in a row, and not the last: a kill that comes after the end of its act is met in the next one.
    acts = dice.sample(range(0, len(ACTS) - 1, 2), num_moments)
    return {act: (dice.randrange(run.group.num_workers), dice.random() * run.seconds[act]) for act in acts}


@contextmanager
def _signalled(run: Run, moment: tuple[int, float] | None, number: int = signal.SIGKILL) -> Iterator[None]:
    if moment is None:
        yield
        return
    victim, after_s = moment
    timer = threading.Timer(after_s, os.kill, (run.group.pids[victim], number))
    timer.start()
    yield
    timer.join()


@pytest.mark.parametrize(
    ("ranks", "seed", "num_moments"),
    [
        ("two", 0, 2),
        pytest.param("two", 1, 10, marks=pytest.mark.long),
        pytest.param("three", 2, 10, marks=pytest.mark.long),
    ],
)
def test_a_run_whose_workers_are_killed_at_random_moments_gives_the_same_bits(
    request: pytest.FixtureRequest, ranks: str, seed: int, num_moments: int
):
    run: Run = request.getfixturevalue(ranks)
    moments = _moments(run, seed, num_moments)
    before = run.repairing.recovery.repairs

    results = run.repeat(lambda number: _signalled(run, moments.get(number)))

    assert results == run.expected
    assert run.repairing.recovery.repairs >= before + num_moments


@pytest.mark.long
def test_a_worker_that_hangs_is_found_and_it_alone_is_replaced(two: Run):
    kept, hung = two.group.pids
    [commit, *_] = [number for number, act in enumerate(ACTS) if act is _commit]

    def harm(number: int) -> Any:
        return _signalled(two, (1, 0.0) if number == commit else None, signal.SIGSTOP)

    assert two.repeat(harm) == two.expected
    assert two.group.pids[0] == kept and two.group.pids[1] != hung
    assert not Path(f"/proc/{hung}").exists()


def test_lost_workers_need_no_checkpoint_that_only_a_forgotten_state_came_from(two: Run, tmp_path: Path):
    group, segment = two.repairing, Segment(num_steps=3, learning_rate=0.5, level=0.02)
    group.save(f"file://{tmp_path}/first")
    group.run(segment)
    group.snapshot("best")
    group.save(f"file://{tmp_path}/second")
    group.snapshot("stage")
    group.forget("best")
    shutil.rmtree(tmp_path / "first")

    os.kill(two.group.pids[1], signal.SIGKILL)
    repaired = group.run(segment)

    group.restore("stage")
    assert group.run(segment).losses == repaired.losses
    with pytest.raises(WorkerFailed, match="best"):
        group.restore("best")
