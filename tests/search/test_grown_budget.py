"""A run whose budget grows goes on in stages, as one that had the larger budget from the start."""

import json

import pytest

from search import strategies
from search.bayesian.setup import SearchSetup
from search.budget import spending
from search.config import BoConfig, Budget, OffConfig
from search.space import SearchSpace
from search.types import Spent, Values

SMALL, LARGE = Budget(steps=1000), Budget(steps=10_000)
SPACE = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1), first_loss=2.0, sharpness=3.0)


def _strategy(config, budget):
    return strategies.build(config, space=SPACE, seed=0, budget=budget)


def _grown(strategy, decision):
    """Return the strategy, whose commit is open, under the larger budget, and the commit's decision."""
    decision = spending.stretched(decision, SMALL, LARGE)
    state = json.loads(json.dumps(dict(strategy.state_dict()), allow_nan=False))
    return strategies.restore(strategies.extended(state, LARGE, until=decision.commit_until)), decision


def _ends(decisions):
    return [decision.commit_until.steps for decision in decisions]


def test_the_commits_of_a_search_end_where_those_of_a_run_with_the_larger_budget_do(simulated_run):
    whole = simulated_run(LARGE).train(_strategy(BoConfig(), LARGE))
    run, controller = simulated_run(SMALL), _strategy(BoConfig(), SMALL)
    while controller.decide().commit_until.steps < 1000:
        run.commit(controller)

    assert controller.decide().forecast is not None
    longer, decision = _grown(controller, controller.decide())
    run.budget = LARGE
    run.commit(longer)
    run.train(longer)

    assert decision.forecast is None
    assert run.decisions[3] == decision
    assert _ends(whole.decisions)[-3:] == _ends(run.decisions)[3:] == [2000, 4667, 10_000]


def test_a_strategy_of_a_single_commit_goes_on_to_the_new_end():
    off = _strategy(OffConfig(), SMALL)

    longer, decision = _grown(off, off.decide())

    assert decision.commit_until.steps == longer.decide().commit_until.steps == 10_000


def test_a_commit_that_ends_before_the_old_budget_stays_as_it_is(simulated_run):
    controller = _strategy(BoConfig(), SMALL)
    simulated_run(SMALL).run_stage(controller)
    longer, decision = _grown(controller, controller.decide())

    assert decision == controller.decide() == longer.decide()
    assert decision.commit_until.steps < 1000 and decision.forecast is not None


@pytest.mark.parametrize("index", range(1, 12))
@pytest.mark.parametrize("num_stages", [1, 4])
def test_a_grown_budget_takes_no_stage_away_and_leaves_no_more_than_a_run_has(num_stages, index):
    for spent in (100, 1000, 5000, 9000):
        part, grown = (
            SearchSetup(SPACE, BoConfig(num_stages=num_stages), LARGE, 0, has_grown=has_grown).commit_part(
                index, 0, Spent(steps=spent)
            )
            for has_grown in (False, True)
        )
        assert 1 / (2**num_stages - 1) <= grown <= part
