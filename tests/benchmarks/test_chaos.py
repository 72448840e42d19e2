"""The chaos benchmark's draws, its notion of progress, and a seeded sample of it."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chaos
import pytest
from faults import audit
from faults.clients import Book

from service.job.states import JobState

BENCHMARK = Path(chaos.__file__)


def test_every_ten_rounds_kill_the_api_five_times_and_each_other_thing_once() -> None:
    for start in (0, 10, 250):
        drawn = Counter(chaos.kind_of(number, seed=3) for number in range(start, start + 10))
        assert drawn == {kind: 5 if kind == "api" else 1 for kind in chaos.KINDS}


def test_rounds_differ_between_decks_and_repeat_with_their_seed() -> None:
    rounds = [[chaos.kind_of(number, seed) for number in range(100)] for seed in (0, 0, 1)]

    assert rounds[0] == rounds[1] != rounds[2]
    assert rounds[0][:10] != rounds[0][10:20]


@pytest.mark.parametrize(
    ("start", "now", "is_new", "expected"),
    [
        ((1, 100), (1, 110), False, False),  # reports that left before the kill
        ((1, 100), (1, 150), False, True),
        ((2, 60), (2, 60), True, False),  # where the new attempt begins
        ((2, 60), (2, 61), True, True),
        ((1, 100), (sys.maxsize, 100), False, True),  # it has ended
    ],
)
def test_a_job_has_trained_when_steps_came_that_no_old_report_can_bring(
    start: tuple[int, int], now: tuple[int, int], is_new: bool, expected: bool
) -> None:
    assert chaos.has_trained(chaos.Position(*start), chaos.Position(*now), is_new=is_new) is expected


class Jobs:
    """A service's answers about finished jobs of three steps each, as a client gives them."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.states = folder, dict.fromkeys(names, JobState.SUCCEEDED)
        self.keys = {name: f"key of {name}" for name in names}
        self.losses = {name: {0: 0.5, 1: 0.4, 2: 0.3} for name in names}
        for name in names:
            (folder / name).write_bytes(b"weights")

    def jobs(self, *, limit: int, cursor: str | None) -> Any:
        rows = [
            SimpleNamespace(id=name, state=state, labels={"key": self.keys[name]})
            for name, state in self.states.items()
        ]
        return SimpleNamespace(jobs=rows, next_cursor=None)

    def trials(self, name: str) -> Any:
        return (SimpleNamespace(weights_url=f"file://{self.folder / name}", bill=SimpleNamespace(steps=3)),)

    def metrics(self, name: str, series: str, *, max_points: int) -> Any:
        losses = self.losses[name]
        return (SimpleNamespace(steps=tuple(losses), values=tuple(losses.values()), num_points=len(losses)),)


def _lose_a_job(jobs: Jobs) -> None:
    del jobs.states["third"]


def _double_a_job(jobs: Jobs) -> None:
    jobs.keys["second"] = jobs.keys["first"]


def _wedge(jobs: Jobs) -> None:
    jobs.states["third"] = JobState.STARTING


def _fail(jobs: Jobs) -> None:
    jobs.states["third"] = JobState.FAILED


def _lose_a_point(jobs: Jobs) -> None:
    del jobs.losses["second"][1]


def _change_a_point(jobs: Jobs) -> None:
    jobs.losses["second"][1] = 0.41


def _change_weights(jobs: Jobs) -> None:
    (jobs.folder / "second").write_bytes(b"others")


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (lambda jobs: None, {}),
        (_lose_a_job, {"lost": 1}),
        (_double_a_job, {"duplicates": 1}),
        (_wedge, {"wedged": 1}),
        (_fail, {"failed": 1}),
        (_lose_a_point, {"points_lost": 1, "points_differ": 1}),
        (_change_a_point, {"points_differ": 1}),
        (_change_weights, {"weights_differ": 1}),
    ],
)
def test_the_audit_sees_what_is_lost_doubled_stuck_or_different(
    tmp_path: Path, spoil: Callable[[Jobs], None], seen: dict[str, int]
) -> None:
    names = ["first", "second", "third"]
    jobs = Jobs(tmp_path, names)
    book = Book(sent=3, acknowledged={jobs.keys[name]: name for name in names}, runs=dict.fromkeys(names, "dense"))
    spoil(jobs)

    found = audit.of_jobs(jobs, book)  # type: ignore[arg-type]

    assert {name: found[name] for name in chaos.WRONG if found.get(name)} == seen


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_is_lost_whatever_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "chaos.jsonl"
    command = [sys.executable, str(BENCHMARK), "--rounds", "10", "--seed", "11", "--session", "10", "--json", str(file)]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    *rounds, audit = map(json.loads, file.read_text().splitlines())
    assert Counter(row["kind"] for row in rounds) == Counter(chaos.DECK)
    assert {audit[name] for name in chaos.WRONG} == {0}
    assert audit["runs"] > 3 and audit["acknowledged"] == audit["submitted"]
