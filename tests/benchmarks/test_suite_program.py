"""The suite's programs measure what their rows lack, and nothing twice."""

from pathlib import Path

import pytest
from rows import Json, append, read
from suite.program import append_missing

from trainers.workload import WorkloadError

CELLS: list[Json] = [{"pair": ["a", "b"], "seed": seed} for seed in range(5)]


def test_parts_together_measure_each_cell_once(tmp_path: Path) -> None:
    file, measured = tmp_path / "rows.jsonl", list[int]()

    def measure(pair: list[str], seed: int) -> Json:
        measured.append(seed)
        return {"loss": seed / 2}

    append(file, CELLS[2] | {"loss": 7.0})
    for part in ((0, 2), (1, 2), (0, 1)):
        append_missing(file, CELLS, part, measure)

    assert sorted(measured) == [0, 1, 3, 4]
    assert {row["seed"]: row["loss"] for row in read(file)} == {0: 0.0, 1: 0.5, 2: 7.0, 3: 1.5, 4: 2.0}


def test_a_task_whose_data_are_not_here_costs_the_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(pair: list[str], seed: int) -> Json:
        if seed == 1:
            raise WorkloadError("no such data")
        return {}

    append_missing(tmp_path / "rows.jsonl", CELLS, (0, 1), measure)

    assert [row["seed"] for row in read(tmp_path / "rows.jsonl")] == [0, 2, 3, 4]
    assert "no such data" in capsys.readouterr().err
