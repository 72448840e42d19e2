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
        budget: dict[str, float], *, limit: int = 10**9, sign: float = 1.0, every: int = 10**6
    ) -> tuple[Watcher, TrialFinished]:
        group, sink, made = arithmetic_group(), Memory(), list[Watcher]()

        def build(config: Any, *, space: Any, budget: Any, **others: Any) -> Watcher:
            made.append(Watcher(space, budget, config))
            made[0].limit = limit
            return made[0]

        def evaluate(*, averaged: bool = False) -> Evaluation:
            return Evaluation(loss=sign * sum(group.rates), num_samples=10, bytes_sent=({"control": 8},) * 2)

        monkeypatch.setattr(strategies, "build", build)
        group.evaluate = evaluate
        spec = digits_trial(budget=budget, controller={"kind": "fixed"}, objective={"every": every})
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
