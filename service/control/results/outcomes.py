"""Reports, comparisons and learned schedules of jobs. Functions of one open session; they only read."""

import sys
from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.control import events, queries, sweeps
from service.control.models import JobRow, TrialRow
from service.control.recent import Recent
from service.control.results.comparison import common_metric, comparison
from service.control.results.facts import trial_facts
from service.control.results.report import TrialFacts, job_report
from service.job.states import TERMINAL
from service.wire.comparison import Comparison
from service.wire.events import EventKind
from service.wire.reports import JobReport, Prices
from service.wire.stored import stored_spec
from service.wire.trials import ScheduleView

#: Kinds of events that change a report.
REPORTED = frozenset(EventKind) - {EventKind.PROGRESS, EventKind.PROBE, EventKind.CHECKPOINT, EventKind.STEERED}


class ReportCache:
    """A memory of finished trials and of reports. The keys change with what they name, so nothing goes stale.

    facts: of finished trials, by the trial, the job's attempt, the trial's outcome and steps.
    reports: by the job, its version, and the newest event that changes its report.
    """

    def __init__(self, *, num_trials: int, num_jobs: int) -> None:
        self.facts = Recent[tuple[str, int, str | None, int], TrialFacts](num_trials)
        self.reports = Recent[tuple[str, int, int], JobReport](num_jobs)


def report(session: Session, job_id: str, kept: ReportCache, prices: Prices | None = None) -> JobReport:
    """Return the job's report, on every trial and arm. Raises UnreadableJob.

    The facts of finished trials are taken from `kept`, and added to it.
    """
    found = queries.trials(session, job_id)
    row = queries.job_row(session, job_id)
    job = queries.job_view(row)
    facts = _facts(session, row, found, job.readable.objective.metric, kept)
    rungs = sweeps.rungs(session, job_id) if job.readable.params else ()
    ranking = sweeps.report(job.readable, job.state, rungs, [each.view for each in facts])
    return job_report(job, facts, prices=prices, sweep=ranking)


def shared_report(session: Session, job: JobRow, kept: ReportCache, prices: Prices | None) -> JobReport:
    """Return the report as of the newest event that changes it. All readers get the same one."""
    key = (job.id, job.version, events.newest_of(session, job.id, REPORTED))
    found = kept.reports.get(key) or report(session, job.id, kept, prices)
    kept.reports.put(key, found)
    return found


def _facts(
    session: Session, job: JobRow, trials: Sequence[TrialRow], metric: str, kept: ReportCache
) -> list[TrialFacts]:
    """Return the facts of each trial; two statements read the stages and the curves of all that are not known."""
    ends = {trial.id: (trial.id, job.attempt, trial.outcome, trial.step) for trial in trials}
    facts = {trial.id: each for trial in trials if (each := kept.facts.get(ends[trial.id])) is not None}
    others = [trial for trial in trials if trial.id not in facts]
    stages = queries.decided(session, [trial.id for trial in others])
    curves = queries.series_of_each(session, others, f"validation_{metric}", max_points=sys.maxsize)
    for trial, curve in zip(others, curves, strict=True):
        facts[trial.id] = trial_facts(session, trial, stages[trial.id], curve, metric)
        if trial.outcome not in (None, "failed"):  # what a failed one reported last may arrive behind its failure
            kept.facts.put(ends[trial.id], facts[trial.id])
    return [facts[trial.id] for trial in trials]


def compared(session: Session, job_ids: Sequence[str], kept: ReportCache, prices: Prices | None = None) -> Comparison:
    """Compare the jobs, in one consistent snapshot. Raises NotFound and UnreadableJob."""
    rows = [queries.job_row(session, job_id) for job_id in job_ids]
    jobs = [queries.job_view(row) for row in rows]
    reports = [
        # progress changes the report of a job that goes on, and no event of a kept one tells of it
        shared_report(session, row, kept, prices)
        if row.job_state in TERMINAL
        else report(session, row.id, kept, prices)
        for row in rows
    ]
    metric = common_metric(reports)
    trials = [trial for job_id in job_ids for trial in queries.trials(session, job_id)]
    curves = queries.series_of_each(session, trials, f"validation_{metric}", max_points=sys.maxsize)
    return comparison(jobs, reports, metric, list(zip(map(queries.trial_view, trials), curves, strict=True)))


def schedules(session: Session, job_id: str, trials: Sequence[TrialRow]) -> tuple[ScheduleView, ...]:
    """Return the learned schedules of `trials`; of an unfinished one, what is decided. Raises UnreadableJob."""
    spec = stored_spec(job_id, queries.job_row(session, job_id).spec)
    drawn = queries.samples(trials)  # of no others: to check what a sample sets takes as long as all the rest
    optimizers = {(trial.arm, trial.seed): trial.replica.optimizer for trial in spec.trials(drawn)}
    return queries.schedule_views(session, trials, optimizers)


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
