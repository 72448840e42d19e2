"""Checkpoints of Accelerate, with the real package, on two ranks."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import crowd

ROOT = Path(__file__).parents[2]
KINDS = ("topk", "local_sgd", "cser")
Found = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return what each rank has found of each of `KINDS`."""
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed: pip install '.[recipes]'")
    folder = tmp_path_factory.mktemp("accelerate")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("accelerate_scenario.py")), str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150 * crowd(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


pytestmark = pytest.mark.long  # `make test-long` installs this package


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_from_a_checkpoint_of_accelerate_goes_on_as_if_it_had_not_stopped(ranks: Found, kind: str):
    for rank in ranks:
        assert rank[kind]["resumed"] == rank[kind]["whole"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_has_its_file_and_trains_on_from_where_it_was(ranks: Found, kind: str):
    for rank in ranks:
        assert rank[kind]["files"] == ["wiretune-0.pt", "wiretune-1.pt"]
        assert rank[kind]["kept"]
