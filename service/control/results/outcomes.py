"""Reports, comparisons and learned schedules of jobs. Functions of one open session; they only read."""

import sys
from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.control import queries, sweeps
from service.control.models import TrialRow
from service.control.results.comparison import common_metric, comparison
from service.control.results.report import TrialFacts, job_report
from service.wire.comparison import Comparison
from service.wire.reports import JobReport, Prices
from service.wire.stored import stored_spec
from service.wire.trials import ScheduleView


def report(session: Session, job_id: str, prices: Prices | None = None) -> JobReport:
    """Return the job's report, on every trial and arm. Raises UnreadableJob."""
    found = queries.trials(session, job_id)
    job = queries.job_view(queries.job_row(session, job_id))
    metric = job.readable.objective.metric
    facts = [
        TrialFacts(
            view=queries.trial_view(trial),
            curve=queries.series(session, trial, f"validation_{metric}", max_points=sys.maxsize),
            z_scores=queries.z_scores(session, trial.id),
            unsearched=queries.unsearched(session, trial.id),
            overfitted=queries.overfitted(session, trial, metric),
            steered=queries.steered(session, trial.id),
        )
        for trial in found
    ]
    ranking = sweeps.report(job.readable, job.state, sweeps.rungs(session, job_id), [each.view for each in facts])
    return job_report(job, facts, prices=prices, sweep=ranking)


def compared(session: Session, job_ids: Sequence[str]) -> Comparison:
    """Compare the jobs, in one consistent snapshot. Raises NotFound and UnreadableJob."""
    jobs = [queries.job_view(queries.job_row(session, job_id)) for job_id in job_ids]
    reports = [report(session, job_id) for job_id in job_ids]
    metric = common_metric(reports)
    trials = [trial for job_id in job_ids for trial in queries.trials(session, job_id)]
    curves = [queries.series(session, trial, f"validation_{metric}", max_points=sys.maxsize) for trial in trials]
    return comparison(jobs, reports, metric, curves)


def schedules(session: Session, job_id: str, trials: Sequence[TrialRow]) -> tuple[ScheduleView, ...]:
    """Return the learned schedules of `trials`; of an unfinished one, what is decided. Raises UnreadableJob."""
    spec = stored_spec(job_id, queries.job_row(session, job_id).spec)
    drawn = queries.samples(trials)  # of no others: to check what a sample sets takes as long as all the rest
    optimizers = {(trial.arm, trial.seed): trial.replica.optimizer for trial in spec.trials(drawn)}
    return tuple(queries.schedule_view(session, trial, optimizer=optimizers[trial.arm, trial.seed]) for trial in trials)


def recorded_schedules(session: Session, job_id: str, trials: Sequence[TrialRow]) -> tuple[ScheduleView, ...]:
    """Return the same, each with the run that it was learned in, and without stages that have no step."""
    job = queries.job_row(session, job_id)
    return tuple(
        view.model_copy(
            update={
                "provenance": queries.provenance(job, trial),
                "entries": tuple(entry for entry in view.entries if entry.num_steps),
            }
        )
        for view, trial in zip(schedules(session, job_id, trials), trials, strict=True)
    )
