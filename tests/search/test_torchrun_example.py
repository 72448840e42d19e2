"""The example with a controller in a plain torchrun script trains by its decisions."""

import math
import os
import re
import runpy
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from search.config import Budget
from search.loop.orders import Task

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "torchrun_controller.py"


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


class Rolling:
    """In place of a rank: a ball on a parabola. High rates throw it out, and so does step `breaks_at`."""

    def __init__(self, breaks_at):
        self.breaks_at, self.place, self.kept, self.num_steps = breaks_at, 5.0, 5.0, 0
        self.orders = []

    def do(self, task, rates=()):
        if task == Task.SNAPSHOT:
            self.kept = self.place
        elif task == Task.RESTORE:
            self.place = self.kept
        losses = [self._step(rate) for rate in rates]
        self.orders.append((task, all(map(math.isfinite, losses))))
        return task, losses

    def _step(self, rate):
        self.num_steps += 1
        self.place *= math.nan if rate > 5 or self.num_steps == self.breaks_at else 1 - 0.1 * rate
        return self.place**2


def test_nothing_is_trained_from_where_a_probe_or_a_commit_diverged(capsys):
    lead, trainer = runpy.run_path(str(EXAMPLE))["lead"], Rolling(breaks_at=100)
    lead.__globals__["BUDGET"] = Budget(steps=200)

    lead(trainer)

    after = [(task, is_finite) for (_, was_finite), (task, is_finite) in pairwise(trainer.orders) if not was_finite]
    assert trainer.num_steps == 200 and trainer.place < 2
    assert len(after) == 2 and {task for task, _ in after} == {Task.RESTORE}
    assert ", rolled back: " in (said := capsys.readouterr().out) and "the stage before diverged" in said
