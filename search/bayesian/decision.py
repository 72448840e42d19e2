"""Choose a stage's values from its probes, and say why: pure functions."""

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.bayesian import reasons
from search.bayesian.awakening import awakening_start, may_awaken
from search.bayesian.exchange_shortlist import promising
from search.bayesian.probe_costs import MIN_COARSE
from search.bayesian.reasons import name, number
from search.bayesian.regions import bounding_box
from search.bayesian.rewards import (
    Evidence,
    any_sound,
    diverged_values,
    evidence,
    makes_progress,
    scores,
    start_loss,
    surrogate_of,
)
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import FINAL_RUNG, Score, Stage, is_barred
from search.bayesian.usual_rate import begins_as_usual, trusted_rate, usual_rate
from search.bayesian.wide_optimum import (
    at_best_option,
    coarse_pick,
    harmless_rate,
    interpolated_peak,
    length_factor,
    parabola_peak,
    plateau_of,
    run_steps,
    shows_progress,
    shows_too_little,
    steady_scores,
    usual_pick,
)
from search.config import SearchConfig
from search.surrogate.gaussian_process import NOISE_FLOOR
from search.surrogate.posterior import Fit
from search.types import Values

Array = NDArray[np.float64]

#: The factor of a rate that diverged on the committed line.
DIVERGED_FACTOR = 0.25
#: The factor of the lowest rate tried when every probe diverged.
ALL_DIVERGED_FACTOR = 0.5


class Choice(NamedTuple):
    """The chosen values of a stage. `posterior` has mean and standard deviation of each finite probe, by candidate."""

    values: Values
    reason: str
    probability: float | None = None
    posterior: dict[str, tuple[float, float]] = {}  # noqa: RUF012  (never mutated)
    fit: Fit | None = None  # None: there was too little for a surrogate


class Duel(NamedTuple):
    """The winner's index, its probability to beat the incumbent (index 0), and its gain over it."""

    winner: int
    probability: float
    gain: float


def compare(means: Array, covariance: Array) -> Duel:
    """Compare the largest of the posterior `means` `(m,)` with the incumbent's, at index 0."""
    winner = int(np.argmax(means))
    if winner == 0:
        return Duel(winner=0, probability=0.5, gain=0.0)
    gain = float(means[winner] - means[0])
    variance = float(covariance[winner, winner] + covariance[0, 0] - 2 * covariance[winner, 0])
    probability = 0.5 * math.erfc(-gain / math.sqrt(2 * max(variance, 1e-18)))
    return Duel(winner=winner, probability=probability, gain=gain)


def may_switch(verdict: Duel, config: SearchConfig, *, is_trusted: bool = True) -> bool:
    """Return whether the winner is surely and sufficiently better than a trusted incumbent, or better than another."""
    if verdict.winner == 0 or not is_trusted:
        return verdict.winner != 0 and verdict.gain > 0
    return verdict.probability >= config.switch_probability and verdict.gain >= config.min_gain


def choose(setup: SearchSetup, stage: Stage) -> Choice:
    """Choose the open stage's values from its finished probes."""
    choice = _as_pinned(setup, stage) if stage.is_pinned else _choose(setup, stage)
    remarks = reasons.remarks(setup, stage, choice.values, choice.fit)
    num_steps = ramp_steps(setup, stage)
    ramp = f"the rate rises to it over {num_steps} steps" if num_steps else ""
    return choice._replace(reason="; ".join(filter(None, [choice.reason, ramp, *remarks])))


def _as_pinned(setup: SearchSetup, stage: Stage) -> Choice:
    return Choice(
        stage.incumbent, f"{name(setup, stage.incumbent)}: the learning rate is pinned, so nothing is searched"
    )


def _choose(setup: SearchSetup, stage: Stage) -> Choice:
    if not stage.has_incumbent:
        return _choose_opening(setup, stage)
    if stage.lacks_control:
        return _choose_without_control(setup, stage)
    if not stage.probes:
        stays = "without a search" if stage.note else "stays"  # the note says why the rate has changed
        return Choice(stage.incumbent, f"{name(setup, stage.incumbent)} {stays}: {reasons.unsearched(setup, stage)}")
    if not any_sound(stage):
        return _choose_after_divergence(setup, stage)
    return _choose_local(setup, stage)


def _choose_opening(setup: SearchSetup, stage: Stage) -> Choice:
    """Choose a run's first values: the usual rate, or by the wide search if its probes show progress, or the guess."""
    if begins_as_usual(setup, stage):
        told = usual_pick(setup, stage)
        values = setup.opening.model_copy(update={"learning_rate": setup.clip_rate(told)})
        what = reasons.out_of_range(setup, told) or f"usual {reasons.of_model(setup)}"
        has_no_room = stage.steered.search_asked or stage.candidates  # for the search that a person or the past wants
        why = f": {reasons.too_few_probes(setup, stage, MIN_COARSE)}" if has_no_room else ", so nothing is probed"
        return Choice(values, f"{name(setup, values)} is {what}{why}")
    if len(stage.probes) < MIN_COARSE:
        return _keep_guess(setup, stage, reasons.too_few_probes(setup, stage, MIN_COARSE))
    if not any_sound(stage):
        return _choose_after_divergence(setup, stage)
    if not any_sound(stage.decisive):
        return _choose_after_divergence(setup, stage.decisive)
    if not knows_rate(setup, stage):
        return _choose_blindly(setup, stage)
    finalists = stage.at(FINAL_RUNG).probes  # a single one says nothing about the rate
    return _choose_wide(setup, stage) if len(finalists) > 1 else _choose_by_coarse_probes(setup, stage.at(0))


def _choose_without_control(setup: SearchSetup, stage: Stage) -> Choice:
    """Choose the exchange that suits the link, if a probe shows that it trains: the incumbent's probe was too slow."""
    option = promising(setup, stage)
    sound = [score.values for score in scores(stage) if score.reward is not None and score.values.option == option]
    used = name(setup, stage.incumbent)
    if option is None or not sound:
        return Choice(stage.incumbent, f"{used} stays: its own probe took too long to compare with")
    reason = f"{name(setup, sound[0])} suits the link as it has become: a probe of {used} took too long"
    return Choice(sound[0], reason)


def knows_rate(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether the wide search tells rates apart, or a usual rate may be trusted."""
    return not shows_nothing(stage) or trusted_rate(setup, stage.at(0)) is not None


def shows_nothing(stage: Stage) -> bool:
    """Return whether the wide search does not tell rates apart: all train alike, or not at all."""
    if stage.has_incumbent or len(stage.probes) < MIN_COARSE or not any_sound(stage.decisive):
        return False
    return not (shows_progress(stage.at(0)) or shows_progress(stage.decisive))


def _choose_blindly(setup: SearchSetup, stage: Stage) -> Choice:
    """Begin at a rate that is surely not too high, if it may rise until something is learned; else keep the guess."""
    why = "no probe trained better than that of the lowest rate"
    if not awakens(setup, stage):
        return _keep_guess(setup, stage, why)
    rate = awakening_start(setup, harmless_rate(stage.at(0)))
    values = setup.opening.model_copy(update={"learning_rate": rate})
    return Choice(values, f"{name(setup, values)}, rising until something is learned: {why}")


def awakens(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether the commit after the wide search begins at a low rate, and rises until something is learned."""
    return may_awaken(setup, stage) and not knows_rate(setup, stage)


def ramp_steps(setup: SearchSetup, stage: Stage) -> int:
    """Return the steps in which the rate rises to the one that the wide search found; 0 if it found none."""
    is_searched = not stage.has_incumbent and len(stage.probes) >= MIN_COARSE and any_sound(stage.decisive)
    is_found = begins_as_usual(setup, stage) or (is_searched and knows_rate(setup, stage))
    return setup.ramp_steps(run_steps(setup, stage)) if is_found else 0


def _keep_guess(setup: SearchSetup, stage: Stage, why: str) -> Choice:
    """Keep the guess unless a probe shows that it diverges or does harm: the probes do not tell rates apart."""
    opening, diverged = setup.opening, diverged_values(stage)
    if is_barred(opening, diverged):
        finite = [(score.reward, score.values) for score in scores(stage) if score.reward is not None]
        if not finite:
            return _choose_after_divergence(setup, stage)
        _, best = max(finite, key=itemgetter(0))
        return Choice(best, f"{name(setup, best)}, the best probe's: the guess {name(setup, opening)} diverged")
    is_searched = len(stage.probes) >= MIN_COARSE and any_sound(stage.at(0))
    harmless = harmless_rate(stage.at(0)) if is_searched else opening.learning_rate
    if opening.learning_rate > harmless:
        values = opening.model_copy(update={"learning_rate": harmless})
        return Choice(values, f"{name(setup, values)}, the highest rate that did no harm: {why}")
    return Choice(opening, f"the guess {name(setup, opening)} stays: {why}")


def _choose_after_divergence(setup: SearchSetup, stage: Stage) -> Choice:
    tried = [probe.candidate.values.learning_rate for probe in stage.probes]
    start = min([stage.incumbent.learning_rate, *tried] if stage.has_incumbent else tried)
    rate = max(setup.space.min_learning_rate, start * ALL_DIVERGED_FACTOR)
    values = stage.incumbent.model_copy(update={"learning_rate": rate})
    what = f"half of {number(start)}" if rate < start else "the lowest rate that may be used"
    reason = f"{name(setup, values)}, {what}: all {len(tried)} probes diverged"
    return Choice(values, reason)


# -- a later stage ---------------------------------------------------------------------------------


def _choose_local(setup: SearchSetup, stage: Stage) -> Choice:
    found = scores(stage)
    order = [index for index, score in enumerate(found) if score.reward is not None]
    fit = _fit(setup, stage)
    means, covariance = _believe(fit, evidence(stage), [found[index] for index in order])
    ids = [probe.candidate.id for probe in stage.probes]
    posterior = _posterior([ids[index] for index in order], means, covariance)
    verdict = compare(means, covariance)
    winner = order[verdict.winner]
    if found[0].reward is None:
        values = found[order[int(np.argmax(means))]].values
        reason = f"{name(setup, values)} replaces the incumbent {name(setup, stage.incumbent)}, whose probe diverged"
        return Choice(values, reason, None, posterior, fit)
    # After a failure the incumbent is a fallback, so a rival need not be surely better.
    is_trusted = stage.line.before is None or not stage.line.before.has_failed
    has_signal = _has_signal(stage)
    if (has_signal or not is_trusted) and may_switch(verdict, setup.config, is_trusted=is_trusted):
        reason = reasons.switch(setup, stage, winner, verdict.probability)
        return Choice(found[winner].values, reason, verdict.probability, posterior, fit)
    reason = reasons.keep(
        setup, stage, winner, probability=verdict.probability, gain=verdict.gain, has_signal=has_signal
    )
    return Choice(stage.incumbent, reason, verdict.probability, posterior, fit)


def _has_signal(stage: Stage) -> bool:
    """Return whether a probe got below its starting loss: if none did, noise alone picks the best."""
    start, judged = start_loss(stage), zip(stage.probes, scores(stage), strict=True)
    sound = [probe.reading for probe, score in judged if score.reward is not None]
    return start is None or any(makes_progress(reading, start=start) for reading in sound)


def _posterior(ids: Sequence[str], means: Array, covariance: Array) -> dict[str, tuple[float, float]]:
    stds = np.sqrt(np.maximum(0.0, np.diag(covariance)))
    return {each: (float(means[row]), float(stds[row])) for row, each in enumerate(ids)}


def _fit(setup: SearchSetup, stage: Stage) -> Fit | None:
    known = evidence(stage).values
    if not known:
        return None
    box = bounding_box(setup, known)
    surrogate = surrogate_of(setup, stage, box)
    return None if surrogate is None else Fit(surrogate, box)


def _believe(fit: Fit | None, known: Evidence, finite: Sequence[Score]) -> tuple[Array, Array]:
    """Return mean `(m,)` and covariance `(m, m)` of the rewards of the `finite` scores, by the surrogate if any."""
    if fit is not None:
        return fit.surrogate.joint(np.array([fit.box.to_unit(score.values) for score in finite]))
    rewards, variances = (np.array(part[: len(finite)]) for part in (known.rewards, known.variances))  # own come first
    floor = (NOISE_FLOOR * float(np.std(rewards))) ** 2
    return rewards, np.diag(np.maximum(variances, floor))


# -- the wide search -------------------------------------------------------------------------------


def _choose_by_coarse_probes(setup: SearchSetup, stage: Stage) -> Choice:
    """Choose the learning rate alone; other values are those that the run opens with."""
    rate = setup.clip_rate(coarse_pick(setup, stage) * length_factor(setup, stage))
    values = setup.opening.model_copy(update={"learning_rate": rate})
    probes = reasons.from_probes(stage)
    if not shows_progress(stage) or shows_too_little(setup, stage):
        told = trusted_rate(setup, stage)
        what = "the highest rate that did no harm"
        if told is not None:
            what = reasons.out_of_range(setup, told) or f"what is usual {reasons.of_model(setup)}"
        clearly = "clearly " if shows_progress(stage) else ""
        why = f"no rate trained {clearly}better than the lowest one"
        return Choice(values, f"{name(setup, values)}, by {what}: {why}, {probes}")
    low, high = plateau_of(stage)
    middle = math.sqrt(low * high)
    factor = values.learning_rate / middle
    source = f"{factor:.2g} x the middle of the plateau from {number(low)} to {number(high)}"
    usual = usual_rate(setup, stage)
    drawn = "" if usual is None else f", drawn towards {number(usual)}, which is usual {reasons.of_model(setup)}"
    return Choice(values, f"{name(setup, values)}: {source}{drawn}, {probes}")


def _choose_wide(setup: SearchSetup, stage: Stage) -> Choice:
    """Choose by the finalists. The rate is half-way (in logarithms) between their best and that of the coarse probes.

    If finalists also differ in the level, they cannot tell both apart, and the rate is that of the coarse probes. All
    probes are short, so a long run may get a lower rate.
    """
    finalists, pick = stage.decisive, coarse_pick(setup, stage.at(0))
    fit = _fit(setup, finalists)
    best, how, posterior = wide_best(setup, finalists, fit)
    is_told = setup.space.axis("level") is None
    asked, longer = math.sqrt(best.learning_rate * pick) if is_told else pick, length_factor(setup, stage.at(0))
    rate = setup.clip_rate(asked * longer)
    between = best.model_copy(update={"learning_rate": rate})
    values = best if is_barred(between, diverged_values(finalists)) else between
    length = f", x {longer:.2g} for a run of this length" if longer < 1 else ""
    why = f"{how} {number(best.learning_rate)} {reasons.from_probes(finalists)}"
    if values is between:
        of_rest = (
            f"the rate of the coarse probes, {number(pick)}{length}; the rest is {how} {reasons.from_probes(finalists)}"
        )
        why = f"{why}, half-way to {number(pick)} of the coarse ones{length}" if is_told else of_rest
    return Choice(values, f"{name(setup, values)}: {why}", None, posterior, fit)


def wide_best(setup: SearchSetup, stage: Stage, fit: Fit | None) -> tuple[Values, str, dict[str, tuple[float, float]]]:
    """Return the values with the highest expected reward in the probed range, their origin, and the probes' posterior.

    The values are interpolated: the best probe itself would jump by a cell of the grid between seeds. Rewards rise
    slowly with the rate and fall steeply, which a posterior with one length scale cannot follow. So if the rate alone
    is searched, and no past jobs inform it, a parabola through the best three probes is used. Without a surrogate and
    a vertex it is the best probe.
    """
    judged = zip(stage.probes, scores(stage), strict=True)
    finite = [(probe.candidate.id, score) for probe, score in judged if score.reward is not None]
    tried = [score.values for _, score in finite]
    barred, peak = diverged_values(stage), parabola_peak(setup, stage)
    if fit is None:
        best = max(steady_scores(stage), key=lambda score: -math.inf if score.reward is None else score.reward).values
        if peak is None:
            return best, "the best probe's", {}
        return peak.model_copy(update={"option": best.option}), "the interpolated minimum", {}
    surrogate, box = fit
    at, covariance = surrogate.joint(np.array([box.to_unit(score.values) for _, score in finite]))
    posterior = _posterior([each for each, _ in finite], at, covariance)
    if peak is None:
        peak = interpolated_peak(surrogate, box, tried, barred=barred)
    else:
        peak = at_best_option(surrogate, box, peak, tried, barred=barred)
    if peak is None:
        return tried[int(np.argmax(at))], "the best probe's", posterior
    return peak, "the interpolated minimum", posterior
