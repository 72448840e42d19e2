"""The chaos benchmark's draws, its notion of progress, and a seeded sample of it."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import chaos
import pytest

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
