"""Every controller keeps the promises of the protocol: stopped anywhere, it resumes as if undisturbed."""

import json

import pytest

from search import strategies
from search.baselines.autolrs import AutoLrs
from search.baselines.guess import Cosine, Fixed, Linear, Off
from search.baselines.scheduled import Scheduled
from search.bayesian.controller import Controller
from search.config import (
    STAGED_KINDS,
    AutoLrsConfig,
    BoConfig,
    Budget,
    CosineConfig,
    FixedConfig,
    LinearConfig,
    LocalConfig,
    OffConfig,
    ScheduleConfig,
    SobolConfig,
    StagedConfig,
)
from search.protocol import Strategy
from search.schedule_file import Entry, ScheduleFile
from search.space import SearchSpace
from search.types import Allowance, Decision, Spent, Steer, Values

SPACE = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.05))
BUDGET = Budget(steps=600)
PIECES = (
    Entry(step=0, num_steps=100, learning_rate=0.1),
    Entry(step=100, num_steps=50, learning_rate=0.04, final_learning_rate=0.01),
)
KINDS = [
    (BoConfig(wide_probes=5, num_stages=2, max_search_fraction=0.6), Controller),
    (SobolConfig(num_stages=2, max_search_fraction=0.6), Controller),
    (LocalConfig(num_stages=2, max_search_fraction=0.5), Controller),
    (AutoLrsConfig(num_probes=3, num_stages=2), AutoLrs),
    (ScheduleConfig(schedule=ScheduleFile(optimizer="sgd", num_steps=150, entries=PIECES)), Scheduled),
    (FixedConfig(), Fixed),
    (CosineConfig(), Cosine),
    (LinearConfig(), Linear),
    (OffConfig(), Off),
]
EVERY_KIND = pytest.mark.parametrize(("config", "kind"), KINDS, ids=[config.kind for config, _ in KINDS])


class Restarted:
    """A strategy that is rebuilt from its journal, as JSON, before it is told anything."""

    def __init__(self, strategy):
        self._strategy = strategy
        self.kinds = {type(strategy)}

    def __getattr__(self, name):
        return getattr(self._strategy, name)

    def tell(self, observation):
        journal = json.dumps(dict(self._strategy.state_dict()), allow_nan=False)
        self._strategy = strategies.restore(json.loads(journal))
        self.kinds.add(type(self._strategy))
        self._strategy.tell(observation)


def _build(config):
    return strategies.build(config, space=SPACE, seed=3, budget=BUDGET)


class Constant(Strategy):
    """A strategy that does nothing but name its values."""

    def ask(self):
        return None

    def tell(self, observation):
        return

    def decide(self, held=()):
        until = Allowance(steps=BUDGET.steps)
        return Decision(stage=0, values=SPACE.guess, reason="", switched=False, commit_until=until)

    def values(self, spent):
        return SPACE.guess


@EVERY_KIND
def test_a_strategy_that_is_rebuilt_again_and_again_answers_bit_for_bit(simulated_run, config, kind):
    straight = simulated_run(BUDGET).train(_build(config))
    restarted = Restarted(_build(config))
    run = simulated_run(BUDGET).train(restarted)

    assert restarted.kinds == {kind}
    assert run.history == straight.history
    assert [each.model_dump_json() for each in run.decisions] == [each.model_dump_json() for each in straight.decisions]
    assert run.excess == straight.excess


@pytest.mark.parametrize("config", [config for config, _ in KINDS], ids=[config.kind for config, _ in KINDS])
def test_the_same_totals_are_given_the_same_values_in_any_order(config):
    strategy = _build(config)
    asked = [Spent(steps=steps) for steps in (0, 570, 120, 600, 540, 120)]

    assert [strategy.values(spent) for spent in asked] == [_build(config).values(spent) for spent in asked]


def test_a_strategy_inherits_that_it_has_nothing_to_add(simulated_run):
    strategy = Constant()

    strategy.steer((Steer(id=1, by="anna", pin={"learning_rate": 0.01}),))
    run = simulated_run(BUDGET).train(strategy)

    assert [each.spent.steps for each in run.commits] == [BUDGET.steps]
    assert strategy.leading() is None and strategy.piece(run.spent) is None and strategy.anneals(run.spent) is False


def test_the_staged_kinds_are_those_that_search_in_stages():
    assert sorted(STAGED_KINDS) == sorted(config.kind for config, _ in KINDS if isinstance(config, StagedConfig))


def test_an_unknown_kind_is_refused_by_name():
    with pytest.raises(ValueError, match=r"`kind`.*'magic'"):
        strategies.restore({"kind": "magic"})


@pytest.mark.parametrize("config", [BoConfig(), BoConfig(revisit="stages"), BoConfig(max_search_fraction=0.3)])
@pytest.mark.parametrize("needed", [1, 35, 97, 250])
def test_the_least_budget_is_the_smallest_of_which_probes_may_spend_as_much(config, needed):
    enough = (steps for steps in range(needed, 100 * needed) if config.search_fraction(steps) * steps >= needed)

    assert config.least_budget(needed) == next(enough)


def test_the_least_budget_of_the_longest_probes_is_found_by_few_looks(monkeypatch):
    looks, fraction = [], BoConfig.search_fraction
    monkeypatch.setattr(BoConfig, "search_fraction", lambda self, steps: looks.append(steps) or fraction(self, steps))

    assert BoConfig().least_budget(2**63) > 2**63
    assert len(looks) < 200
