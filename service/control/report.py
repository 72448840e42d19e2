"""A job's result out of its trials: what each cost and reached, and every arm's mean over its seeds. Pure functions."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev

from scipy import special

from search.config import RateRange
from search.curves.calibration import calibration
from service.control import divergence
from service.job.advice import searching_budget
from service.job.parts import LOSS, Direction, TrialSpec
from service.job.spec import JobSpec
from service.job.states import TERMINAL
from service.wire.records import Bill
from service.wire.views import (
    ArmReport,
    Cost,
    Crossing,
    Estimate,
    JobReport,
    JobView,
    Prices,
    Series,
    SweepReport,
    TrialReport,
    TrialView,
)

CONFIDENCE = 0.95


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Return the mean of what is known, with Student's interval from two values on; None where nothing is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean, num = fmean(known), len(known)
    half = None if num < 2 else t_quantile(CONFIDENCE, num - 1) * stdev(known) / math.sqrt(num)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Estimate(num_seeds=num, mean=mean, low=low, high=high)


def t_quantile(confidence: float, freedom: int) -> float:
    """Return t such that Student's t with `freedom` degrees lies in [-t, t] with probability `confidence`."""
    return float(special.stdtrit(freedom, (1 + confidence) / 2))


def job_report(
    job: JobView,
    trials: Sequence[TrialView],
    curves: Sequence[Series],
    *,
    z_scores: Mapping[str, Sequence[float]],
    unsearched: Mapping[str, str | None],
    overfitted: Mapping[str, str | None],
    steered: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
    prices: Prices | None = None,
    sweep: SweepReport | None = None,
) -> JobReport:
    """Return the report out of what is known by trial.

    Args:
        curves: the objective's metric in validations, all of its points.
        z_scores: how far each closed stage ended from its forecast.
        unsearched: why nothing was probed; None: something was.
        overfitted: a sentence on each trial that learned its training data by heart; None: it did not.
        steered: by person the stages that he steered; None: nobody did.
        sweep: the ranking over the job's `params`; None: it has none.
    """
    by_trial = {curve.trial_id: curve for curve in curves}
    spec = job.readable
    first = spec.arms[0].name
    firsts = {trial.seed: by_trial[trial.trial_id] for trial in trials if trial.arm == first and trial.outcome}
    directions = {name: way for trial in trials for name, way in trial.metric_directions.items()}
    metric = spec.objective.metric
    direction = directions.get(metric, "min")
    targets = _targets(spec, trials, by_trial, direction)
    drawn = {trial.arm: trial.sample.values for trial in trials if trial.sample and trial.sample.values}
    specs = {(each.arm, each.seed): each for each in spec.trials(drawn)}
    found = [
        _trial_report(
            trial,
            spec=specs[trial.arm, trial.seed],
            z_scores=z_scores[trial.trial_id],
            unsearched=unsearched[trial.trial_id],
            overfitted=overfitted[trial.trial_id],
            steered=(steered or {}).get(trial.trial_id, {}),
            target=targets.get(trial.seed),
            reached_after=_reached_after(by_trial[trial.trial_id], targets.get(trial.seed), direction),
            crossed=crossing(
                firsts[trial.seed], by_trial[trial.trial_id], metric, direction, loss=trial.validation_loss
            )
            if trial.seed in firsts and _is_another_arm(trial, first)
            else None,
            prices=prices,
        )
        for trial in trials
    ]
    arms = [_arm_report(arm.name, [each for each in found if each.arm == arm.name]) for arm in spec.arms]
    return JobReport(
        job_id=job.id,
        name=job.name,
        state=job.state,
        complete=job.state in TERMINAL,
        confidence=CONFIDENCE,
        metric=metric,
        best_arm=best(arms, metric, direction),
        metric_directions=directions,
        prices=prices,
        arms=tuple(arms),
        trials=tuple(found),
        sweep=sweep,
    )


def _is_another_arm(trial: TrialView, first: str) -> bool:
    return trial.arm != first and trial.sample is None and trial.outcome == "completed"


def cost(bill: Bill, prices: Prices, *, num_workers: int, num_lanes: int = 1, are_joined: bool = False) -> Cost:
    """Return what a trial of so many workers in each lane comes to; what has no price costs nothing.

    The line beside the main one is of one lane. So is lost work, unless lanes join. Idle lanes hold their workers.
    """
    num_held = num_workers * num_lanes
    held_s = num_held * bill.seconds_training if bill.seconds_of_workers is None else bill.seconds_of_workers
    sent = num_held * bill.bytes_sent if bill.bytes_of_all is None else bill.bytes_of_all
    hours = (held_s + num_held * bill.seconds_recovery) / 3600
    lost = (num_held if are_joined else num_workers) * bill.bytes_recovery
    gigabytes = (sent + num_workers * bill.bytes_insurance + lost) / 1e9
    money = hours * (prices.worker_hour or 0.0) + gigabytes * (prices.gb or 0.0)
    return Cost(worker_hours=hours, gigabytes=gigabytes, money=money)


def _targets(
    spec: JobSpec, trials: Sequence[TrialView], curves: Mapping[str, Series], direction: Direction
) -> dict[int, float | None]:
    """Return by seed what the job states, else the worst of the last values of its arms that did not diverge."""
    if spec.objective.target is not None:
        return dict.fromkeys(spec.seeds, spec.objective.target)
    worst = max if direction == "min" else min
    targets: dict[int, float | None] = {}
    # A sample that ends at a rung would be the worst, and say nothing of where arms get to.
    for trial in (each for each in trials if each.sample is None and each.outcome != "diverged"):
        last = final(curves[trial.trial_id])
        known = [value for value in (targets.get(trial.seed), last and last[1]) if value is not None]
        targets[trial.seed] = worst(known, default=None)
    return targets


def _reached_after(curve: Series, target: float | None, direction: Direction) -> float | None:
    return None if target is None else reached(curve, target, direction)


def _trial_report(
    trial: TrialView,
    *,
    spec: TrialSpec,
    z_scores: Sequence[float],
    unsearched: str | None,
    overfitted: str | None,
    steered: Mapping[str, Sequence[int]],
    target: float | None,
    reached_after: float | None,
    crossed: Crossing | None,
    prices: Prices | None,
) -> TrialReport:
    bill, unsearched = trial.bill, unsearched if isinstance(spec.controller, RateRange) else None
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
        bill=trial.bill,
        target=target,
        target_loss=target if spec.objective.metric == LOSS else None,
        seconds_to_target=reached_after,
        calibration=calibration(z_scores),
        crossing=crossed,
        searching_budget=None
        if unsearched is None
        else searching_budget(spec, steps=bill.steps, seconds=bill.seconds_training, bytes_sent=bill.bytes_sent),
        notes=tuple(_notes(trial, spec, unsearched=unsearched, overfitted=overfitted, steered=steered)),
    )


def _notes(
    trial: TrialView,
    spec: TrialSpec,
    *,
    unsearched: str | None,
    overfitted: str | None,
    steered: Mapping[str, Sequence[int]],
) -> Iterator[str]:
    """Yield what the figures alone do not show: the page and the command line print it as it stands."""
    metric = spec.objective.metric
    if unsearched is not None and isinstance(spec.controller, RateRange):
        yield f"not searched; {unsearched}"
    for by, stages in steered.items():
        yield f"{by} steered {'stages' if len(stages) > 1 else 'stage'} {', '.join(map(str, stages))}"
    if trial.outcome == "diverged":
        yield divergence.why(trial.divergence)
    if trial.ended_early:
        patience = f"{spec.objective.patience} evaluations in a row"
        yield f"ended early, after {trial.step} steps: the validation {metric} had not improved in {patience}"
    if trial.at_target:
        yield f"at `objective.target`, a validation {metric} of {spec.objective.target:g}, after {trial.step} steps"
    elif spec.objective.target is not None and trial.outcome == "completed":
        yield f"not at `objective.target`, a validation {metric} of {spec.objective.target:g}"
    if overfitted is not None:
        yield overfitted
    if trial.line == "insurance":
        yield "your own schedule did better than the searched one, and is kept"
    if trial.exported_step is not None:
        at_end = trial.end_validation_loss if metric == LOSS else trial.end_validation_metrics.get(metric)
        end = "not finite" if at_end is None else f"{at_end:.4g}"
        yield f"the weights are those of step {trial.exported_step}; at the end the validation {metric} was {end}"


def _arm_report(arm: str, trials: Sequence[TrialReport]) -> ArmReport:
    ended = [trial for trial in trials if trial.outcome is not None]
    names = sorted({name for trial in ended for name in trial.validation_metrics})
    metrics = {name: estimate(trial.validation_metrics.get(name) for trial in ended) for name in names}
    return ArmReport(
        arm=arm,
        controller=trials[0].controller,
        num_trials=len(trials),
        num_finished=len(ended),
        num_diverged=sum(trial.outcome == "diverged" for trial in ended),
        validation_loss=estimate(trial.validation_loss for trial in ended),
        validation_metrics={name: found for name, found in metrics.items() if found is not None},
        bytes_sent=estimate(trial.bill.bytes_sent for trial in ended),
        seconds_training=estimate(trial.bill.seconds_training for trial in ended),
        seconds_to_target=estimate(trial.seconds_to_target for trial in ended),
    )


def best(arms: Sequence[ArmReport], metric: str, direction: Direction) -> str | None:
    """Return the arm with the best mean of `metric`; one that diverged on fewer seeds comes before one with more.

    None until every trial has finished: means over other seeds do not compare.
    """
    has_finished = all(arm.num_finished == arm.num_trials for arm in arms)
    sign = 1 if direction == "min" else -1
    means = [arm.validation_loss if metric == LOSS else arm.validation_metrics.get(metric) for arm in arms]
    ranked = [
        (arm.num_diverged, sign * mean.mean, arm.arm) for arm, mean in zip(arms, means, strict=True) if mean is not None
    ]
    return min(ranked)[2] if ranked and has_finished else None


def crossing(first: Series, other: Series, metric: str, direction: Direction, *, loss: float | None) -> Crossing | None:
    """Return when `first`, and when `other` itself, first got to the last value of `other`; None where it has none.

    `loss` is the validation loss that `other` ended with.
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
    """Return (seconds, value) of the last value there is."""
    points = zip(reversed(series.seconds), reversed(series.values), strict=True)
    return next(((seconds, value) for seconds, value in points if value is not None), None)


def reached(series: Series, target: float, direction: Direction = "min") -> float | None:
    """Return the seconds at which `series` was first as good as `target`; None: never."""
    sign = 1 if direction == "min" else -1
    points = zip(series.seconds, series.values, strict=True)
    return next((seconds for seconds, value in points if value is not None and sign * value <= sign * target), None)
