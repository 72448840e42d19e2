"""The report of a job: the cost and result of each trial, and each arm's means over seeds. Pure functions."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from statistics import fmean, stdev
from types import MappingProxyType
from typing import NamedTuple

from scipy import special

from search.config import RateRange
from search.curves.calibration import calibration
from service.control.results import divergence
from service.job.advice import searching_budget
from service.job.parts import LOSS, Direction, TrialSpec
from service.job.spec import JobSpec
from service.job.states import TERMINAL
from service.wire.jobs import JobView
from service.wire.metrics import sign, value_of
from service.wire.records import Bill
from service.wire.reports import ArmReport, BesideBest, Cost, Crossing, Estimate, JobReport, Prices, TrialReport
from service.wire.sweeps import SampleStatus, SweepReport
from service.wire.trials import Series, TrialView

CONFIDENCE = 0.95
#: Evaluations that take more than this share of a budget in seconds are worth a note.
LARGE_SHARE = 0.2
#: Fewer positive values than this say too little of their spread: Student's factor would be 12.7.
LEAST_SPREAD = 3


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Return the mean of the known values, with Student's interval for two or more; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean, num = fmean(known), len(known)
    half = None if num < 2 else t_quantile(CONFIDENCE, num - 1) * stdev(known) / math.sqrt(num)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Estimate(num_seeds=num, mean=mean, low=low, high=high)


def positive_estimate(values: Iterable[float | None]) -> Estimate | None:
    """Return the same of quantities that are positive, such as bytes: no interval goes below 0.

    The interval is that of the logarithm of the mean (delta method); of two values it is both of them.
    """
    known = [value for value in values if value is not None]
    found = estimate(known)
    if found is None or found.high is None or min(known) <= 0:
        return found
    if len(known) < LEAST_SPREAD:
        return found.model_copy(update={"low": min(known), "high": max(known)})
    factor = math.exp((found.high - found.mean) / found.mean)
    return found.model_copy(update={"low": found.mean / factor, "high": found.mean * factor})


def t_quantile(confidence: float, freedom: int) -> float:
    """Return t such that Student's t with `freedom` degrees lies in [-t, t] with probability `confidence`."""
    return float(special.stdtrit(freedom, (1 + confidence) / 2))


class TrialFacts(NamedTuple):
    """The facts of a trial that a report needs."""

    view: TrialView
    curve: Series  # evaluations of the objective's metric: its `milestones` are enough
    z_scores: Sequence[float] = ()  # the deviation of each closed stage's end from its forecast
    unsearched: str | None = None  # why nothing was searched; None: something was
    overfitted: str | None = None  # a sentence, if it overfitted; else None
    steered: Mapping[str, Sequence[int]] = MappingProxyType({})  # by person the stages that they steered


def job_report(
    job: JobView, facts: Sequence[TrialFacts], *, prices: Prices | None = None, sweep: SweepReport | None = None
) -> JobReport:
    """Build the report from the facts of each trial.

    `sweep` is the ranking over the job's `params`, if it has any.
    """
    spec, trials = job.readable, [each.view for each in facts]
    metric = spec.objective.metric
    directions = {name: way for trial in trials for name, way in trial.metric_directions.items()}
    direction = directions.get(metric, "min")
    targets = _targets(spec, facts, direction)
    first = spec.arms[0].name
    firsts = {each.view.seed: each.curve for each in facts if each.view.arm == first and each.view.outcome}
    drawn = {trial.arm: trial.sample.values for trial in trials if trial.sample and trial.sample.values}
    specs = {(each.arm, each.seed): each for each in spec.trials(drawn)}
    found = [
        _trial_report(
            each,
            specs[each.view.arm, each.view.seed],
            target=targets.get(each.view.seed),
            direction=direction,
            crossed=_crossed(each, firsts.get(each.view.seed), metric, direction),
            prices=prices,
        )
        for each in facts
    ]
    arms = [_arm_report(arm.name, [each for each in found if each.arm == arm.name]) for arm in spec.arms]
    leader = best(arms, metric, direction, is_over=job.state in TERMINAL)
    arms = [_beside(arm, leader, found, metric) for arm in arms]
    return JobReport(
        job_id=job.id,
        name=job.name,
        state=job.state,
        reason=job.reason,
        complete=job.state in TERMINAL,
        confidence=CONFIDENCE,
        metric=metric,
        best_arm=leader if len(arms) > 1 else None,
        best_is_clear=_is_clear(arms, leader) if leader is not None and len(arms) > 1 else None,
        best_trial=_best_trial([trial for trial in found if trial.arm == leader], metric, direction)
        if sweep is None
        else _first_ranked(sweep) or _best_trial(found, metric, direction),
        metric_directions=directions,
        prices=prices,
        arms=tuple(arms),
        trials=tuple(found),
        sweep=sweep,
    )


def _crossed(facts: TrialFacts, first: Series | None, metric: str, direction: Direction) -> Crossing | None:
    """Return when a completed trial of another arm, and `first`, the first arm's curve, crossed; None: it is none."""
    trial = facts.view
    if first is None or trial.arm == first.arm or trial.sample is not None or trial.outcome != "completed":
        return None
    return crossing(first, facts.curve, metric, direction, loss=trial.validation_loss)


def cost(bill: Bill, prices: Prices, *, num_workers: int, num_lanes: int = 1, are_joined: bool = False) -> Cost:
    """Return the price of a trial with that many workers per lane. Resources without a price cost nothing.

    The second line uses one lane. So does lost work, unless lanes join. Idle lanes hold their workers.
    """
    num_held = num_workers * num_lanes
    held_s = num_held * bill.seconds_training if bill.seconds_of_workers is None else bill.seconds_of_workers
    sent = num_held * bill.bytes_sent if bill.bytes_of_all is None else bill.bytes_of_all
    hours = (held_s + num_held * bill.seconds_recovery) / 3600
    lost = (num_held if are_joined else num_workers) * bill.bytes_recovery
    gigabytes = (sent + num_workers * bill.bytes_insurance + lost) / 1e9
    money = hours * (prices.worker_hour or 0.0) + gigabytes * (prices.gb or 0.0)
    return Cost(worker_hours=hours, gigabytes=gigabytes, money=money)


def _targets(spec: JobSpec, facts: Sequence[TrialFacts], direction: Direction) -> Mapping[int, float | None]:
    """Return the target by seed: the job's own, else the worst at which an arm ended with that seed."""
    if spec.objective.target is not None:
        return dict.fromkeys(spec.seeds, spec.objective.target)
    ends = [(each.view, each.curve) for each in facts]
    return {seed: worst_end((each for each in ends if each[0].seed == seed), direction) for seed in spec.seeds}


def worst_end(trials: Iterable[tuple[TrialView, Series]], direction: Direction) -> float | None:
    """Return the worst final value among the completed trials of arms, with their curves; None if there is none.

    A sample pruned at a rung would be the worst, but says nothing about the arms. Nor does an arm that was stopped
    alone: it may have been hopeless.
    """
    lasts = [
        final(curve)
        for trial, curve in trials
        if trial.sample is None and trial.outcome == "completed" and trial.stopped_by is None
    ]
    return max((last[1] for last in lasts if last is not None), key=lambda value: sign(direction) * value, default=None)


def _trial_report(
    facts: TrialFacts,
    spec: TrialSpec,
    *,
    target: float | None,
    direction: Direction,
    crossed: Crossing | None,
    prices: Prices | None,
) -> TrialReport:
    if not isinstance(spec.controller, RateRange):  # others do not search
        facts = facts._replace(unsearched=None)
    trial, bill = facts.view, facts.view.bill
    return TrialReport(
        trial_id=trial.trial_id,
        arm=trial.arm,
        seed=trial.seed,
        controller=spec.controller.kind,
        level_name=spec.replica.exchange.level_name,
        outcome=trial.outcome,
        cost=None
        if prices is None
        else cost(
            bill,
            prices,
            num_workers=spec.workers.count,
            num_lanes=spec.lanes.count,
            are_joined=spec.lanes.after == "batch",
        ),
        line=trial.line,
        steps=trial.step,
        seconds=trial.seconds,
        validation_loss=trial.validation_loss,
        validation_metrics=trial.validation_metrics,
        test=trial.test,
        bill=bill,
        target=target,
        target_loss=target if spec.objective.metric == LOSS else None,
        seconds_to_target=None if target is None else reached(facts.curve, target, direction),
        calibration=calibration(facts.z_scores),
        crossing=crossed,
        searching_budget=None
        if facts.unsearched is None
        else searching_budget(spec, steps=bill.steps, seconds=bill.seconds_training, bytes_sent=bill.bytes_sent),
        notes=tuple(_notes(facts, spec)),
    )


def _why_untrained(trial: TrialView, spec: TrialSpec) -> str:
    if not trial.stopped:
        return "not trained: its budget was spent before the first step, as discarded first steps and evaluations count"
    goes_on = trial.stopped_by is None and spec.lanes.after != "insurance"
    further = "; `extend` goes on from there" if goes_on else ""
    return f"not trained: it was stopped within its first search, and has the weights that it began with{further}"


def _notes(facts: TrialFacts, spec: TrialSpec) -> Iterator[str]:
    """Yield notes on what the figures do not show. The page and the command line print them unchanged."""
    trial, metric = facts.view, spec.objective.metric
    if facts.unsearched is not None:
        yield f"not searched; {facts.unsearched}"
    for by, stages in facts.steered.items():
        yield f"{by} steered {'stages' if len(stages) > 1 else 'stage'} {', '.join(map(str, stages))}"
    if trial.outcome == "diverged":
        yield divergence.why(trial.divergence)
    if trial.failure is not None:
        yield f"failed: {trial.failure}"
    if trial.stopped_by is not None:
        yield f"stopped early by {trial.stopped_by}" + (f", after {trial.step} steps" if trial.outcome else "")
    if trial.outcome == "completed" and trial.step == 0:
        yield _why_untrained(trial, spec)
    if trial.outcome != "diverged" and _is_never_finite(facts):
        when = f"ended early, after {trial.step} steps: " if trial.ended_early else ""
        yield f"{when}the validation {metric} was not finite in any evaluation: look for NaN in the validation data"
    elif trial.ended_early:
        patience = f"{spec.objective.patience} evaluations in a row"
        yield f"ended early, after {trial.step} steps: the validation {metric} had not improved in {patience}"
    if trial.at_target:
        yield f"at `objective.target`, a validation {metric} of {spec.objective.target:g}, after {trial.step} steps"
    elif spec.objective.target is not None and trial.outcome == "completed":
        yield f"not at `objective.target`, a validation {metric} of {spec.objective.target:g}"
    if spec.budget.seconds is not None and trial.bill.seconds_evaluation > LARGE_SHARE * trial.bill.seconds_training:
        yield _slow_evaluations(trial.bill, every=spec.objective.every)
    if facts.overfitted is not None:
        yield facts.overfitted
    if trial.line == "insurance":
        yield "your own schedule did better than the searched one, and is kept"
    if trial.test_failure is not None:
        yield f"the test set was not evaluated: {trial.test_failure}"
    if trial.averaged or trial.exported_step is not None:
        at_end = trial.end_validation_loss if metric == LOSS else trial.end_validation_metrics.get(metric)
        end = "not finite" if at_end is None else f"{at_end:.4g}"
        which = "an average of the last steps up to" if trial.averaged else "those of"
        step = trial.step if trial.exported_step is None else trial.exported_step
        yield f"the weights are {which} step {step}; at the end the validation {metric} was {end}"


def _is_never_finite(facts: TrialFacts) -> bool:
    """Return whether there were evaluations, and none was finite. The curve is that of the main line."""
    return facts.view.line == "main" and facts.curve.num_points > 0 and final(facts.curve) is None


def _slow_evaluations(bill: Bill, *, every: int) -> str:
    """Return how much of the clock evaluations took, and a spacing at which they would take about a tenth."""
    took, share = bill.seconds_evaluation, bill.seconds_evaluation / bill.seconds_training
    rarer = math.ceil(9 * took / max(bill.seconds_training - took, took / 1000))
    return (
        f"evaluations took {share:.0%} of the training clock: give `objective.every` {every * rarer} instead of "
        f"{every}, or fewer validation samples"
    )


def _arm_report(arm: str, trials: Sequence[TrialReport]) -> ArmReport:
    ended = [trial for trial in trials if trial.outcome is not None]
    return ArmReport(
        arm=arm,
        controller=trials[0].controller,
        num_trials=len(trials),
        num_finished=len(ended),
        num_diverged=sum(trial.outcome == "diverged" for trial in ended),
        validation_loss=positive_estimate(trial.validation_loss for trial in ended),
        validation_metrics=_estimates(ended, lambda trial: trial.validation_metrics),
        test=_estimates(ended, lambda trial: trial.test),
        bytes_sent=positive_estimate(trial.bill.bytes_sent for trial in ended),
        seconds_training=positive_estimate(trial.bill.seconds_training for trial in ended),
        seconds_to_target=positive_estimate(trial.seconds_to_target for trial in ended),
    )


def _beside(arm: ArmReport, leader: str | None, trials: Sequence[TrialReport], metric: str) -> ArmReport:
    """Return the arm's report with its paired comparison to the `leader`, the best arm, over common seeds."""
    if leader is None or arm.arm == leader:
        return arm
    leaders = {trial.seed: trial for trial in trials if trial.arm == leader}
    pairs = [(trial, leaders[trial.seed]) for trial in trials if trial.arm == arm.arm]
    values = ((value_of(own, metric), value_of(best, metric)) for own, best in pairs)
    beside = BesideBest(
        difference=estimate(own - best for own, best in values if own is not None and best is not None),
        bytes_sent=_ratio((own.bill.bytes_sent, best.bill.bytes_sent) for own, best in pairs),
        seconds_training=_ratio((own.bill.seconds_training, best.bill.seconds_training) for own, best in pairs),
        seconds_to_target=_ratio((own.seconds_to_target, best.seconds_to_target) for own, best in pairs),
    )
    return arm.model_copy(update={"beside_best": beside})


def _ratio(pairs: Iterable[tuple[float | None, float | None]]) -> Estimate | None:
    """Return the geometric mean of the ratios, with its interval; None if no pair has two positive values."""
    found = estimate(math.log(own / best) for own, best in pairs if own and best)
    if found is None:
        return None
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    return found.model_copy(update={"mean": math.exp(found.mean), "low": low, "high": high})


def _is_clear(arms: Sequence[ArmReport], leader: str) -> bool:
    """Return whether the best arm diverged less than each other one, or differs from it by more than chance."""
    fewest = next(arm.num_diverged for arm in arms if arm.arm == leader)
    return all(arm.arm == leader or arm.num_diverged > fewest or _differs(arm.beside_best) for arm in arms)


def _differs(beside: BesideBest | None) -> bool:
    found = None if beside is None else beside.difference
    return found is not None and found.low is not None and found.high is not None and not found.low <= 0 <= found.high


def _estimates(
    trials: Sequence[TrialReport], of: Callable[[TrialReport], Mapping[str, float | None]]
) -> dict[str, Estimate]:
    names = sorted({name for trial in trials for name in of(trial)})
    found = {
        name: (positive_estimate if name == LOSS else estimate)(of(trial).get(name) for trial in trials)
        for name in names
    }
    return {name: each for name, each in found.items() if each is not None}


def best(arms: Sequence[ArmReport], metric: str, direction: Direction, *, is_over: bool = False) -> str | None:
    """Return the arm with the best mean of `metric`. Arms that diverged on fewer seeds come first.

    None until every trial has finished, since means over different seeds are not comparable. Once the job `is_over`,
    trials that it left out do not finish any more, and do not count.
    """
    has_finished = is_over or all(arm.num_finished == arm.num_trials for arm in arms)
    ranked = [
        (arm.num_diverged, sign(direction) * mean.mean, arm.arm)
        for arm in arms
        if (mean := value_of(arm, metric)) is not None
    ]
    return min(ranked)[2] if ranked and has_finished else None


def _best_trial(trials: Iterable[TrialReport], metric: str, direction: Direction) -> str | None:
    """Return the id of the completed trial with the best value of `metric`; None if there is none."""
    ranked = [
        (sign(direction) * value, trial.trial_id)
        for trial in trials
        if trial.outcome == "completed" and (value := value_of(trial, metric)) is not None
    ]
    return min(ranked)[1] if ranked else None


def _first_ranked(sweep: SweepReport) -> str | None:
    """Return the id of the first trial in the ranking that has a value there and is not lost; None: there is none."""
    lost = {SampleStatus.DIVERGED, SampleStatus.FAILED}
    ranked = (each.trial_id for each in sweep.ranking if each.value is not None and each.status not in lost)
    return next(ranked, None)


def crossing(first: Series, other: Series, metric: str, direction: Direction, *, loss: float | None) -> Crossing | None:
    """Return when `first`, and `other` itself, first reached the final value of `other`; None if it has none.

    `loss` is the final validation loss of `other`.
    """
    end = final(other)
    if end is None:
        return None
    seconds, value = end
    loss = value if metric == LOSS else loss
    if loss is None:
        return None
    return Crossing(
        value=value,
        loss=loss,
        seconds=reached(first, value, direction),
        other_seconds=reached(other, value, direction) or seconds,
    )


def final(series: Series) -> tuple[float, float] | None:
    """Return (seconds, value) of the last known value."""
    points = zip(reversed(series.seconds), reversed(series.values), strict=True)
    return next(((seconds, value) for seconds, value in points if value is not None), None)


def milestones(series: Series, direction: Direction) -> Series:
    """Return the points better than all before them, and the last known one: `reached` and `final` need no others."""
    factor = sign(direction)
    known = [(at, factor * value) for at, value in enumerate(series.values) if value is not None]
    lowest = accumulate((score for _, score in known), min)
    better = (at for (at, score), before in zip(known, chain([math.inf], lowest), strict=False) if score < before)
    kept = sorted({*better, *(at for at, _ in known[-1:])})
    columns = {name: tuple(getattr(series, name)[at] for at in kept) for name in ("steps", "seconds", "values")}
    return series.model_copy(update=columns)


def reached(series: Series, target: float, direction: Direction = "min") -> float | None:
    """Return the seconds at which `series` first reached `target`; None if never."""
    factor = sign(direction)
    points = zip(series.seconds, series.values, strict=True)
    return next((seconds for seconds, value in points if value is not None and factor * value <= factor * target), None)
