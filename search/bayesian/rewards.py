"""Turn losses into data for a surrogate: rewards, their variances, and a low reward for probes that diverged."""

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.bayesian.history import discounted
from search.bayesian.probe_costs import costly
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Probe, Score, Stage
from search.budget import spending
from search.curves.client_drift import as_averaged, client_drift
from search.curves.curve_summary import Reading, side_by_side, usable_median
from search.curves.faults import Probed
from search.curves.forecast import has_diverged, size_of, standard_error
from search.past_jobs.prior import NO_PRIOR, Prior
from search.past_jobs.transfer import expectation, worth_of_divergence
from search.space import Box
from search.surrogate.gaussian_process import Function
from search.surrogate.model import LEAST_POINTS, MIN_POINTS, AnySurrogate, fit
from search.types import Candidate, Values

Array = NDArray[np.float64]
_Kind = tuple[float | str | None, ...]  # the values that decide the cost of a step

#: A rise below this share of the run's first loss is never called a divergence.
TOLERANCE = 0.7
#: Two probes rise because of their batches if they do so alike, within this share, at rates this factor apart.
ALIKE, APART = 0.02, 1.9
#: The expected loss of reward at a level a decade away from the opening one, in standard deviations of the rewards.
STDS_PER_DECADE = 0.5
#: Probes whose shares of their allowances differ by no more than this factor count as equally long.
SAME_SHARE = 1.25
#: Steps whose costs differ by less, as a ratio, are compared one to one.
SAME_COST = 0.9
#: The weight of an exchange's probe; the rest is that of what the exchange is expected to teach.
PROBED_PART = 1 / 3
#: Fewer steps than this have no meaningful last half.
FEWEST_STEPS = 4
#: A probe of fewer steps is short.
SHORT = 12
#: The limit of a reward and of its error, as a multiple of the loss that it is relative to, which may be almost 0.
LARGEST_RATIO = 1e3


def opening_loss(readings: Sequence[Reading]) -> float | None:
    """Return the starting loss of a stage of which only probes are known: the median of their first losses."""
    return usable_median([loss for reading in readings for loss in reading.opening])


def start_loss(stage: Stage) -> float | None:
    """Return the loss at which `stage` started."""
    known = stage.line.start_loss
    return opening_loss([probe.reading for probe in stage.probes]) if known is None else known


Curves = tuple[tuple[float, ...], ...]


@lru_cache(maxsize=64)  # each look at a commit asks for its stage's probes
def is_diverged(reading: Reading, *, start: float | None, initial: float | None, beside: Curves = ()) -> bool:
    """Return whether a probe diverged, as its caller reported or its curve shows; `beside` are those of its stage."""
    return reading.diverged or _rises(reading.losses, start=start, initial=initial, beside=beside)


def _rises(losses: Sequence[float], *, start: float | None, initial: float | None, beside: Curves = ()) -> bool:
    known = initial if initial is not None else start
    tolerance = 0.0 if known is None else TOLERANCE * size_of(known, losses, *beside)
    return has_diverged(losses, start=start, tolerance=tolerance, beside=beside)


def _curves_about_zero(stage: Stage) -> Curves:
    """Return the curves of the stage's probes, which together tell the loss's size, if it passes zero; else none."""
    curves = tuple(each.losses for each in stage.readings.values())
    return curves if any(min(curve, default=0.0) < 0 for curve in curves) else ()


def has_blown_up(stage: Stage, reading: Reading, *, start: float | None) -> bool:
    """Return whether a probe of `stage`, which may still run, diverged because of its values.

    If its batches raise the loss at any rate, it must exceed the lowest rate's losses by twice the highest of them.
    """
    beside = _curves_about_zero(stage)
    if not is_diverged(reading, start=start, initial=stage.line.initial, beside=beside):
        return False
    shared = _rise_of_batches(stage, reading, start=start)
    if start is None or reading.diverged or not len(shared):
        return True
    losses = np.asarray(reading.losses)
    losses[: len(shared)] -= shared - start
    return has_diverged(losses.tolist(), start=start, tolerance=2 * float(np.abs(shared).max()))


def _rise_of_batches(stage: Stage, reading: Reading, *, start: float | None) -> Array:
    """Return the losses `(n,)` of the wide search's lowest rate, if they rise as those of the next one do; else none.

    They are those of the probe's steps. In later stages two rates that kill a model are alike, too.
    """
    seen = stage.readings | {reading.candidate_id: reading}
    rung = next(each.rung for each in stage.candidates if each.id == reading.candidate_id)
    peers = [each for each in stage.candidates if each.rung == rung and each.id in seen]
    if stage.has_incumbent or not stage.is_paired or len(peers) < 2:
        return np.zeros(0)
    lowest, second = sorted(peers, key=lambda each: each.values.learning_rate)[:2]
    num_shared = min(len(each.losses) for each in (seen[lowest.id], seen[second.id], reading))
    first, other = (np.asarray(seen[each.id].losses[:num_shared]) for each in (lowest, second))
    is_apart = second.values.learning_rate >= APART * lowest.values.learning_rate
    are_alike = is_apart and np.allclose(other, first, rtol=ALIKE, atol=0.0)
    rises = _rises(first.tolist(), start=start, initial=stage.line.initial)
    return first if are_alike and rises else np.zeros(0)


def scores(stage: Stage) -> tuple[Score, ...]:
    """Return the score of each finished probe of `stage`, in their order, among the probes of its own rung."""
    rungs = {rung: iter(_scores(stage.at(rung))) for rung in {probe.candidate.rung for probe in stage.probes}}
    return tuple(next(rungs[probe.candidate.rung]) for probe in stage.probes)


def fastest_option(stage: Stage) -> str | None:
    """Return the exchange whose probe got lowest at equal cost; None: none went well, or none compete."""
    start = start_loss(stage)
    sound = [each for each in stage.probes if not has_blown_up(stage, each.reading, start=start)]
    return _lowest(at_equal_cost(as_averages(stage, sound))).candidate.values.option if sound else None


def as_averages(stage: Stage, probes: Sequence[Probe]) -> list[Probe]:
    """Return `probes`. Where workers drift apart, the losses are those of their average instead of their own."""
    together = [
        each
        for each in probes
        if not (each.reading.averaged or each.reading.is_cut or each.candidate.alone)
        and each.reading.num_steps == len(each.reading.losses)  # else they are means of several steps
    ]
    found = []
    for probe in probes:
        seen = probe.reading
        if seen.averaged:
            as_one = (each.reading.losses for each in together if stage.is_paired and _saw_the_same(each, probe))
            beside = max(as_one, key=len, default=None)
            rise = client_drift(seen.losses, seen.averaged, beside)
            raised = as_averaged(seen.losses, seen.averaged, rise) if rise else seen.losses
            probe = probe._replace(reading=seen.model_copy(update={"losses": raised, "client_drift": rise}))
        found.append(probe)
    return found


def client_drifts(stage: Stage) -> dict[str, float]:
    """Return for each exchange under which workers drift apart the largest rise of a probe's losses."""
    start = start_loss(stage)
    sound = [each for each in stage.probes if not has_blown_up(stage, each.reading, start=start)]
    found = dict[str, float]()
    for candidate, reading in as_averages(stage, sound):
        if reading.client_drift:
            option = candidate.values.option or ""
            found[option] = max(reading.client_drift, found.get(option, 0.0))
    return found


def _saw_the_same(probe: Probe, other: Probe) -> bool:
    return probe.candidate.values.batch_size == other.candidate.values.batch_size


def any_sound(stage: Stage) -> bool:
    """Return whether a finished probe of `stage` did not diverge."""
    return any(score.reward is not None for score in scores(stage))


def _scores(stage: Stage) -> tuple[Score, ...]:
    """Return the scores of a stage whose probes are all of one rung.

    The reward is ln L0 - ln(mean loss of the probe's last half), with L0 the stage's starting loss, so it compares
    between stages. If a loss is not positive, the reward is (L0 - tail) / u, with u the size of their losses.

    The variance is that of the difference to the first probe, paired on the steps in both last halves if they saw the
    same batches. A probe that was cut short stays as far behind the first as it was at equal cost when it ended; its
    variance grows with the steps it missed. Of a probe that cost more than others, only the steps that they could have
    afforded count.
    """
    start = start_loss(stage)
    sound = [
        probe for probe in stage.probes if start is not None and not has_blown_up(stage, probe.reading, start=start)
    ]
    usable = {probe.candidate.id: probe for probe in at_equal_cost(as_averages(stage, sound))}
    control = next((probe for probe in usable.values() if not probe.reading.is_cut), next(iter(usable.values()), None))
    if start is None or control is None:
        return tuple(Score(probe.candidate.values, None, 0.0) for probe in stage.probes)
    tails = {number: _tail(probe, control, is_paired=stage.is_paired) for number, probe in usable.items()}
    losses = [tail.loss for tail in tails.values()]
    is_positive = start > 0 and min(losses) > 0
    size = size_of(start, *(each.reading.losses for each in usable.values()))
    unit = None if is_positive else max(size, max(map(abs, losses)) / LARGEST_RATIO) or 1.0
    found = [
        _score(probe.candidate.values, tails.get(probe.candidate.id), start=start, unit=unit) for probe in stage.probes
    ]
    return _tempered(stage, found, list(usable.values()), unit=unit)


def _tempered(
    stage: Stage, found: Sequence[Score], usable: Sequence[Probe], *, unit: float | None
) -> tuple[Score, ...]:
    """Return the scores, with those of each exchange moved towards what it is expected to teach for its cost.

    A short probe shows which exchange starts fast, not which is ahead in the end. So the probe counts by `PROBED_PART`,
    and the expectation by the rest.

    An exchange teaches a share of a dense step in each step, and its probes show the cost of a step. The quotient is
    the factor by which it is ahead, in dense steps. The best probe shows how much the reward rises with the logarithm
    of the steps.

    The first probe's exchange keeps its rewards. So do exchanges under which workers drift apart: the expectation was
    measured with the same data on all workers.
    """
    drifting = {probe.candidate.values.option for probe in usable if probe.reading.client_drift}
    seen = dict[str, float]()
    for score in found:
        option = score.values.option or ""
        if score.reward is not None and option in stage.teaching and option not in drifting:
            seen[option] = max(score.reward, seen.get(option, -math.inf))
    costs = {option: _allowances_per_step(usable, option) for option in seen}
    if len(seen) < 2 or min(costs.values()) <= 0:
        return tuple(found)
    climb = _climb(_lowest(usable).reading, unit=unit)
    ahead = {option: math.log(stage.teaching[option] / cost) for option, cost in costs.items()}
    first = next(iter(seen))
    shifts = {
        option: (1 - PROBED_PART) * (climb * (ahead[option] - ahead[first]) - (seen[option] - seen[first]))
        for option in seen
    }
    return tuple(
        score
        if score.reward is None
        else score._replace(reward=score.reward + shifts.get(score.values.option or "", 0))
        for score in found
    )


def _lowest(probes: Sequence[Probe]) -> Probe:
    """Return the probe that got lowest, among those that were not cut if there are any."""
    return min(probes, key=lambda probe: (probe.reading.is_cut, float(_tail_losses(probe.reading).mean())))


def _climb(reading: Reading, *, unit: float | None) -> float:
    """Return the slope of a probe's reward over the logarithm of its steps, between half of them and all."""
    half, whole = (float(_tail_losses(each).mean()) for each in (reading.begun(reading.num_steps / 2), reading))
    if half <= whole:
        return 0.0
    return (math.log(half / whole) if unit is None else (half - whole) / unit) / math.log(2)


def _allowances_per_step(probes: Sequence[Probe], option: str) -> float:
    """Return the cost of a step with this exchange, as a share of a probe's allowance."""
    own = [probe for probe in probes if probe.candidate.values.option == option]
    return statistics.median(
        spending.num_allowances(probe.candidate.allowance, probe.reading) / probe.reading.num_steps for probe in own
    )


def at_equal_cost(probes: Sequence[Probe]) -> list[Probe]:
    """Return the `probes` of one stage, cut to the steps that the cheapest ones could have afforded.

    Every probe has a least number of steps, so costly ones exceed their allowance, and have more time to learn. The
    cost of a step is the median over all probes of its kind: the machine may have delayed one of them.
    """
    whole = dict[_Kind, list[Reading]]()
    shares = dict[_Kind, list[float]]()
    for candidate, reading in probes:
        if not reading.is_cut:
            whole.setdefault(costly(candidate.values), []).append(reading)
            share = spending.num_allowances(candidate.allowance, reading)
            shares.setdefault(costly(candidate.values), []).append(share)
    spent = {kind: statistics.median(each) for kind, each in shares.items()}
    least = min(spent.values(), default=0.0)
    affordable = {
        kind: max(FEWEST_STEPS, statistics.median(reading.num_steps for reading in whole[kind]) * least / share)
        for kind, share in spent.items()
        if share > SAME_SHARE * least > 0
    }
    return [_within(probe, affordable.get(costly(probe.candidate.values), math.inf)) for probe in probes]


def _within(probe: Probe, num_steps: float) -> Probe:
    is_longer = probe.reading.num_steps > num_steps
    return probe._replace(reading=probe.reading.begun(num_steps)) if is_longer else probe


def steps_at_equal_cost(probe: Probe, other: Probe) -> tuple[float, float]:
    """Return the most first steps of `probe` and of `other` that cost the same; each has at least one step.

    Probes of one kind compare step by step: if their costs seem to differ, something delayed the machine.
    """
    ratio = 1.0
    if costly(probe.candidate.values) != costly(other.candidate.values):
        allowance, readings = probe.candidate.allowance, (probe.reading, other.reading)
        own, others = (spending.num_allowances(allowance, each) / each.num_steps for each in readings)
        ratio = own / others if own > 0 and others > 0 else 1.0
    if SAME_COST <= ratio <= 1 / SAME_COST:
        ratio = 1.0
    num_steps = min(float(probe.reading.num_steps), other.reading.num_steps / ratio)
    return num_steps, num_steps * ratio


def lowest_probed(stage: Stage) -> Probed | None:
    """Return the lowest loss that a probe of the run ended at, the mean of its last half; None: all diverged."""
    start = start_loss(stage)
    probes = stage.decisive.probes  # the coarse ones are short
    sound = (each for _, each in probes if not has_blown_up(stage, each, start=start))
    ends = [Probed(float(half.mean()), len(half)) for half in map(_tail_losses, sound)]
    return min([*ends, *([] if stage.line.probed is None else [stage.line.probed])], default=None)


def makes_progress(reading: Reading, *, start: float) -> bool:
    """Return whether a probe got below the loss that it started from by more than noise, over its last half."""
    half = _tail_losses(reading)
    return bool(half.mean() < start - 2 * standard_error(half))


def usable_control(stage: Stage) -> Reading | None:
    """Return the incumbent's finished probe if it went well, or None; the wide search has none."""
    first = stage.probes[0] if stage.has_incumbent and stage.probes else None
    if first is None or first.candidate.values != stage.incumbent or first.reading.is_cut:
        return None
    diverged = has_blown_up(stage, first.reading, start=start_loss(stage))
    return None if diverged else as_averages(stage, stage.probes)[0].reading


class _Tail(NamedTuple):
    loss: float
    error: float  # the standard error of its difference to the control; 0 for the control


@lru_cache(maxsize=64)  # each ask reads all finished probes again, some of them three times
def _tail(probe: Probe, control: Probe, *, is_paired: bool) -> _Tail:
    """Return the mean loss of the probe's last half; for one that was cut, extrapolated along the control."""
    half, others = _tail_losses(probe.reading), _tail_losses(control.reading)
    if probe is control:
        return _Tail(float(half.mean()), 0.0)
    saw_the_same = is_paired and _saw_the_same(probe, control)
    if not probe.reading.is_cut:
        return _Tail(float(half.mean()), _error(probe.reading, control.reading, saw_the_same=saw_the_same))
    num_steps, same_steps = steps_at_equal_cost(probe, control)
    both = side_by_side(probe.reading, control.reading, num_steps, same_steps)
    seen, same = (series[len(series) // 2 :] for series in both)
    goes_along = saw_the_same and num_steps == same_steps
    paired = standard_error(seen - same) if goes_along else math.hypot(standard_error(seen), standard_error(same))
    error = paired * math.sqrt(control.reading.num_steps / same_steps)
    if min(seen.mean(), same.mean(), others.mean()) > 0 and seen.mean() <= LARGEST_RATIO * same.mean():
        return _Tail(float(others.mean() * seen.mean() / same.mean()), error)
    return _Tail(float(others.mean() + seen.mean() - same.mean()), error)


def _error(reading: Reading, control: Reading, *, saw_the_same: bool) -> float:
    """Return the standard error e of the difference between the mean losses of two last halves.

    The steps that both halves share are a share p of the one and q of the other. With e1 and e2 the errors of the two
    means, and e3 that of the mean difference on the shared steps, e^2 = (1 - q) e1^2 + (1 - p) e2^2 + p q e3^2. This is
    exact if losses are independent from step to step and have equal variance.
    """
    shorter, longer = sorted((reading.num_steps, control.num_steps))
    shared = max(0.0, shorter - longer / 2) if saw_the_same else 0.0
    p, q = 2 * shared / reading.num_steps, 2 * shared / control.num_steps
    own, others = standard_error(_tail_losses(reading)), standard_error(_tail_losses(control))
    seen, same = side_by_side(reading, control, shorter, shorter)
    first = min(int(len(seen) * longer / (2 * shorter)), len(seen) - 1)
    paired = standard_error((seen - same)[first:])
    return math.sqrt((1 - q) * own**2 + (1 - p) * others**2 + p * q * paired**2)


def _score(values: Values, tail: _Tail | None, *, start: float, unit: float | None) -> Score:
    """Return the score of a probe; with a `unit`, the reward is a difference in it instead of one of logarithms."""
    if tail is None:
        return Score(values, None, 0.0)
    reward = math.log(start) - math.log(tail.loss) if unit is None else (start - tail.loss) / unit
    relative = min(tail.error / (unit or tail.loss), LARGEST_RATIO)
    return Score(values, reward, relative**2)


def _tail_losses(reading: Reading) -> Array:
    """Return the losses that judge a probe: its last half, or the last third of a short one."""
    losses = np.asarray(reading.losses, dtype=np.float64)
    return losses[-max(1, round(len(losses) / 3)) :] if len(losses) < SHORT else losses[len(losses) // 2 :]


class Evidence(NamedTuple):
    """Data for a surrogate: n values, their rewards and variances. Diverged values have a low reward."""

    values: tuple[Values, ...]
    rewards: tuple[float, ...]
    variances: tuple[float, ...]
    num_finite: int
    prior: Prior = NO_PRIOR

    def surrogate(self, setup: SearchSetup, box: Box) -> AnySurrogate | None:
        """Return a surrogate over `box`, or None if there is too little to learn from, or the controller uses none."""
        is_enough = len(self.values) >= LEAST_POINTS if self.prior.searches else self.num_finite >= MIN_POINTS
        if not setup.config.has_surrogate or not is_enough:
            return None
        points = np.array([box.to_unit(values) for values in self.values])
        rewards, variances = np.array(self.rewards), np.array(self.variances)
        # the prior: past runs, as far as they explain the probes, and the link's rule
        belief = level_belief(box, setup.opening)
        expected = expectation(self.prior, box, points, rewards, variances, otherwise=belief)
        return fit(points, rewards, variances, expected=expected)


def level_belief(box: Box, opening: Values) -> Function:
    """Return the prior mean over the level: the one that the run opens with, which suits the link, is best.

    A level 10 times as high, or as low, costs half of a standard deviation of the rewards. Probes that tell levels
    apart outvote that.
    """
    num_coordinates = sum(axis.num_coordinates for axis in box.axes)
    peak, weight = np.zeros(num_coordinates), np.zeros(num_coordinates)
    for axis, span in box.spans():
        if axis.name == "level" and opening.level is not None:
            peak[span] = axis.to_unit(opening.level)
            weight[span] = STDS_PER_DECADE * math.log10(axis.high / axis.low) ** 2
    return lambda points: -np.asarray((points - peak) ** 2 @ weight)


def evidence(stage: Stage) -> Evidence:
    """Return the data of this stage's probes and of earlier ones, relative to this stage's first finite reward."""
    decisive = stage.decisive
    current = scores(decisive)
    origin = next((score.reward for score in current if score.reward is not None), 0.0)
    rows = [(score.values, score.reward - origin, score.variance) for score in current if score.reward is not None]
    earlier = discounted(stage.line.history, stage.line.drift)
    rows += [(score.values, score.reward, score.variance) for score in earlier if score.reward is not None]
    num_finite = len(rows)
    diverged = [score.values for score in current if score.reward is None]
    if rows:
        reward, variance = worth_of_divergence([reward for _, reward, _ in rows])
        rows += [(values, reward, variance) for values in diverged]
    return Evidence(
        values=tuple(values for values, _, _ in rows),
        rewards=tuple(reward for _, reward, _ in rows),
        variances=tuple(variance for _, _, variance in rows),
        num_finite=num_finite,
        prior=stage.prior,
    )


def surrogate_of(setup: SearchSetup, stage: Stage, box: Box) -> AnySurrogate | None:
    """Return the surrogate of the stage's evidence over `box`; it is fitted once and then cached."""
    known = evidence(stage)
    if (known, box) not in stage.surrogates:
        stage.surrogates[known, box] = known.surrogate(setup, box)
    return stage.surrogates[known, box]


def diverged_probes(setup: SearchSetup, stage: Stage) -> tuple[Values, ...]:
    """Return the values at which probes of this stage, or of an earlier one, diverged, with the rates of all workers.

    The batch of all is larger than that of a worker alone, so they diverge at a higher rate.
    """
    judged = zip(stage.probes, scores(stage), strict=True)
    here = (_of_all_workers(setup, probe.candidate) for probe, score in judged if score.reward is None)
    return (*stage.line.diverged, *here)


def _of_all_workers(setup: SearchSetup, candidate: Candidate) -> Values:
    rate = candidate.values.learning_rate * (setup.whole_batch_factor if candidate.alone else 1.0)
    return candidate.values.model_copy(update={"learning_rate": rate})


def diverged_values(stage: Stage) -> tuple[Values, ...]:
    """Return all values that may not be tried again in `stage`."""
    return stage.line.barred + tuple(score.values for score in scores(stage) if score.reward is None)
