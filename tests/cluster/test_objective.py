"""The objective with real ranks: patience, both kinds of weights bit for bit after a cut, and failing losses."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.cluster.reporter import Stopped
from service.wire.records import AnyRecord, Checkpointed, Control, Divergence, TrialFinished
from tests.support.small_trials import Memory, digits_trial
from trainers.training.process_group import ProcessGroup
from trainers.workload import WorkloadError

MODELS = str(Path(__file__).parents[1] / "trainers")
Train = Callable[..., Memory]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    attempts = itertools.count()

    def train(
        factory: str,
        sink: Memory | None = None,
        *,
        rate: float = 0.1,
        every_seconds: float = 60.0,
        resume: dict[str, Any] | None = None,
        **objective: Any,
    ) -> Memory:
        spec = digits_trial(
            workload={"factory": f"own_models:{factory}", "path": MODELS},
            optimizer={"kind": "sgd", "learning_rate": rate, "momentum": 0.9},
            exchange={"kind": "topk", "density": 0.5},
            controller={"kind": "fixed"},
            checkpoint={"export": "best", "keep": 1, "every_seconds": every_seconds},
            objective={"every": 10} | objective,
            budget={"steps": 400},
        )
        sink, url = sink or Memory(), f"file://{tmp_path}/attempt-{next(attempts)}"
        with ProcessGroup(spec.replica, num_workers=2) as group:
            trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=url, resume=resume)
        return sink

    return train


class Cut(Memory):
    """Ends the attempt with the first checkpoint after so many evaluations in a row that were no better."""

    def __init__(self, num_stale: int) -> None:
        super().__init__()
        self.num_stale = num_stale

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        kept = [each.resume["progress"] for each in records if isinstance(each, Checkpointed)]
        if any(progress["num_stale"] == self.num_stale for progress in kept):
            raise Stopped(Control.FENCED, "cut off")


def _end(sink: Memory) -> tuple[TrialFinished, bytes, bytes]:
    [finished] = sink.of(TrialFinished)
    urls = (finished.weights_url, finished.last_weights_url)
    best, last = (Path(str(url).removeprefix("file://")).read_bytes() for url in urls)
    return finished, best, last


def test_a_run_cut_off_while_its_patience_wears_out_ends_with_the_same_weights_both_best_and_last(train: Train) -> None:
    objective = {"metric": "mae", "patience": 4}
    whole = train("LearnedByHeart", **objective)
    finished, best, last = _end(whole)
    assert finished.ended_early and finished.bill.steps < 400 and best != last

    cut = Cut(2)
    with pytest.raises(Stopped):
        train("LearnedByHeart", cut, every_seconds=1e-9, **objective)  # a checkpoint after every push
    resumed, *weights = _end(train("LearnedByHeart", **objective, resume=cut.of(Checkpointed)[-1].resume))

    assert weights == [best, last]
    assert resumed.schedule == finished.schedule and resumed.exported_step == finished.exported_step


@pytest.mark.parametrize(("factory", "rate", "at_start"), [("NotANumber", 0.1, True), ("Regression", 1e3, False)])
def test_a_run_that_diverges_says_at_which_step_and_before_any_update_it_is_0(
    train: Train, factory: str, rate: float, at_start: bool
) -> None:
    [finished] = train(factory, rate=rate).of(TrialFinished)

    assert finished.outcome == "diverged" and finished.divergence is not None
    assert (finished.divergence == Divergence(step=0, learning_rate=rate)) is at_start


def test_a_metric_that_a_factory_does_not_measure_is_refused_by_the_names_of_those_it_does(train: Train) -> None:
    with pytest.raises(WorkloadError, match=r"measures `loss` or `mae`, got `objective\.metric: accuracy`"):
        train("Regression", metric="accuracy")
