"""Every program of the suite that searches does what a job does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tests.support.suite_packages")

from suite import commits, controlled, optimizers, run, small_batches, usual_rates
from suite.tasks import TASKS
from suite.training import Line

from search import strategies
from search.config import BoConfig, Budget
from search.space import SearchSpace
from service.cluster.opening import opening_space
from service.job.spec import JobSpec
from trainers.training.process_group import ProcessGroup

pytestmark = pytest.mark.long  # `make test-long` installs these packages

STEPS, SEED = 300, 1


class Built(Exception):
    """A strategy is about to be built, of these arguments."""


def refuse(config: BoConfig, *, space: SearchSpace, seed: int, budget: Budget) -> None:
    raise Built(config, space, seed, budget)


def run_small_batches(task: str) -> None:
    small_batches.run([SEED], (0, 1))


def run_usual_rates(task: str) -> None:
    usual_rates.run("schedulefree_sgd", [STEPS], [SEED], (0, 1), [task])


PROGRAMS: dict[str, Callable[[str], Any]] = {
    "run": lambda task: run.controlled(TASKS[task], {"kind": "bo"}, STEPS, SEED, 1.0)["run"](),
    "commits": lambda task: commits.commits_of(task, STEPS, SEED, 1.0),
    "optimizers": lambda task: optimizers.run(task, TASKS[task].optimizer, STEPS, SEED),
    "small_batches": run_small_batches,
    "usual_rates": run_usual_rates,
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("task", ["tumours-perceptron", "manual-gru"])
def test_a_search_knows_of_the_model_and_its_batches_what_a_job_knows(
    task: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies, "build", refuse)
    monkeypatch.setattr(small_batches, "_best_cosine", lambda task, seed: 1.0)
    monkeypatch.setattr(usual_rates, "_scheduled", lambda task, rate, steps, seed: 1.0)
    monkeypatch.setattr(small_batches, "NAMES", [task])
    for module in (small_batches, usual_rates):
        monkeypatch.setattr(module, "FILE", tmp_path / "rows.jsonl")

    with pytest.raises(Built) as built:
        PROGRAMS[program](task)

    _, space, _, budget = built.value.args
    num_steps = small_batches.NUM_STEPS if program == "small_batches" else STEPS
    assert space.batch_size == (small_batches.BATCHES[0] if program == "small_batches" else TASKS[task].batch_size)
    assert space.weights is not None
    assert (space.sharpness is not None) == (space.optimizer in ("sgd", "schedulefree_sgd"))
    assert budget.steps == num_steps - controlled.GRADIENTS_OF_LANDSCAPE * (space.sharpness is not None)


@pytest.mark.parametrize("name", ["tumours-perceptron", "manual-gru"])
def test_the_space_is_that_of_a_job(name: str) -> None:
    task = TASKS[name]
    job = {
        "workload": {
            "factory": "suite.tasks:workload",
            "path": str(Path(run.__file__).parents[1]),
            "params": {"task": name},
        },
        "optimizer": {"kind": task.optimizer, "learning_rate": task.guess, "weight_decay": task.weight_decay},
        "exchange": {"kind": "none"},
        "workers": {"count": 1},
        "seeds": [SEED],
        "budget": {"steps": STEPS},
    }
    spec = next(JobSpec.model_validate(job).trials())

    with ProcessGroup(spec.replica, 1, device="cpu") as group:
        of_job, _ = opening_space(spec, [group])
    ours = controlled.space_of(Line(task, SEED), BoConfig(), task.guess)

    stated = ours.model_fields_set
    assert {"batch_size", "weights", "guess", "optimizer"} <= stated
    assert ours.model_dump(include=stated) == of_job.model_dump(include=stated)
