"""A strategy knows the step from which a larger budget would have given it other rates."""

import pytest

from search import strategies
from search.config import BoConfig, Budget, CosineConfig, FixedConfig, LinearConfig, OffConfig, PolynomialConfig
from search.space import SearchSpace
from search.types import Spent, Values


@pytest.mark.parametrize("optimizer", ["sgd", "schedulefree_sgd"])
@pytest.mark.parametrize(
    "config", [FixedConfig(), CosineConfig(), LinearConfig(), PolynomialConfig(), OffConfig(), BoConfig()]
)
def test_a_rate_anneals_exactly_where_a_larger_budget_gives_another(config, optimizer):
    space = SearchSpace(optimizer=optimizer, guess=Values(learning_rate=0.2))
    short, long = (
        strategies.build(config, space=space, seed=0, budget=Budget(steps=steps)) for steps in (1000, 100_000)
    )

    for spent in (Spent(steps=steps) for steps in (0, 10, 500, 849, 851, 1000)):
        assert short.anneals(spent) == (short.values(spent) != long.values(spent))
