"""When a commit is checked, and which state remains after the strategy rolls it back at its end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search import strategies
from search.baselines.guess import Fixed
from search.types import Course, Observation
from service.cluster import trial
from service.wire.records import TrialFinished
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Evaluation


class Watcher(Fixed):
    """Notes after how many steps of the commit it is asked, and takes it back from `limit` of them on."""

    limit = 10**9

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.looks: list[int] = []
        self.told: list[Observation] = []

    def watch(self, observation: Observation) -> Course:
        assert observation.trace is not None
        self.looks.append(observation.trace.num_steps)
        return "roll_back" if observation.trace.num_steps >= self.limit else "go_on"

    def tell(self, observation: Observation) -> None:
        super().tell(observation)
        self.told.append(observation)


@pytest.fixture
def train(
    tmp_path: Path, arithmetic_group: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Watcher, TrialFinished]]:
    def train(
        budget: dict[str, float],
        *,
        limit: int = 10**9,
        sign: float = 1.0,
        every: int = 10**6,
        average: float | None = None,
        export: str = "last",
        target: float | None = None,
    ) -> tuple[Watcher, TrialFinished]:
        group, sink, made = arithmetic_group(), Memory(), list[Watcher]()

        def build(config: Any, *, space: Any, budget: Any, **others: Any) -> Watcher:
            made.append(Watcher(space, budget, config))
            made[0].limit = limit
            return made[0]

        def evaluate(*, averaged: bool = False) -> Evaluation:
            has_average = average is not None and len(group.rates) > 0
            return Evaluation(
                loss=average if averaged and average is not None else sign * sum(group.rates),
                num_samples=10,
                averaged=averaged,
                has_average=has_average,
                bytes_sent=({"control": 8},) * 2,
            )

        monkeypatch.setattr(strategies, "build", build)
        group.evaluate = evaluate
        objective = {"every": every, "target": target}
        spec = digits_trial(
            budget=budget, controller={"kind": "fixed"}, objective=objective, checkpoint={"export": export}
        )
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}")
        [finished] = sink.of(TrialFinished)
        return made[0], finished

    return train


@pytest.mark.parametrize("budget", [{"steps": 2000}, {"bytes": 2_000_000}, {"steps": 100}])
def test_a_commit_is_looked_at_every_fiftieth_and_at_its_end_though_nothing_is_evaluated(
    train: Callable[..., tuple[Watcher, TrialFinished]], budget: dict[str, float]
) -> None:
    strategy, finished = train(budget)

    gaps = [later - earlier for earlier, later in zip([0, *strategy.looks], strategy.looks, strict=False)]
    num_steps = finished.bill.steps
    assert strategy.looks[-1] == num_steps
    assert max(gaps) <= 2 * max(10, num_steps / 50) + 10  # what a step sends grows here
    assert min(gaps[:-1]) >= 10 and gaps[-1] > 0  # nothing is looked at twice


@pytest.mark.parametrize("every", [50, 10**6])  # the end is evaluated, or not
@pytest.mark.parametrize(("sign", "num_kept"), [(1.0, 0), (-1.0, 300)])
def test_at_the_budgets_end_the_better_of_a_commits_start_and_its_end_stays(
    train: Callable[..., tuple[Watcher, TrialFinished]], sign: float, num_kept: int, every: int
) -> None:
    strategy, finished = train({"steps": 300}, limit=300, sign=sign, every=every)

    assert [each.rolled_back for each in strategy.told] == [num_kept == 0]
    assert finished.bill.steps == sum(entry.num_steps for entry in finished.schedule) == num_kept
    assert finished.bill.steps + finished.bill.steps_taken_back == 300


@pytest.mark.parametrize(("export", "num_kept"), [("best", 300), ("average", 300), ("last", 0)])
def test_a_commits_start_and_its_end_are_compared_by_what_would_be_exported_of_them(
    train: Callable[..., tuple[Watcher, TrialFinished]], export: str, num_kept: int
) -> None:
    strategy, finished = train({"steps": 300}, limit=300, average=-1.0, export=export)  # the weights get worse

    assert [each.rolled_back for each in strategy.told] == [num_kept == 0]
    assert finished.bill.steps == num_kept


def test_a_commit_that_reaches_the_target_stays_whatever_else_there_is_to_say_of_it(
    train: Callable[..., tuple[Watcher, TrialFinished]],
) -> None:
    strategy, finished = train({"steps": 400}, limit=200, every=200, average=-1.0, export="best", target=-0.5)

    assert [each.rolled_back for each in strategy.told] == [False]
    assert finished.at_target and finished.averaged and finished.bill.steps == 200


@pytest.mark.parametrize(("target", "at_target"), [(-1.0, True), (-1e6, False)])
def test_a_run_is_at_its_target_if_what_it_keeps_is_though_no_evaluation_came_before(
    train: Callable[..., tuple[Watcher, TrialFinished]], target: float, at_target: bool
) -> None:
    _, finished = train({"steps": 300}, sign=-1.0, target=target)

    assert finished.at_target == at_target
