"""From a configuration, or from a journal, to the strategy it means, ready to answer without delay."""

from collections.abc import Callable, Mapping
from typing import Any

from search.baselines.autolrs import AutoLrs
from search.baselines.guess import Cosine, Fixed, Linear, Off, Polynomial
from search.baselines.scheduled import Scheduled
from search.bayesian.controller import Controller
from search.config import (
    AutoLrsConfig,
    Budget,
    ControllerConfig,
    OffConfig,
    PolynomialConfig,
    ScheduleConfig,
    StagedConfig,
)
from search.past_jobs.prior import NO_PRIOR, Prior
from search.protocol import Strategy
from search.space import SearchSpace
from search.surrogate.acquisition import warm_up

Builder = Callable[[ControllerConfig, SearchSpace, int, Budget], Strategy]
Restorer = Callable[[Mapping[str, Any]], Strategy]


def _autolrs(config: ControllerConfig, space: SearchSpace, seed: int, budget: Budget) -> Strategy:
    assert isinstance(config, AutoLrsConfig)
    warm_up()
    return AutoLrs(space, config, seed, budget=budget)


def _off(config: ControllerConfig, space: SearchSpace, seed: int, budget: Budget) -> Strategy:
    assert isinstance(config, OffConfig)
    return Off(space, budget, config)


def _polynomial(config: ControllerConfig, space: SearchSpace, seed: int, budget: Budget) -> Strategy:
    assert isinstance(config, PolynomialConfig)
    return Polynomial(space, budget, config)


def _scheduled(config: ControllerConfig, space: SearchSpace, seed: int, budget: Budget) -> Strategy:
    assert isinstance(config, ScheduleConfig)
    return Scheduled(space, budget, config)


def _warm(restorer: Restorer) -> Restorer:
    def restored(state: Mapping[str, Any]) -> Strategy:
        warm_up()
        return restorer(state)

    return restored


_BUILDERS: dict[str, Builder] = {
    "autolrs": _autolrs,
    "fixed": lambda config, space, seed, budget: Fixed(space, budget),
    "cosine": lambda config, space, seed, budget: Cosine(space, budget),
    "linear": lambda config, space, seed, budget: Linear(space, budget),
    "polynomial": _polynomial,
    "off": _off,
    "schedule": _scheduled,
}

_RESTORERS: dict[str, Restorer] = {
    "bo": _warm(Controller.from_state_dict),
    "sobol": _warm(Controller.from_state_dict),
    "local": _warm(Controller.from_state_dict),
    "autolrs": _warm(AutoLrs.from_state_dict),
    "fixed": Fixed.from_state_dict,
    "cosine": Cosine.from_state_dict,
    "linear": Linear.from_state_dict,
    "polynomial": Polynomial.from_state_dict,
    "off": Off.from_state_dict,
    "schedule": Scheduled.from_state_dict,
}


def build(
    config: ControllerConfig, *, space: SearchSpace, seed: int, budget: Budget, prior: Prior = NO_PRIOR
) -> Strategy:
    """Return a strategy at the first step of a run; one that searches may learn from `prior`."""
    if isinstance(config, StagedConfig):
        warm_up()
        return Controller(space, config, seed, budget=budget, prior=prior)
    return _BUILDERS[config.kind](config, space, seed, budget)


def restore(state: Mapping[str, Any]) -> Strategy:
    """Return the strategy whose `state_dict` gave `state`.

    Raises:
        ValueError: no strategy has its `kind`.
    """
    restorer = _RESTORERS.get(state.get("kind", ""))
    if restorer is None:
        raise ValueError(f"`kind` must be one of {sorted(_RESTORERS)}, got {state.get('kind')!r}.")
    return restorer(state)
