"""The example that puts a controller into a plain torchrun script trains by what the controller says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_two_ranks_learn_with_the_rates_that_the_controller_chooses():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "examples/torchrun_controller.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"steps to loss (\d+\.\d+):", done.stdout)]
    assert len(losses) == 4 and losses[-1] < 0.1
