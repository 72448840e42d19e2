"""The suite's part with two ranks: what its arms share, and its result."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tests.support.suite_packages")

from suite import optimizers_two_ranks, two_ranks
from suite.two_ranks import ARMS, DENSE, GUESSED, JOINT, SPARSE, Run

pytestmark = pytest.mark.long  # `make test-long` installs these packages

ONE = Run("mnist-perceptron", GUESSED, "10x low", seed=3, steps=600)


@pytest.mark.parametrize("arm", ARMS)
def test_arms_differ_in_exchange_and_controller_alone(arm: str) -> None:
    other, given = Run(ONE.task, arm, ONE.guess, ONE.seed, ONE.steps).spec(), ONE.spec()
    replica = given.replica.model_copy(update={"exchange": other.replica.exchange})

    assert other == given.model_copy(update={"controller": other.controller, "replica": replica})
    assert other.budget.counts_bytes_alone


def test_the_joint_search_is_compared_with_the_better_of_the_two_that_keep_one_percent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {SPARSE: 0.4, JOINT: 0.5, DENSE: 2.0, GUESSED: 1.0}
    rows = [{"task": "t", "guess": "right", "seed": 0, "steps": 600, "arm": arm, "loss": losses[arm]} for arm in ARMS]
    monkeypatch.setattr(two_ranks, "ROWS", tmp_path / "rows.jsonl")
    two_ranks.ROWS.write_text("".join(json.dumps(row) + "\n" for row in rows))

    two_ranks.table()

    assert capsys.readouterr().out.splitlines()[-1] == "| t | right | 600 | 1 | 0.4 | 0.5 | 2 | 1 | +25.0 % |"


@pytest.mark.parametrize("way", optimizers_two_ranks.WAYS)
def test_optimizers_are_compared_with_all_else_equal(way: str) -> None:
    first, *others = (optimizers_two_ranks.trial(way, ONE.task, each, 0) for each in optimizers_two_ranks.OPTIMIZERS)

    for other in others:
        replica = other.replica.model_copy(update={"optimizer": first.replica.optimizer})
        assert other.model_copy(update={"replica": replica}) == first
