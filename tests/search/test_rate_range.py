"""The search spans a stated range of learning rates and stays in it."""

import pytest

from search import strategies
from search.config import BoConfig, Budget, LocalConfig, SobolConfig
from search.space import SearchSpace
from search.types import Values

STEPS = Budget(steps=2000)


def _built(config, *, guess):
    space = SearchSpace(optimizer="schedulefree_sgd", guess=Values(learning_rate=guess))
    return strategies.build(config, space=space, seed=0, budget=STEPS)


@pytest.mark.parametrize("kind", [BoConfig, SobolConfig, LocalConfig])
@pytest.mark.parametrize("best", [1e-5, 0.03, 10.0])
def test_no_probe_and_no_stage_leaves_a_stated_range_of_rates(simulated_run, kind, best):
    limits = {"min_learning_rate": 0.01, "max_learning_rate": 0.2, "revisit": "stages"}
    run = simulated_run(STEPS, best=best)
    run.train(_built(kind(**limits), guess=0.05))

    used = [candidate.values for candidate, _ in run.history] + [decision.values for decision in run.decisions]
    assert len(used) > 5
    assert all(0.01 <= values.learning_rate <= 0.2 for values in used)


def test_the_wide_search_spans_a_stated_range_whatever_the_guess(simulated_run):
    run = simulated_run(STEPS)
    run.search(_built(BoConfig(min_learning_rate=0.01, max_learning_rate=1.0, max_search_fraction=0.2), guess=0.02))

    grid = sorted(candidate.values.learning_rate for candidate, _ in run.history if candidate.origin == "wide")
    assert grid == pytest.approx([0.01, 0.1, 1.0])


def test_where_a_stated_range_ends_on_the_plateau_its_middle_within_the_range_is_used(simulated_run):
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.05))
    config = BoConfig(min_learning_rate=0.05, max_learning_rate=0.2)  # the loss falls fastest at 0.2
    controller = strategies.build(config, space=space, seed=0, budget=STEPS)
    simulated_run(STEPS).search(controller)

    assert 0.1 <= controller.decide().values.learning_rate <= 0.2
