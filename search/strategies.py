"""Build a strategy from its configuration, or restore it from its journal, ready to answer without delay."""

from collections.abc import Mapping
from typing import Any

from search.baselines.autolrs import AutoLrs
from search.baselines.guess import Baseline, Cosine, Fixed, Linear, Off, Polynomial
from search.baselines.scheduled import Scheduled
from search.bayesian.controller import Controller
from search.config import STAGED_KINDS, AutoLrsConfig, Budget, ControllerConfig, StagedConfig
from search.past_jobs.prior import NO_PRIOR, Prior
from search.protocol import Strategy
from search.space import SearchSpace
from search.surrogate.acquisition import warm_up
from search.types import Allowance

_BASELINES: dict[str, type[Baseline[Any]]] = {
    each.kind: each for each in (Fixed, Cosine, Linear, Polynomial, Off, Scheduled)
}
_STRATEGIES: dict[str, type[Controller | AutoLrs | Baseline[Any]]] = {
    **dict.fromkeys(STAGED_KINDS, Controller),
    AutoLrs.kind: AutoLrs,
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


def extended(state: Mapping[str, Any], budget: Budget, *, until: Allowance | None) -> dict[str, Any]:
    """Return the state of a strategy under `budget`, which has grown; its open commit, if any, ends at `until` now."""
    longer = {**state, "budget": budget.model_dump(mode="json")}
    if "events" in longer:
        longer["has_grown"] = True
        longer["events"] = longer["events"] if until is None else _moved(longer["events"], until)
    return longer


def _moved(events: list[dict[str, Any]], until: Allowance) -> list[dict[str, Any]]:
    """Return a controller's events with the end of the open commit, which is the last one, moved to `until`."""
    last = max((index for index, event in enumerate(events) if "decide" in event), default=None)
    if last is None:
        return events
    decided, ends = events[last]["decide"], until.model_dump(mode="json")
    if decided["commit_until"] != ends:
        decided = {**decided, "commit_until": ends, "forecast": None}  # as `spending.stretched` says
    return [*events[:last], {**events[last], "decide": decided}, *events[last + 1 :]]
