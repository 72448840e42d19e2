"""Extensions: more budget, seeds or samples for a job that succeeded. Functions of one open session.

An extension waits until the job's next attempt begins. Until then the job keeps its result and its trials, and can have
back what it had.
"""

from collections.abc import Iterable

from sqlalchemy.orm import Session

from search.config import Budget
from service.control import jobs, queries, sweeps, transfer
from service.control.models import JobRow, Json, TrialRow
from service.job.states import JobState
from service.wire.stored import stored_spec


def ask(job: JobRow, more: Json, *, reopens: bool) -> None:
    """Give the job `more` of its budget, seeds or sweep, and note what it had. Its next attempt begins the extension.

    If it `reopens`, finished trials go on, too.
    """
    had = {"seeds": job.spec["seeds"], "sweep": job.spec.get("sweep")}
    job.before_extension = {
        **had,
        "reopens": reopens,
        "budget": job.spec["budget"],
        "workers": job.spec["workers"]["count"],
        "stopped_by": job.stopped_by,
        "held_s": job.held_s,
        "finished_at": job.finished_at,
        "archived": job.archived,
        "reason": job.reason,
    }
    job.first_budget = job.first_budget or job.spec["budget"]
    job.first_trials = job.first_trials or had
    job.spec = {**job.spec, **more}
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
    had: Json = {name: before[name] for name in ("budget", "seeds", "sweep") if name in before}
    job.spec = {**job.spec, **had, "workers": {**job.spec["workers"], "count": before["workers"]}}
    job.stopped_by, job.held_s = before["stopped_by"], before["held_s"]
    jobs.transition(job, JobState.SUCCEEDED, now=now, reason=reason)
    job.finished_at = before["finished_at"]
    # Rows of earlier releases lack these two, and seeds and sweep.
    job.archived, job.reason = before.get("archived", False), before.get("reason", reason)


def add_trials(session: Session, job: JobRow) -> None:
    """Add the trials of new seeds and samples. All get the places that they would have, had the job begun with these.

    A new seed learns from the same past searches as the other seeds of its arm.
    """
    spec = stored_spec(job.id, job.spec)
    known = {trial.id: trial for trial in queries.trials(session, job.id)}
    if spec.num_trials == len(known):
        return
    priors = {known[name].arm: prior for name, prior in transfer.kept(session, job.id).items() if prior.searches}
    samples, there = jobs.samples_of(spec), {trial.arm for trial in known.values()}
    drawn = {name: each.values for name, each in samples.items() if name not in there and each.values is not None}
    priors |= transfer.sample_priors(session, spec, drawn, project=None if job.sees_all else job.project)
    for fields in jobs.trial_rows(job.id, spec, samples, priors):
        if (trial := known.get(fields["id"])) is not None:
            trial.position = fields["position"]
        else:
            session.add(TrialRow(**fields))


def trials(session: Session, job: JobRow, *, caps: Budget | None) -> list[TrialRow]:
    """Return which trials train in an extension to `caps`: those that never began, and finished ones that get more.

    Without caps no finished one does. Under the caps that the job had, only those do that a stop has ended.
    """
    pruned, had = sweeps.pruned_trials(session, job), (job.before_extension or job.spec)["budget"]
    is_longer = caps is not None and any(cap != had.get(unit) for unit, cap in caps if cap is not None)
    return [
        each
        for each in queries.trials(session, job.id)
        if (each.outcome is None or is_longer or (caps is not None and was_stopped(each)))
        and not is_over(each)
        and each.outcome != "failed"
        and each.stopped_by is None
        and each.id not in pruned
    ]


def waiting(session: Session, job: JobRow) -> list[TrialRow]:
    """Return which trials train in the job's waiting extension."""
    return trials(session, job, caps=budgets(job)[1] if job.reopens else None)


def finished(session: Session, job: JobRow, of_job: Iterable[TrialRow]) -> set[str]:
    """Return the ids of those trials that train no more. Trials that a waiting extension continues do."""
    going_on = {each.id for each in waiting(session, job)} if job.extends else set()
    return {each.id for each in of_job if each.outcome is not None} - going_on


def is_over(trial: TrialRow) -> bool:
    """Return whether the trial is finished for good, under any budget."""
    return trial.outcome == "diverged" or bool((trial.schedule or {}).get("at_target"))


def was_stopped(trial: TrialRow) -> bool:
    """Return whether a stop ended the trial, or its rank at a rung, before its budget was spent."""
    return bool((trial.schedule or {}).get("stopped"))
