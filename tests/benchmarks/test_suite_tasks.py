"""The suite's tasks: each trains with its own optimizer, and its state can be restored."""

import pytest

pytest.importorskip("tests.support.suite_packages")

from equal_cost import HELD_OUT
from suite.tasks import DEEP_UNSEEN, TASKS, UNSEEN
from suite.training import Line

pytestmark = pytest.mark.long  # `make test-long` installs these packages

RATES = [0.01] * 3


@pytest.mark.parametrize("task", ["mnist-perceptron-free", "mnist-perceptron-adamw-muon"])
@pytest.mark.parametrize("num_before", [0, 2], ids=["from the start", "from within a run"])
def test_a_line_that_went_back_trains_as_it_did(task: str, num_before: int) -> None:
    line = Line(TASKS[task], seed=0)
    line.train(RATES[:num_before])
    snapshot = line.snapshot()
    losses = line.train(RATES)

    line.restore(snapshot)

    assert line.train(RATES) == losses


def test_the_tasks_that_are_held_out_are_those_added_as_unseen() -> None:
    assert set(HELD_OUT) == {name for name, task in TASKS.items() if task.added in (UNSEEN, DEEP_UNSEEN)}
