"""The arithmetic of the published AutoLRS: ranges, lengths of stages, forecasts. Pure functions."""

from collections.abc import Sequence

import numpy as np

from search.baselines.extrapolation import MIN_LOSSES, extrapolate
from search.bayesian.rewards import TOLERANCE
from search.budget import spending
from search.budget.spending import Amounts
from search.config import OPTIMIZER_TRAITS, AutoLrsConfig, Budget
from search.curves.curve_summary import OPENING_LOSSES, usable_median
from search.curves.forecast import has_diverged
from search.space import SearchSpace
from search.types import Forecast, Observation

#: Without limits of its own the search covers a factor of so much on both sides of its centre.
REACH = 100.0
#: Stages no longer grow after so many: no float holds what comes later.
LAST_GROWTH = 300
#: What diverged is worse than the worst forecast by at least this share of it.
LEAST_PENALTY = 0.1


def rate_range(config: AutoLrsConfig, space: SearchSpace) -> tuple[float, float]:
    """Return the lowest and the highest rate that is tried: as given, else two decades around guess x centre."""
    if config.stated_rates is not None:
        return config.stated_rates
    centre = space.guess.learning_rate * OPTIMIZER_TRAITS[space.optimizer].centre
    return max(space.min_learning_rate, centre / REACH), min(space.max_learning_rate, centre * REACH)


def length(config: AutoLrsConfig, stage: int) -> float:
    """Return how many times as long as the first stage `stage` is."""
    return float(min(config.growth ** min(stage, LAST_GROWTH), config.max_growth))


def stage_share(config: AutoLrsConfig, stage: int) -> float:
    """Return which share of the budget the commit of `stage` takes, if `num_stages` and their searches fill it."""
    first = 1 / sum(length(config, index) for index in range(config.num_stages))
    return first * length(config, stage) / (1 + config.num_probes * config.probe_fraction)


def stage_amounts(config: AutoLrsConfig, budget: Budget, stage: int) -> Amounts:
    """Return the length tau of the commit of `stage`: in steps if the first one's is given, else of the budget."""
    if config.first_stage is not None:
        return {"steps": config.first_stage * length(config, stage)}
    return spending.scale(spending.caps(budget), stage_share(config, stage))


def probe_amounts(config: AutoLrsConfig, budget: Budget, stage: int) -> Amounts:
    """Return the length of each probe of `stage`: a share of tau, but enough steps for a forecast."""
    planned = spending.scale(stage_amounts(config, budget, stage), config.probe_fraction)
    return {unit: max(amount, MIN_LOSSES) if unit == "steps" else amount for unit, amount in planned.items()}


def published_forecast(config: AutoLrsConfig, observation: Observation) -> Forecast:
    """Return the loss after the stage's commit as forecast from a probe of it; if that diverged, the loss it had."""
    losses = observation.losses
    level = usable_median(losses[:OPENING_LOSSES])
    tolerance = TOLERANCE * abs(level or 0.0)
    if observation.diverged or has_diverged(losses, level=level, tolerance=tolerance):
        seen = usable_median(losses) or 0.0
        return Forecast(mean=seen, std=abs(seen), status="diverged")
    horizon = len(losses) / config.probe_fraction
    found = extrapolate(losses, horizon, passes=config.forecast_passes, outliers=config.outlier_fraction)
    status = "ok" if len(losses) >= MIN_LOSSES else "too_short"
    return Forecast(mean=found.mean, std=found.std, status=status)


def told_losses(forecasts: Sequence[Forecast]) -> list[float]:
    """Return what the search is told: the forecasts, and for what diverged a worse one than the worst of them."""
    finite = [forecast.mean for forecast in forecasts if forecast.status != "diverged"]
    if not finite:
        return [0.0] * len(forecasts)
    worst = max(finite)
    spread = max((worst - min(finite)) / 2, float(np.std(finite)), LEAST_PENALTY * abs(worst))
    return [worst + spread if each.status == "diverged" else each.mean for each in forecasts]
