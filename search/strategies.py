"""Build a strategy from its configuration, or restore it from its journal, ready to answer without delay."""

from collections.abc import Mapping
from typing import Any

from search.baselines.autolrs import AutoLrs
from search.baselines.guess import Baseline, Cosine, Fixed, Linear, Off, Polynomial
from search.baselines.scheduled import Scheduled
from search.bayesian.controller import Controller
from search.config import AutoLrsConfig, Budget, ControllerConfig, StagedConfig
from search.past_jobs.prior import NO_PRIOR, Prior
from search.protocol import Strategy
from search.space import SearchSpace
from search.surrogate.acquisition import warm_up

_BASELINES: dict[str, type[Baseline[Any]]] = {
    each.kind: each for each in (Fixed, Cosine, Linear, Polynomial, Off, Scheduled)
}
_STRATEGIES: dict[str, type[Controller | AutoLrs | Baseline[Any]]] = {
    "bo": Controller,
    "sobol": Controller,
    "local": Controller,
    "autolrs": AutoLrs,
    **_BASELINES,
}


def build(
    config: ControllerConfig, *, space: SearchSpace, seed: int, budget: Budget, prior: Prior = NO_PRIOR
) -> Strategy:
    """Return the strategy of a run that begins. One that searches may learn from `prior`."""
    if config.kind in _BASELINES:
        return _BASELINES[config.kind](space, budget, config)
    warm_up()  # what follows fits surrogates
    if isinstance(config, AutoLrsConfig):
        return AutoLrs(space, config, seed, budget=budget)
    assert isinstance(config, StagedConfig)
    return Controller(space, config, seed, budget=budget, prior=prior)


def restore(state: Mapping[str, Any]) -> Strategy:
    """Return the strategy whose `state_dict` gave `state`.

    Raises:
        ValueError: no strategy has its `kind`.
    """
    strategy = _STRATEGIES.get(state.get("kind", ""))
    if strategy is None:
        raise ValueError(f"`kind` must be one of {sorted(_STRATEGIES)}, got {state.get('kind')!r}.")
    if strategy in (Controller, AutoLrs):
        warm_up()
    return strategy.from_state_dict(state)
