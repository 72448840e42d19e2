"""Compare several jobs: their differing fields and their results. Pure functions."""

from collections.abc import Iterable, Iterator, Sequence

from service.control.results.report import CONFIDENCE, positive_estimate, reached, worst_end
from service.job.changes import differences, value_at
from service.job.parts import LOSS, Direction
from service.job.spec import JobSpec
from service.wire.comparison import ComparedArm, ComparedTrial, Comparison, Difference
from service.wire.jobs import JobView
from service.wire.metrics import sign
from service.wire.reports import JobReport
from service.wire.trials import Series, TrialView


def common_metric(reports: Sequence[JobReport]) -> str:
    """Return the metric that is the objective of all jobs and measured in all; else the loss."""
    named = reports[0].metric
    have_it = all(
        each.metric == named and any(named in trial.validation_metrics for trial in each.trials) for each in reports
    )
    return named if have_it else LOSS


def comparison(
    jobs: Sequence[JobView], reports: Sequence[JobReport], metric: str, trials: Sequence[tuple[TrialView, Series]]
) -> Comparison:
    """Return the jobs side by side; `trials` are those of all, each with every evaluation of `metric`."""
    direction: Direction = next(
        (each.metric_directions[metric] for each in reports if metric in each.metric_directions), "min"
    )
    curves = {trial.trial_id: curve for trial, curve in trials}
    target = _median_end(trials, direction)
    compared = tuple(
        ComparedTrial(
            job_id=report.job_id,
            trial=trial,
            seconds_to_target=None if target is None else reached(curves[trial.trial_id], target, direction),
        )
        for report in reports
        for trial in report.trials
    )
    return Comparison(
        jobs=tuple(jobs),
        differences=tuple(_differences([job.readable for job in jobs])),
        metric=metric,
        confidence=CONFIDENCE,
        target=target,
        target_loss=target if metric == LOSS else None,
        arms=tuple(_arms(reports, compared)),
        trials=compared,
    )


def _median_end(trials: Iterable[tuple[TrialView, Series]], direction: Direction) -> float | None:
    """Return the median of the values at which trials ended, of two middle ones the worse; None if none has ended.

    The worst of several jobs may be the loss of a model that hardly trained, which tells nothing apart. A trial
    without a step has no part in it.
    """
    ends = [worst_end([each], direction) for each in trials if each[0].step]
    ranked = sorted((end for end in ends if end is not None), key=lambda value: sign(direction) * value)
    return ranked[len(ranked) // 2] if ranked else None


def _arms(reports: Iterable[JobReport], trials: Iterable[ComparedTrial]) -> Iterator[ComparedArm]:
    of_arm: dict[tuple[str, str], list[float | None]] = {}
    for each in trials:
        if each.trial.outcome is not None:
            of_arm.setdefault((each.job_id, each.trial.arm), []).append(each.seconds_to_target)
    for report in reports:
        for arm in report.arms:
            seconds = positive_estimate(of_arm.get((report.job_id, arm.arm), ()))
            yield ComparedArm(job_id=report.job_id, arm=arm.model_copy(update={"seconds_to_target": seconds}))


def _differences(specs: Sequence[JobSpec]) -> Iterator[Difference]:
    first, *others = specs
    dumped = [spec.model_dump(mode="json") for spec in specs]
    for pointer in dict.fromkeys(change.pointer for other in others for change in differences(first, other)):
        yield Difference(pointer=pointer, values=tuple(value_at(each, pointer) for each in dumped))
