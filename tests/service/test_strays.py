"""Processes left by a killed worker are killed; those of Ray are not."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from service.control import processes
from service.control.ray_cluster.watchdog import Strays
from tests.support.patience import PATIENCE_S

#: Starts two children that start one each, and says who they are.
FAMILY = """
import subprocess
print(*(subprocess.Popen(["sh", "-c", "sleep 600 & wait"]).pid for _ in range(2)), flush=True)
input()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int, int]]:
    """The pids of a parent and of its two children."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        first, second = map(int, parent.stdout.readline().split())
        started = processes.wait_until(lambda: len(processes.descendants(parent.pid)) == 4, timeout_s=PATIENCE_S)
        assert started
        yield parent.pid, first, second
        for pid in processes.descendants(parent.pid):
            processes.send(pid, 9)
        parent.kill()


def test_a_process_that_stays_without_its_parent_is_ended_with_all_below_it(family: tuple[int, int, int]) -> None:
    parent, ray, _ = family
    strays = Strays(parent, keep=ray)

    strays.end(0.0)
    strays.end(6.0)
    assert len(processes.descendants(parent)) == 4  # it may notice by itself
    strays.end(12.0)

    assert processes.wait_until(lambda: processes.children(parent) == [ray], timeout_s=PATIENCE_S)
    assert len(processes.descendants(parent)) == 2
