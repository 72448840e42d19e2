"""Verbs: a user's requests to an existing job. Functions of one open transaction.

All raise IllegalTransition if `service.job.states.verbs_in` does not allow them. Those that need the job's own parts
raise UnreadableJob if this release cannot read them.
"""

from collections.abc import Collection, Iterator, Sequence

from pydantic import ValidationError
from sqlalchemy.orm import Session

from search.config import Budget
from service.control import attempts, code, events, extensions, jobs, queries, steers, sweeps
from service.control.access.rules import Principal
from service.control.models import JobRow, Json, TrialRow
from service.control.results import progress
from service.errors import IllegalTransition, InvalidJob, PreconditionFailed
from service.job.problems import Problem, problems_of
from service.job.spec import JobSpec
from service.job.states import ALLOWED_IN, ONCE_RUN, TRIALS_STOP_IN, JobState, Verb
from service.wire.events import EventKind
from service.wire.steering import SteerRequest
from service.wire.stored import stored_spec
from service.wire.trials import UNSUCCESSFUL

#: The versions of a job that its user has seen; None: the verb applies to any version.
Versions = Collection[int] | None


def require_version(job: JobRow, versions: Versions) -> None:
    """Raise PreconditionFailed unless the job is in one of the `versions` that its user saw."""
    if versions is None or job.version in versions:
        return
    seen = f"not {_listed(str(each) for each in sorted(versions))}" if versions else "which `If-Match` does not name"
    because = f" ({job.reason})" if job.reason else ""
    raise PreconditionFailed(
        f"job `{job.id}` is {job.state} now{because}, at version {job.version}, {seen}; what it allows now: "
        f"{_allowed(job)}. Nothing was done: look at it, and ask again"
    )


def require_allowed(job: JobRow, verb: Verb) -> None:
    """Raise IllegalTransition unless the job allows `verb` now."""
    if verb in queries.verbs_of(job):
        return
    if verb is Verb.STOP and job.stops and job.job_state in ONCE_RUN[verb]:
        raise IllegalTransition(
            f"job `{job.id}` was stopped already; its next attempt ends it; what it allows now: {_allowed(job)}"
        )
    needed = _listed(state.value for state in JobState if state in ALLOWED_IN[verb])
    raise IllegalTransition(
        f"job `{job.id}` is {job.state}: `{verb}` is for one that is {needed}; what it allows now: {_allowed(job)}"
    )


def _allowed(job: JobRow, but: Verb | None = None) -> str:
    return _listed(f"`{each}`" for each in queries.job_view(job).verbs if each is not but) or "nothing"


def pause(_: Session, job: JobRow, *, by: Principal, now: float) -> None:
    """Hold back a queued job, or make a running job's driver write a checkpoint and release its resources.

    If the queue is already pausing the job, it now stays paused until a person resumes it.
    """
    if job.job_state is JobState.PAUSING and job.preempted_by is not None:
        job.preempted_by = None
        jobs.explain(job, f"paused by {by.name}")
        return
    require_allowed(job, Verb.PAUSE)
    job.preempted_by = None
    to = JobState.PAUSED if job.job_state is JobState.QUEUED else JobState.PAUSING
    jobs.transition(job, to, now=now, reason=f"paused by {by.name}")


def resume(_: Session, job: JobRow, *, workers: int | None, by: Principal, now: float) -> None:
    """Queue a paused job at its old place, since places go by age. `workers` is as in `retry`."""
    require_allowed(job, Verb.RESUME)
    stored_spec(job.id, job.spec)  # raises if its next attempt could not begin
    _queue(job, workers=workers, now=now, reason=f"resumed by {by.name}")


def stop(session: Session, job: JobRow, *, by: Principal, now: float) -> None:
    """End a job that has run as if its budget were spent. If it has no driver now, its next one does so.

    A job whose extension waits is not extended: it has its result.
    """
    require_allowed(job, Verb.STOP)
    if job.extends:
        extensions.take_back(job, reason=f"its extension was stopped by {by.name}", now=now)
        return
    if job.job_state is not JobState.RUNNING and not _has_result(session, job):
        raise IllegalTransition(
            f"job `{job.id}` is {job.state}, and no trial has a checkpoint yet: `cancel` it; what it allows now: "
            f"{_allowed(job, but=Verb.STOP)}"
        )
    job.stopped_by = by.name
    reason = attempts.stopped_early(job)
    if job.job_state is JobState.RUNNING:
        jobs.transition(job, JobState.STOPPING, now=now, reason=reason)
    elif job.job_state is JobState.PAUSED:
        stored_spec(job.id, job.spec)  # as in `resume`
        _queue(job, workers=None, now=now, reason=reason)
    else:  # its next driver learns of it at its start, or with its first report
        jobs.explain(job, reason)


def stop_trial(session: Session, job: JobRow, *, trial_id: str, by: Principal, now: float) -> None:
    """End one trial as if its budget were spent. If the job has no driver now, its next one does so.

    The others go on. A trial without a checkpoint by then is left out. Raises NotFound for an unknown trial.
    """
    (trial,) = queries.trials(session, job.id, trial_id=trial_id)
    _require_stoppable(job, trial)
    trial.stopped_by = by.name
    jobs.change(job)
    events.tell(trial, EventKind.TRIAL_STOPPED, trial_id=trial.id, by=by.name)


def _require_stoppable(job: JobRow, trial: TrialRow) -> None:
    """Raise IllegalTransition if the trial cannot be stopped alone: it has ended, ends anyway, or waits to go on."""
    if job.job_state not in TRIALS_STOP_IN:
        needed = _listed(state.value for state in JobState if state in TRIALS_STOP_IN)
        why = f"job `{job.id}` is {job.state}: a trial is stopped in one that is {needed}"
    elif job.stops:
        why = f"job `{job.id}` was stopped already, with all its trials"
    elif job.extends:  # the stop would outlive an extension that is taken back, and keep the trial out of the next
        why = (
            f"job `{job.id}` waits for its extension to begin: stop trial `{trial.id}` once it has, or `cancel` the "
            "extension"
        )
    elif trial.outcome is not None:
        why = f"trial `{trial.id}` has ended, {trial.outcome}: only one that has not can be stopped"
    elif trial.stopped_by is not None:
        why = f"trial `{trial.id}` was stopped already, by {trial.stopped_by}, and ends when its driver hears of it"
    else:
        return
    raise IllegalTransition(f"{why}; what the job allows now: {_allowed(job)}")


def cancel(_: Session, job: JobRow, *, by: Principal, now: float) -> None:
    """End a waiting job at once, or ask a running job's driver to stop. An extension that waits is taken back."""
    require_allowed(job, Verb.CANCEL)
    if job.extends:
        extensions.take_back(job, reason=f"its extension was cancelled by {by.name}", now=now)
        return
    waits = job.job_state in (JobState.QUEUED, JobState.PAUSED)
    to = JobState.CANCELLED if waits else JobState.CANCELLING
    jobs.transition(job, to, now=now, reason=f"cancelled by {by.name}")


def retry(session: Session, job: JobRow, *, workers: int | None, by: Principal, now: float) -> None:
    """Queue a failed or cancelled job again, with as many attempts as a new one. It resumes where it was.

    Failed samples are trained again, and trials that a stop ended go on. Runs resume with `workers`, None: as many as
    before. Raises InvalidJob for a number that the job cannot have, and if every trial diverged.
    """
    require_allowed(job, Verb.RETRY)
    spec = stored_spec(job.id, job.spec)
    trials = queries.trials(session, job.id)
    if all(trial.outcome == "diverged" for trial in trials):
        message = "every trial diverged, and is over: clone the job with what its reason advises"
        raise InvalidJob([Problem(pointer="", message=message)])
    code.use(session, spec, project=job.project, now=now)
    for trial in trials:
        if trial.outcome == "failed":  # its cause may be fixed by now
            trial.outcome = trial.schedule = None
    for trial in _stopped(session, job):
        attempts.reopen(session, trial, before=spec.budget, budget=spec.budget)
    _take_back_stops(job, trials)
    job.waited_s = 0.0
    _queue(job, workers=workers, now=now, reason=f"tried again by {by.name}")


def extend(
    session: Session,
    job: JobRow,
    *,
    caps: Budget | None,
    seeds: Sequence[int],
    samples: int | None,
    workers: int | None,
    by: Principal,
    now: float,
) -> None:
    """Queue a finished job again with larger values of the `caps` that it has, further `seeds`, or `samples` in all.

    `workers` is as in `retry`.
    Under larger caps, every trial that ended well resumes from the point where its schedule began to depend on the
    budget's end, else from its end. Under the caps that the job had, only trials that a stop ended go on, from there. A
    trial at the job's target stays finished. Without caps, all finished trials do.
    All this happens when the next attempt begins: until then the job has its result.
    Raises InvalidJob for what is not more than the job has, if no trial would train, or if a sweep would compare
    samples after different steps.
    """
    require_allowed(job, Verb.EXTEND)
    spec = stored_spec(job.id, job.spec)
    is_left = bool(extensions.trials(session, job, caps=spec.budget))
    larger = spec.budget if caps is None else _larger(spec, caps, is_left=is_left)
    trials = extensions.trials(session, job, caps=caps)
    more = _more_trials(job, spec, seeds, samples)
    if not more:
        _require_training(spec, trials, larger)
    _require_same_rungs(session, job, spec, larger)
    if samples is not None:
        _require_first_budget(job, spec, larger)
    code.use(session, spec, project=job.project, now=now)
    extensions.ask(job, {"budget": larger.model_dump(mode="json"), **more}, reopens=caps is not None)
    told = [_begin(trial, is_longer=larger != spec.budget) for trial in trials]
    begins = "; ".join([*told, *_added(spec, seeds, samples)])
    _queue(job, workers=workers, now=now, reason=f"extended by {by.name}: {begins}")


def _more_trials(job: JobRow, spec: JobSpec, seeds: Sequence[int], samples: int | None) -> Json:
    """Return the changed fields of the job with further `seeds`, and `samples` in all. Raises InvalidJob."""
    problems = [
        Problem(pointer=f"/seeds/{index}", message=f"the job already has the seed {seed}, or gets it twice", value=seed)
        for index, seed in enumerate(seeds)
        if seed in (*spec.seeds, *seeds[:index])
    ]
    if samples is not None and samples <= spec.num_samples:
        message = f"`samples` must be more than {spec.num_samples}, what the job has"
        problems.append(Problem(pointer="/samples", message=message, value=samples))
    elif samples is not None and not spec.params:
        message = "the job has no `params` to draw samples of: clone it with some"
        problems.append(Problem(pointer="/samples", message=message, value=samples))
    if problems:
        raise InvalidJob(problems)
    more: Json = {"seeds": [*spec.seeds, *seeds]} if seeds else {}
    if samples is not None:
        more["sweep"] = spec.sweep_config.model_dump(mode="json") | {"samples": samples}
    try:
        JobSpec.stored({**job.spec, **more})
    except ValidationError as error:  # too many in all
        raise InvalidJob(problems_of(error, {**job.spec, **more}, JobSpec)) from error
    return more


def _require_first_budget(job: JobRow, spec: JobSpec, budget: Budget) -> None:
    """Raise InvalidJob if new samples would reach their rungs after other steps than the first ones."""
    first = Budget.model_validate(job.first_budget or job.spec["budget"], extra="ignore")
    if spec.sweep_config.rungs() and first != budget:
        message = (
            f"the first samples were compared at shares of {_caps(first.model_dump(exclude_none=True))}, and new ones "
            "would be at those of a larger budget: clone the job with more samples"
        )
        raise InvalidJob([Problem(pointer="/samples", message=message)])


def _require_training(spec: JobSpec, trials: Sequence[TrialRow], larger: Budget) -> None:
    """Raise InvalidJob unless one of the `trials` would train under the budget `larger`."""
    caps = larger.model_dump(exclude_none=True)
    if any(progress.used(caps, trial) < 1 for trial in trials):
        return
    if trials:
        message = f"no trial would train: each has spent a cap of {_caps(caps)}: give more of what is spent"
    elif spec.objective.target is not None:
        message = "no trial is short of `objective.target`: clone the job with another one"
    else:
        message = "no trial would train: each has diverged, failed or been pruned, or was stopped alone: clone the job"
    raise InvalidJob([Problem(pointer="", message=message)])


def _require_same_rungs(session: Session, job: JobRow, spec: JobSpec, larger: Budget) -> None:
    """Raise InvalidJob if `larger` moves the rungs of a sweep that unfinished samples have yet to reach."""
    before, after = (each.model_dump(exclude_none=True) for each in (spec.budget, larger))
    more = {unit: cap for unit, cap in after.items() if cap != before[unit]}
    if not more or not (late := sweeps.short_of_a_rung(session, job, spec)):
        return
    why = (
        f"while a stop has left samples unfinished, such as `{late[0]}`: the others were compared at shares of that "
        "budget. `extend` the job to it first, and further once all have finished"
    )
    problems = [
        Problem(pointer=f"/{unit}", message=f"`{unit}` must stay {before[unit]:g} {why}", value=cap)
        for unit, cap in more.items()
    ]
    raise InvalidJob(problems)


def steer(session: Session, job: JobRow, *, asked: SteerRequest, by: Principal, now: float) -> None:
    """Steer the controllers of an unfinished job from their next stage on."""
    require_allowed(job, Verb.STEER)
    steers.steer(session, job, asked=asked, by=by, now=now)


def checkpoints(session: Session, job: JobRow, verb: Verb, *, caps: Budget | None) -> list[str]:
    """Return the checkpoints from which the job would resume after a retry, or an extension to `caps`.

    A trial that an extension continues may need two: its budget says from which it goes on.
    """
    trials = queries.trials(session, job.id)
    if verb is Verb.EXTEND:
        ended = extensions.trials(session, job, caps=caps)
    else:
        ended = [*_stopped(session, job), *(each for each in trials if each.outcome == "failed")]
    going_on = {trial.id for trial in (*ended, *(each for each in trials if each.outcome is None))}
    resumes = [attempts.resume_of(session, trial) for trial in trials if trial.id in going_on]
    if verb is Verb.EXTEND:
        resumes += [trial.steady["resume"] for trial in ended if trial.outcome == "completed" and trial.steady]
    return [str(resume["checkpoint"]) for resume in resumes if resume and "checkpoint" in resume]


def _stopped(session: Session, job: JobRow) -> list[TrialRow]:
    """Return the trials that a stop ended, which a retry takes back. A pruned sample ended by its rank.

    With `lanes.after: insurance` both lines have ended, so none of them can go on.
    """
    if job.spec.get("lanes", {}).get("after") == "insurance":
        return []
    pruned = sweeps.pruned_trials(session, job)
    return [
        each
        for each in queries.trials(session, job.id)
        if each.outcome == "completed"
        and extensions.was_stopped(each)
        and not extensions.is_over(each)
        and each.id not in pruned
    ]


def _take_back_stops(job: JobRow, trials: Sequence[TrialRow]) -> None:
    """Let the job, and those of its trials that have not ended, train to the end of their budgets."""
    job.stopped_by, job.held_s = None, 0.0
    for trial in trials:
        if trial.outcome is None:
            trial.stopped_by = None


def _has_result(session: Session, job: JobRow) -> bool:
    """Return whether any trial has ended well or can resume. A stop leaves out trials that never began."""
    return any(
        attempts.resume_of(session, trial) is not None if trial.outcome is None else trial.outcome not in UNSUCCESSFUL
        for trial in queries.trials(session, job.id)
    )


def _queue(job: JobRow, *, workers: int | None, now: float, reason: str) -> None:
    job.attempts_before, job.not_before, job.preempted_by = job.attempt, 0.0, None
    before = job.spec["workers"]["count"]
    if workers not in (None, before):
        _change_workers(job, workers)
        reason = f"{reason}, with {workers} workers instead of {before}"
    jobs.transition(job, JobState.QUEUED, now=now, reason=reason)


def _change_workers(job: JobRow, count: int) -> None:
    workers = job.spec["workers"]
    spec = {**job.spec, "workers": {**workers, "count": count}}
    try:
        apart = JobSpec.model_validate(spec).apart_under
    except ValidationError as error:
        raise InvalidJob(problems_of(error, spec, JobSpec)) from error
    if apart:
        message = (
            f"under {', '.join(sorted(apart))} each worker has parameters, or gradients, of its own, so the job goes "
            f"on with {workers['count']} workers alone, got {count}; clone it instead"
        )
        raise InvalidJob([Problem(pointer="/workers", message=message, value=count)])
    job.first_workers = job.first_workers or workers["count"]
    job.spec = spec


def _larger(spec: JobSpec, caps: Budget, *, is_left: bool) -> Budget:
    """Return the job's budget with `caps`. They may be the same if part of it `is_left`, as after a stop."""
    before, given = (each.model_dump(exclude_none=True) for each in (spec.budget, caps))
    problems = []
    for unit, cap in given.items():
        if unit not in before:
            message = f"the job's budget has no `{unit}`; extend what it has: {_caps(before)}"
            problems.append(Problem(pointer=f"/{unit}", message=message, value=cap))
        elif cap < before[unit]:
            message = f"`{unit}` must be at least {before[unit]:g}, what the job had"
            problems.append(Problem(pointer=f"/{unit}", message=message, value=cap))
    if spec.lanes.after == "insurance":
        message = "a job with `lanes.after: insurance` gets no larger budget: both lines have ended; clone it instead"
        problems.append(Problem(pointer="", message=message))
    elif not problems and not is_left and given.items() <= before.items():
        message = f"nothing is larger: the job has {_caps(before)}: give more"
        problems.append(Problem(pointer="", message=message))
    if problems:
        raise InvalidJob(problems)
    return spec.budget.model_copy(update=given)


def _caps(budget: dict[str, float]) -> str:
    return _listed(f"{cap:g} {unit}" for unit, cap in budget.items())


def _begin(trial: TrialRow, *, is_longer: bool) -> str:
    name = f"`{trial.id.partition('.')[2]}`"
    if trial.outcome is None:
        return f"{name} begins"
    if trial.steady is None or not is_longer:
        return f"{name} goes on from its end, step {trial.step}"
    return f"{name} goes on from step {trial.steady['step']}, before its rate followed the budget's end"


def _added(spec: JobSpec, seeds: Sequence[int], samples: int | None) -> Iterator[str]:
    if seeds:
        yield f"new seeds: {', '.join(map(str, seeds))}"
    if samples is not None:
        yield f"new samples: {samples - spec.num_samples}"


def _listed(words: Iterator[str]) -> str:
    *others, last = [*words] or [""]
    return f"{', '.join(others)} or {last}" if others else last
