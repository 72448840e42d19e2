"""A compressor from another package works like a built-in one: no file of this repository names it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE / "every_kth"


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    path = os.pathsep.join(map(str, [PACKAGE, HERE, HERE.parents[1]]))
    command = [sys.executable, str(HERE / "method_from_elsewhere.py")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_catalogue_lists_it_with_the_bytes_that_it_predicts(told: dict[str, Any]) -> None:
    assert told["summary"].startswith("Send every k-th entry")
    assert told["predicted in the catalogue"] > 0


def test_a_job_refuses_it_beside_what_it_does_not_go_with(told: dict[str, Any]) -> None:
    assert "every_kth" in told["refused beside jointspar"]
    assert "`every_kth` here has no plain residual" in told["refused beside local_sgd"]


def test_a_job_trains_with_it_and_sends_what_was_predicted(told: dict[str, Any]) -> None:
    assert not told["job"]["diverged"]
    assert told["job"]["sent"] == [told["job"]["predicted"]] * 2


def test_it_keeps_the_laws_of_all_exchanges(told: dict[str, Any]) -> None:
    assert told["asked all laws"]  # where those of this repository are
    for rank in told["laws"]:
        assert rank["lost"] < 1e-6
        assert rank["bytes"] == [rank["predicted"]] * 4
        assert rank["restored"] and rank["diverged"] and rank["state kept"] and rank["dense"]
        assert rank["of zeros"] == [0.0, 0.0]
    assert told["laws"][0]["bits"] == told["laws"][1]["bits"]
