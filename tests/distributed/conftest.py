"""Real groups of processes, started as rarely as the tests allow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCENARIOS = Path(__file__).with_name("scenarios.py")
RANKS_S = 120

Reports = dict[str, list[dict[str, Any]]]  # by scenario, then by rank


def run_ranks(folder: Path, num_workers: int, names: list[str]) -> Reports:
    """Run the scenarios `names` one after the other on `num_workers` ranks."""
    ranks = [
        subprocess.Popen([sys.executable, str(SCENARIOS), str(folder), str(rank), str(num_workers), *names])
        for rank in range(num_workers)
    ]
    codes = [process.wait(RANKS_S) for process in ranks]
    assert codes == [0] * num_workers
    reports = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_workers)]
    return {name: [report[name] for report in reports] for name in names}


@pytest.fixture(scope="session")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    names = [
        "conservation", "overflow", "dense_limits", "kinds", "averages", "low_rank", "bad_gradient", "early_stop"
    ]  # fmt: skip
    return run_ranks(tmp_path_factory.mktemp("three"), 3, names)


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return run_ranks(
        tmp_path_factory.mktemp("four"),
        4,
        [
            "equal_parameters",
            "early_stop",
            "dense_limits",
            "kinds_of_four",
            "pairs",
            "kinds_on_even_nodes",
            "kinds_on_uneven_nodes",
            "dense_limits_on_nodes",
            "replicas_on_nodes",
            "paced_messages",
            "ddp",
        ],
    )
