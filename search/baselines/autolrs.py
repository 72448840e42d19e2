"""AutoLRS (Jin et al., ICLR 2021) as published: at every stage a serial search over the learning rate alone.

Before each stage of tau steps, `num_probes` probes of tau / 10 steps start from the same state. The smallest forecast
of the loss after tau steps wins, and the next stage knows nothing of it.

The method is as published, but for what made it fail: a probe that diverged counts as somewhat worse than the others,
not as a million; there always is a forecast; every step of a probe has the probe's rate, and all probes see the same
batches; a budget that ends inside a search leaves the committed line.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from search.baselines.extrapolation import MIN_LOSSES, extrapolate
from search.baselines.lower_bound import lowest_bound
from search.bayesian.rewards import TOLERANCE
from search.budget import spending
from search.budget.spending import Amounts
from search.config import AutoLrsConfig, Budget
from search.curves.curve_summary import OPENING_LOSSES, usable_median
from search.curves.forecast import has_diverged, size_of
from search.optimizer_traits import OPTIMIZER_TRAITS
from search.protocol import Strategy
from search.space import Axis, SearchSpace
from search.types import (
    Allowance,
    Candidate,
    Decision,
    Forecast,
    Observation,
    ProbeReport,
    Spent,
    Tax,
    Value,
    Values,
)

Array = NDArray[np.float64]

#: Without a stated range, the search covers this factor on both sides of its centre.
REACH = 100.0
#: Stages stop growing after this many: no float holds later lengths.
LAST_GROWTH = 300
#: A diverged probe counts as worse than the worst forecast by at least this share of it.
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


def published_forecast(config: AutoLrsConfig, observation: Observation, tau: Amounts) -> Forecast:
    """Return the loss after a commit of `tau` as forecast from a probe of its stage; if that diverged, its own loss."""
    losses = observation.losses
    level = usable_median(losses[:OPENING_LOSSES])
    tolerance = TOLERANCE * abs(level or 0.0)
    if observation.diverged or has_diverged(losses, start=level, tolerance=tolerance):
        seen = usable_median(losses) or 0.0
        return Forecast(mean=seen, std=abs(seen), status="diverged")
    horizon = _steps_of(config, observation, tau)
    found = extrapolate(losses, horizon, passes=config.forecast_passes, outliers=config.outlier_fraction)
    status = "ok" if len(losses) >= MIN_LOSSES else "too_short"
    return Forecast(mean=found.mean, std=found.std, status=status)


def _steps_of(config: AutoLrsConfig, observation: Observation, tau: Amounts) -> float:
    """Return how many steps a commit of `tau` has if each takes what a step of the probe took.

    The probe's length does not tell it: one may be longer than planned, for a forecast, or end with the budget.
    """
    num_steps = len(observation.losses)
    probe = {"steps": num_steps, "seconds": sum(observation.step_seconds), "bytes": observation.bytes_sent}
    known = [num_steps * amount / probe[unit] for unit, amount in tau.items() if probe[unit]]
    return min(known, default=num_steps / config.probe_fraction)


def told_losses(forecasts: Sequence[Forecast]) -> list[float]:
    """Return the losses that the search learns from: the forecasts, and a worse one for probes that diverged."""
    finite = [forecast.mean for forecast in forecasts if forecast.status != "diverged"]
    if not finite:
        return [0.0] * len(forecasts)
    worst = max(finite)
    spread = max((worst - min(finite)) / 2, float(np.std(finite)), LEAST_PENALTY * size_of(worst))
    return [worst + spread if each.status == "diverged" else each.mean for each in forecasts]


#: The factor of the lowest rate when every probe diverged.
ALL_DIVERGED_FACTOR = 0.5


class Tried(Value):
    """A finished probe."""

    candidate: Candidate
    forecast: Forecast

    @property
    def has_diverged(self) -> bool:
        return self.forecast.status == "diverged"


class Round(BaseModel):
    """The open stage: the whole state that a restored strategy needs."""

    model_config = ConfigDict(frozen=True)

    index: int = 0
    rate: float  # of the stage before
    opened: Spent = Spent()
    spent: Spent = Spent()
    searched: Spent = Spent()  # by the probes of the stages before
    tried: tuple[Tried, ...] = ()
    running: Candidate | None = None
    decision: Decision | None = None


class AutoLrs(Strategy):
    """A strategy that probes one candidate at a time. It runs each to its end, and ignores steers, as published."""

    kind: ClassVar[str] = "autolrs"

    def __init__(self, space: SearchSpace, config: AutoLrsConfig, seed: int, *, budget: Budget) -> None:
        """Begin a run at its first step.

        Raises:
            ValueError: the space has an axis besides the rate, which this procedure does not know; it names an unknown
                optimizer, or a guess outside its range.
        """
        space.check_guess()
        if space.axes:
            names = [axis.name for axis in space.axes]
            raise ValueError(f"`axes` must be (): only the learning rate is searched, got {names}.")
        self._space, self._config, self._seed, self._budget = space, config, seed, budget
        self._range = rate_range(config, space)
        self._lowest_rate = space.min_learning_rate if config.stated_rates is None else self._range[0]
        low, high = self._range
        self._round = Round(rate=min(high, max(low, space.guess.learning_rate)))  # which is used if no probe trains

    def ask(self) -> Candidate | None:
        """Return the next probe, or None when the stage has seen enough, or while another one runs.

        Raises:
            ValueError: the stage is decided and its commit is not told yet.
        """
        now = self._round
        if now.decision is not None:
            raise ValueError(f"stage {now.index} is decided: `tell` its commit before the next `ask`.")
        if now.running is not None or len(now.tried) >= self._config.num_probes or not self._has_room():
            return None
        candidate = Candidate(
            id=f"{now.index}-{len(now.tried)}",
            stage=now.index,
            values=self._with_rate(self._next_rate()),
            allowance=spending.allowance(self._next_amounts(), min_steps=MIN_LOSSES),
            origin="acquisition" if now.tried else "random",
        )
        self._round = now.model_copy(update={"running": candidate})
        return candidate

    def tell(self, observation: Observation) -> None:
        """Record what the probe, or the commit, measured; a commit closes the stage.

        Raises:
            ValueError: no such probe is running, or no commit is.
        """
        now = self._round
        if observation.candidate_id is None:
            if now.decision is None:
                raise ValueError(f"stage {now.index} has no commit yet: `decide` first.")
            rate, spent = now.decision.values.learning_rate, observation.spent
            if observation.diverged:
                rate = max(self._lowest_rate, rate * ALL_DIVERGED_FACTOR)
            self._round = Round(index=now.index + 1, rate=rate, opened=spent, spent=spent, searched=self._searched())
            return
        if now.running is None or now.running.id != observation.candidate_id:
            running = now.running and now.running.id
            raise ValueError(
                f"`candidate_id` must be that of the probe, {running!r}, got {observation.candidate_id!r}."
            )
        tried = Tried(
            candidate=now.running, forecast=published_forecast(self._config, observation, self._stage_amounts())
        )
        update = {"tried": (*now.tried, tried), "running": None, "spent": observation.spent}
        self._round = now.model_copy(update=update)

    def decide(self, held: Collection[str] = ()) -> Decision:
        """Choose the rate of the smallest forecast; asked again, the answer is the same."""
        if self._round.decision is None:
            self._round = self._round.model_copy(update={"decision": self._decide()})
        assert self._round.decision is not None
        return self._round.decision

    def values(self, spent: Spent) -> Values:
        """Return the stage's values: they do not decay."""
        decision = self._round.decision
        return self._with_rate(self._round.rate) if decision is None else decision.values

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as JSON-compatible data."""
        parts = {"space": self._space, "budget": self._budget, "config": self._config, "round": self._round}
        dumped = {name: json.loads(part.model_dump_json()) for name, part in parts.items()}  # NaN is a string there
        return {"kind": self.kind, "seed": self._seed, **dumped}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Restore from `state_dict`'s answer."""
        space, budget = SearchSpace.model_validate(state["space"]), Budget.model_validate(state["budget"])
        restored = cls(space, AutoLrsConfig.model_validate(state["config"]), state["seed"], budget=budget)
        restored._round = Round.model_validate(state["round"])
        return restored

    # -- the stage -----------------------------------------------------------------------------------

    def _searched(self) -> Spent:
        """Return what all probes of the run have spent."""
        now = self._round
        return spending.plus(now.searched, spending.minus(now.spent, now.opened))

    def _with_rate(self, rate: float) -> Values:
        return self._space.guess.model_copy(update={"learning_rate": rate})

    def _stage_amounts(self) -> Amounts:
        return stage_amounts(self._config, self._budget, self._round.index)

    def _probe_amounts(self) -> Amounts:
        return probe_amounts(self._config, self._budget, self._round.index)

    def _next_amounts(self) -> Amounts:
        """Return the length of the next probe; before steps have cost anything, with its share of the budget."""
        now, planned = self._round, self._probe_amounts()
        if now.spent.steps:
            return planned
        return {**spending.scale(spending.caps(self._budget), 1 / self._config.num_probes), **planned}

    def _has_room(self) -> bool:
        """Return whether the budget lasts for the search and some of the commit; once begun, for any step at all."""
        now = self._round
        left = spending.remaining(self._budget, now.spent)
        if now.tried:
            return all(amount > 0 for amount in left.values()) and self._is_affordable()
        search = spending.scale(self._probe_amounts(), self._config.num_probes)
        return all(search[unit] < left[unit] for unit in search.keys() & left.keys()) and self._is_affordable()

    def _is_affordable(self) -> bool:
        """Return whether the search fits into what is left, by what steps have cost so far.

        A probe has as many steps as a forecast needs, however little was planned for it. In a run's first search the
        first probe tells that; what later ones cost ends no search.
        """
        now, planned = self._round, self._probe_amounts()
        if not now.spent.steps or len(now.tried) > 1:
            return True
        left, num_probes = spending.remaining(self._budget, now.spent), self._config.num_probes - len(now.tried)
        cost = self._mean_step_cost()
        least = MIN_LOSSES if self._config.first_stage is None else planned["steps"]
        probe = {unit: max(planned.get(unit, 0.0), least * cost[unit]) for unit in left}
        return all(num_probes * probe[unit] < left[unit] for unit in left)

    def _mean_step_cost(self) -> Amounts:
        """Return what steps have cost so far, on average; nothing before the first one."""
        spent = self._round.spent
        return spending.scale(spending.amounts(self._budget, spent), 1 / spent.steps) if spent.steps else {}

    def _next_rate(self) -> float:
        now, (low, high) = self._round, self._range
        axis = Axis(name="learning_rate", low=low, high=high)
        if not now.tried:
            return axis.from_unit(float(np.random.default_rng((self._seed, now.index)).random()))
        points = np.array([axis.to_unit(each.candidate.values.learning_rate) for each in now.tried])
        losses = told_losses([each.forecast for each in now.tried])
        return axis.from_unit(float(lowest_bound(points, np.array(losses), kappa=self._config.kappa)))

    def _decide(self) -> Decision:
        now = self._round
        values, reason, forecast = self._choose()
        # A stage takes at least one step: else it would be opened again for ever.
        step, planned = self._mean_step_cost(), self._stage_amounts()
        ends = {unit: getattr(now.spent, unit) + max(step.get(unit, 0.0), amount) for unit, amount in planned.items()}
        whole = {
            unit: max(getattr(now.spent, unit) + math.ceil(step.get(unit, 1)), round(ends[unit]))
            for unit in ("steps", "bytes")
            if unit in ends
        }
        return Decision(
            stage=now.index,
            values=values,
            reason="; ".join(filter(None, [reason, "" if now.index else self._space.chosen_because])),
            switched=values.learning_rate != now.rate,
            forecast=forecast,
            commit_until=Allowance(**whole, seconds=ends.get("seconds")),
            probes=tuple(
                ProbeReport(
                    candidate=each.candidate,
                    forecast=each.forecast,
                    reward=None if each.has_diverged else -each.forecast.mean,
                )
                for each in now.tried
            ),
            search_seconds=now.spent.seconds - now.opened.seconds,
            search_steps=now.spent.steps - now.opened.steps,
            tax=Tax(budget_share=spending.fraction_spent(self._budget, self._searched()), cap_share=None),
        )

    def _choose(self) -> tuple[Values, str, Forecast | None]:
        now = self._round
        tau = " or ".join(f"{amount:.3g} {unit}" for unit, amount in self._stage_amounts().items())
        if not self._config.first_stage:  # then it is a share of the budget
            tau += f" ({100 * stage_share(self._config, now.index):.2g} % of the budget)"
        if not now.tried or not self._is_affordable():
            reason = f"{now.rate:.3g} stays: what is left of the budget is shorter than the search of a stage of {tau}"
            return self._with_rate(now.rate), reason, None
        finite = [each for each in now.tried if not each.has_diverged]
        if not finite:
            lowest = min(now.rate, *(each.candidate.values.learning_rate for each in now.tried))
            rate = max(self._lowest_rate, lowest * ALL_DIVERGED_FACTOR)
            what = f"half of {lowest:.3g}" if rate < lowest else "the lowest that may be used"
            reason = f"{rate:.3g}, {what}: all {len(now.tried)} probes diverged"
            return self._with_rate(rate), reason, None
        best = min(finite, key=lambda each: each.forecast.mean)
        values, forecast = best.candidate.values, best.forecast
        reason = (
            f"{values.learning_rate:.3g} has the smallest forecast, {forecast.mean:.3g}, of {len(now.tried)} probes "
            f"for a stage of {tau}"
        )
        return values, reason, forecast
