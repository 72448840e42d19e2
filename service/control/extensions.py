"""Extensions: more budget for a job that succeeded. Functions of one open session.

An extension waits until the job's next attempt begins. Until then the job keeps its result, and can have its old budget
back.
"""

from collections.abc import Iterable

from sqlalchemy.orm import Session

from search.config import Budget
from service.control import jobs, queries, sweeps
from service.control.models import JobRow, TrialRow
from service.job.states import JobState


def ask(job: JobRow, budget: Budget) -> None:
    """Give the job the larger `budget`, and note what it had before. Its next attempt begins the extension."""
    job.before_extension = {
        "budget": job.spec["budget"],
        "workers": job.spec["workers"]["count"],
        "stopped_by": job.stopped_by,
        "held_s": job.held_s,
        "finished_at": job.finished_at,
        "archived": job.archived,
        "reason": job.reason,
    }
    job.first_budget = job.first_budget or job.spec["budget"]
    job.spec = {**job.spec, "budget": budget.model_dump(mode="json")}
    job.stopped_by, job.waited_s, job.held_s = None, 0.0, 0.0


def budgets(job: JobRow) -> tuple[Budget, Budget]:
    """Return the budgets before and after the job's waiting extension."""
    assert job.before_extension is not None
    before, after = job.before_extension["budget"], job.spec["budget"]
    return Budget.model_validate(before, extra="ignore"), Budget.model_validate(after, extra="ignore")


def take_back(job: JobRow, *, reason: str, now: float) -> None:
    """Give the job back all that it had before its waiting extension. Its history and messages tell the `reason`."""
    assert job.before_extension is not None
    before, job.before_extension = job.before_extension, None
    workers = {**job.spec["workers"], "count": before["workers"]}
    job.spec = {**job.spec, "budget": before["budget"], "workers": workers}
    job.stopped_by, job.held_s = before["stopped_by"], before["held_s"]
    jobs.transition(job, JobState.SUCCEEDED, now=now, reason=reason)
    job.finished_at = before["finished_at"]
    # Rows of earlier releases lack these two.
    job.archived, job.reason = before.get("archived", False), before.get("reason", reason)


def trials(session: Session, job: JobRow) -> list[TrialRow]:
    """Return the trials that an extension gives more budget."""
    pruned = sweeps.pruned_trials(session, job)
    return [
        each
        for each in queries.trials(session, job.id)
        if not is_over(each) and each.outcome != "failed" and each.stopped_by is None and each.id not in pruned
    ]


def finished(session: Session, job: JobRow, of_job: Iterable[TrialRow]) -> set[str]:
    """Return the ids of those trials that train no more. Trials that a waiting extension continues do."""
    going_on = {each.id for each in trials(session, job)} if job.extends else set()
    return {each.id for each in of_job if each.outcome is not None} - going_on


def is_over(trial: TrialRow) -> bool:
    """Return whether the trial is finished for good, under any budget."""
    return trial.outcome == "diverged" or bool((trial.schedule or {}).get("at_target"))
