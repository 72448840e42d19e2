"""Controllers that share the stages of `bo` but not its surrogate: the best probe wins."""

import math

import pytest

from search import strategies
from search.config import Budget, LocalConfig, SobolConfig
from search.space import Axis, SearchSpace
from search.types import Values

BUDGET = Budget(steps=2000)
LEVELS = {"axes": (Axis(name="level", low=0.003, high=0.1),)}


def _train(simulated_run, config, *, seed=0, guess=0.01, **space):
    where = SearchSpace(optimizer="sgd", guess=Values(learning_rate=guess, level=0.02 if space else None), **space)
    return simulated_run(BUDGET).train(strategies.build(config, space=where, seed=seed, budget=BUDGET))


def _by_stage(run):
    return [[probe.candidate for probe in decision.probes] for decision in run.decisions if decision.probes]


@pytest.mark.parametrize("config", [SobolConfig(), LocalConfig()], ids=["sobol", "local"])
def test_the_best_probe_wins(simulated_run, config):
    run = _train(simulated_run, config)
    later = [
        decision for decision in run.decisions if decision.probes and decision.probes[0].candidate.origin != "wide"
    ]

    assert len(later) >= 2
    for decision in later:
        best = max(decision.probes, key=lambda report: -math.inf if report.reward is None else report.reward)
        assert decision.values == best.candidate.values


def test_sobol_opens_with_the_wide_search_and_fills_the_region_later(simulated_run):
    stages = _by_stage(_train(simulated_run, SobolConfig(probes=5), **LEVELS))

    assert {candidate.origin for candidate in stages[0]} <= {"wide", "finalist", "sobol"}
    for stage in stages[1:]:
        control, *others = stage
        assert control.origin == "incumbent" and {other.origin for other in others} == {"sobol"}
        places = [(math.log(other.values.learning_rate), math.log(other.values.level)) for other in others]
        assert len(set(places)) == len(places)
        for other in others:
            assert 0.25 <= other.values.learning_rate / control.values.learning_rate <= 2
            assert 0.25 <= other.values.level / control.values.level <= 4.000001


def test_local_tries_the_incumbent_twice_and_half_of_it_from_the_first_stage_on(simulated_run):
    run = _train(simulated_run, LocalConfig())
    for stage, decision in zip(_by_stage(run), run.decisions, strict=False):
        incumbent, *others = (candidate.values.learning_rate for candidate in stage)
        factors = {round(other / incumbent, 6) for other in others}
        is_early = decision.probes[0].candidate.stage < 3
        assert factors == ({2.0, 0.5} if is_early else {0.5, 0.25})

    assert run.decisions[0].probes[0].candidate.values.learning_rate == 0.01
