"""What a stage's probes decide, and why: pure functions."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.config import BoConfig
from search.evidence import Evidence, diverged_values, evidence, scores
from search.gaussian_process import NOISE_FLOOR
from search.peak import interpolated_peak
from search.posterior import Fit
from search.space import Axis, Box
from search.stage import Problem, Score, Stage
from search.types import Values

Array = NDArray[np.float64]

#: What an incumbent that diverged on the committed line is multiplied by.
DIVERGED_FACTOR = 0.25
#: What the incumbent is multiplied by when every probe diverged.
ALL_DIVERGED_FACTOR = 0.5


class Choice(NamedTuple):
    """A stage's outcome; the posterior of each finite probe by its index among the stage's probes."""

    values: Values
    reason: str
    probability: float | None = None
    posterior: dict[int, tuple[float, float]] = {}  # noqa: RUF012  (never mutated)
    fit: Fit | None = None  # None: there was too little for a surrogate


class Verdict(NamedTuple):
    """Which of the compared values wins, and by how much over the incumbent (index 0)."""

    winner: int
    probability: float
    gain: float


def trust_region(problem: Problem, incumbent: Values, *, may_rise: bool) -> Box:
    """Return where a later stage looks: a factor around `incumbent`, within the space."""
    config, space = problem.config, problem.space
    rate = incumbent.learning_rate
    high = min(space.max_learning_rate, rate * (config.max_up if may_rise else 1.0))
    low = max(space.min_learning_rate, rate * config.max_down)
    rates = Axis(name="learning_rate", low=min(low, high), high=high)
    others = (axis.around(getattr(incumbent, axis.name), config.max_level_move) for axis in space.axes)
    return Box(axes=(rates, *others))


def bounding_box(problem: Problem, values: Sequence[Values], region: Box | None = None) -> Box:
    """Return the smallest box of learning rates around `values` and `region`, over the whole range of other axes."""
    rates = [value.learning_rate for value in values] + list(region.learning_rate if region else ())
    low, high = min(rates), max(rates)
    if high < 1.01 * low:
        low, high = low / 2, high * 2  # a cube needs a width
    return Box(axes=(Axis(name="learning_rate", low=low, high=high), *problem.space.axes))


def compare(means: Array, covariance: Array) -> Verdict:
    """Judge the values with the largest of the posterior `means` `(m,)` against those at index 0."""
    winner = int(np.argmax(means))
    if winner == 0:
        return Verdict(winner=0, probability=0.5, gain=0.0)
    gain = float(means[winner] - means[0])
    variance = float(covariance[winner, winner] + covariance[0, 0] - 2 * covariance[winner, 0])
    probability = 0.5 * math.erfc(-gain / math.sqrt(2 * max(variance, 1e-18)))
    return Verdict(winner=winner, probability=probability, gain=gain)


def may_switch(verdict: Verdict, config: BoConfig) -> bool:
    """Whether the winner is surely enough, and enough, better than the incumbent."""
    return verdict.winner != 0 and verdict.probability >= config.switch_probability and verdict.gain >= config.min_gain


def choose(problem: Problem, stage: Stage) -> Choice:
    """Choose the open stage's values from its finished probes."""
    choice = _choose(problem, stage)
    said = [choice.reason, stage.note, _prior_note(stage, choice.fit), choice.fit.surrogate.note if choice.fit else ""]
    return choice._replace(reason="; ".join(part for part in said if part))


def _choose(problem: Problem, stage: Stage) -> Choice:
    if not stage.probes:
        return Choice(stage.incumbent, f"{_name(stage.incumbent)} stays: there is no room for probes")
    if all(score.reward is None for score in scores(stage)):
        return _choose_after_divergence(problem, stage)
    return _choose_wide(problem, stage) if stage.index == 0 else _choose_local(problem, stage)


def _choose_after_divergence(problem: Problem, stage: Stage) -> Choice:
    tried = [probe.candidate.values.learning_rate for probe in stage.probes]
    start = min(stage.incumbent.learning_rate, *tried) if stage.index == 0 else stage.incumbent.learning_rate
    rate = max(problem.space.min_learning_rate, start * ALL_DIVERGED_FACTOR)
    values = stage.incumbent.model_copy(update={"learning_rate": rate})
    reason = f"{_name(values)}, half of {_number(start)}: all {len(tried)} probes diverged"
    return Choice(values, reason)


# -- a later stage ---------------------------------------------------------------------------------


def _choose_local(problem: Problem, stage: Stage) -> Choice:
    found = scores(stage)
    order = [index for index, score in enumerate(found) if score.reward is not None]
    fit = _fit(problem, stage)
    means, covariance = _believe(fit, evidence(stage), [found[index] for index in order])
    posterior = _posterior(order, means, covariance)
    verdict = compare(means, covariance)
    winner = order[verdict.winner]
    if found[0].reward is None:
        values = found[order[int(np.argmax(means))]].values
        reason = f"{_name(values)} replaces the incumbent {_name(stage.incumbent)}, whose probe diverged"
        return Choice(values, reason, None, posterior, fit)
    if may_switch(verdict, problem.config):
        reason = _switch_reason(stage, winner, verdict)
        return Choice(found[winner].values, reason, verdict.probability, posterior, fit)
    reason = _keep_reason(problem, stage, winner, verdict)
    return Choice(stage.incumbent, reason, verdict.probability, posterior, fit)


def _posterior(order: Sequence[int], means: Array, covariance: Array) -> dict[int, tuple[float, float]]:
    stds = np.sqrt(np.maximum(0.0, np.diag(covariance)))
    return {index: (float(means[row]), float(stds[row])) for row, index in enumerate(order)}


def _fit(problem: Problem, stage: Stage) -> Fit | None:
    known = evidence(stage)
    box = bounding_box(problem, known.values)
    surrogate = known.surrogate(box, problem.opening)
    return None if surrogate is None else Fit(surrogate, box)


def _believe(fit: Fit | None, known: Evidence, finite: Sequence[Score]) -> tuple[Array, Array]:
    """Return mean `(m,)` and covariance `(m, m)` of the rewards of the `finite` scores, by GP if there is one."""
    if fit is not None:
        return fit.surrogate.joint(np.array([fit.box.to_unit(score.values) for score in finite]))
    rewards = known.rewards[: len(finite)]  # the stage's own come first
    floor = (NOISE_FLOOR * float(np.std(rewards))) ** 2
    return rewards, np.diag(np.maximum(known.variances[: len(finite)], floor))


def _switch_reason(stage: Stage, winner: int, verdict: Verdict) -> str:
    name = _name(stage.probes[winner].candidate.values)
    losses = f"loss {_tail(stage, winner)} against {_tail(stage, 0)} after the probe"
    return f"{name} beats the incumbent {_name(stage.incumbent)} with P={verdict.probability:.2f} ({losses})"


def _keep_reason(problem: Problem, stage: Stage, winner: int, verdict: Verdict) -> str:
    name, config = _name(stage.incumbent), problem.config
    if verdict.winner == 0:
        rivals = len(stage.probes) - 1
        return f"{name} stays: none of {rivals} others did better (loss {_tail(stage, 0)} after the probe)"
    rival = _name(stage.probes[winner].candidate.values)
    if verdict.probability < config.switch_probability:
        sure = f"P={verdict.probability:.3f}, less than {config.switch_probability:g}"
        return f"{name} stays: {rival} is better only with {sure}"
    gain = f"{100 * verdict.gain:.2g} %, less than {100 * config.min_gain:g} %"
    return f"{name} stays: {rival} gains only {gain}"


# -- the wide search -------------------------------------------------------------------------------


def _choose_wide(problem: Problem, stage: Stage) -> Choice:
    fit = _fit(problem, stage)
    best, how, posterior = wide_best(problem, stage, fit)
    space, factor = problem.space, problem.traits.pick
    rate = min(space.max_learning_rate, max(space.min_learning_rate, best.learning_rate * factor))
    values = best.model_copy(update={"learning_rate": rate})
    rates = [probe.candidate.values.learning_rate for probe in stage.probes]
    share = "" if factor == 1 else f" x {factor:g}"
    reason = (
        f"{_name(values)}: {how} {_number(best.learning_rate)}{share}, from {len(rates)} probes "
        f"between {_number(min(rates))} and {_number(max(rates))}"
    )
    return Choice(values, reason, None, posterior, fit)


def wide_best(problem: Problem, stage: Stage, fit: Fit | None) -> tuple[Values, str, dict[int, tuple[float, float]]]:
    """Return the values with the highest posterior mean inside the probed range, how, and the probes' posterior.

    Interpolated on every axis: the grid's best probe would jump by a cell between seeds. With fewer than 4 finite
    probes it is the best probe.
    """
    found = scores(stage)
    finite = [(index, score) for index, score in enumerate(found) if score.reward is not None]
    if fit is None:
        best = max(finite, key=lambda item: item[1].reward or -math.inf)[1].values
        return best, "the best probe's", {}
    surrogate, box = fit
    at, covariance = surrogate.joint(np.array([box.to_unit(score.values) for _, score in finite]))
    posterior = _posterior([index for index, _ in finite], at, covariance)
    tried = [score.values for _, score in finite]
    peak = interpolated_peak(surrogate, box, tried, barred=diverged_values(stage))
    if peak is None:
        return tried[int(np.argmax(at))], "the best probe's", posterior
    return peak, "the interpolated minimum at", posterior


# -- words -----------------------------------------------------------------------------------------


def _number(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.3g}"


def _name(values: Values) -> str:
    level = [] if values.level is None else [f"level {_number(values.level)}"]
    further = [f"{name.replace('_', ' ')} {_number(value)}" for name, value in values.further.items()]
    others = ", ".join(level + further)
    return f"{_number(values.learning_rate)}{others and f' at {others}'}"


def _prior_note(stage: Stage, fit: Fit | None) -> str:
    num_jobs = len(stage.prior.searches)
    weight = 0.0 if fit is None else fit.surrogate.expected.weight
    return f"prior from {num_jobs} job{'s' * (num_jobs > 1)}, weight {weight:.2f}" if num_jobs else ""


def _tail(stage: Stage, index: int) -> str:
    losses = stage.probes[index].reading.losses
    half = losses[len(losses) // 2 :]
    return _number(sum(half) / len(half))
