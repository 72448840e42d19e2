"""Scenarios that torchrun starts, as it does scripts of other frameworks."""

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


def by_two_ranks(scenario: str, folder: Path, *, package: str) -> list[Any]:
    """Run a scenario of this folder, and return what each rank has written to `rank-RANK.json` in `folder`.

    Skips the test if `package` is not installed.
    """
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install '.[recipes]'")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name(scenario)), str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150 * crowd(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]
