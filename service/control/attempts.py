"""The life of an attempt: begin it with a lease, renew it, end it, and drop what a resumed job repeats."""

import re
import secrets
from collections.abc import Collection

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from search.budget import spending
from search.config import Budget
from search.types import Allowance
from service.control import extensions, jobs, messages, queries, steers, sweeps, transfer
from service.control.metrics import points
from service.control.metrics.points import Key
from service.control.models import AttemptRow, JobRow, Json, ProbeRow, StageRow, TrialRow
from service.control.queue import quotas
from service.control.queue.capacity import Shape, Size
from service.control.queue.queued import MAX_BACK_OFF_S
from service.control.results import divergence, ranking
from service.errors import Fenced
from service.job.priority import Priority
from service.job.states import ACTIVE, JobState, Occasion
from service.wire.records import Bill, Checkpointed, Control, ResumePoint, Sample, Searched

_BACK_OFF_S = 2.0  # doubled by every attempt
#: The prefix of the ids of our Ray Jobs.
PREFIX = "wiretune-"
_NAME = re.compile(rf"(?:{PREFIX})?(job-[0-9a-f]+)-a(\d+)(?:-[0-9a-f]+)?")
_TOLD = {JobState.PAUSING: Control.PAUSE, JobState.STOPPING: Control.STOP, JobState.CANCELLING: Control.CANCEL}
#: The next state of a job whose attempt has ended in any way, by the job's state.
_WANTED = {JobState.PAUSING: JobState.PAUSED, JobState.CANCELLING: JobState.CANCELLED}


def submission_id(job_id: str, number: int) -> str:
    """Return a new id for the attempt's Ray Job. The attempt keeps it, however often it is submitted.

    The id ends in random characters. A restored database may begin an attempt number again whose Ray Job a running Ray
    has already seen end.
    """
    return f"{PREFIX}{job_id}-a{number}-{secrets.token_hex(4)}"


def attempt_named(name: str) -> tuple[str, int] | None:
    """Parse the job and attempt number from a Ray Job's id or the name of Tune's folder; None for other names."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


def begin(session: Session, job: JobRow, size: Size, *, trials: int, now: float, lease_s: float) -> AttemptRow:
    """Start the job's next attempt at `size`, and drop what its trials reported after their last checkpoint.

    An extension that waited for it begins, too.
    """
    job.attempt += 1
    job.preempted_by = None
    if job.extends:
        _begin_extension(session, job)
    # Before the transition, whose event contains the trials' clocks.
    begun = (TrialRow.job_id == job.id, TrialRow.outcome.is_(None), TrialRow.backend.is_not(None))
    for trial in session.scalars(select(TrialRow).where(*begun)):  # others have nothing to drop, and may be thousands
        _rewind(session, trial)
    jobs.transition(job, JobState.STARTING, now=now)
    attempt = AttemptRow(
        job_id=job.id,
        number=job.attempt,
        submission_id=submission_id(job.id, job.attempt),
        began_at=now,
        lease_expires=now + lease_s,
        cpus=size.cpus,
        gpus=size.gpus,
        workers=size.workers,
        trials=trials,
    )
    session.add(attempt)
    return attempt


def _rewind(session: Session, trial: TrialRow) -> None:
    """Take the trial back to where it can resume. Everything later will be reported again."""
    step, bill = -1, Bill()  # the trial begins anew
    if trial.searching is not None:
        search = Searched.model_validate(trial.searching, extra="ignore")
        _forget_stages(session, trial, beyond=search.stage - 1, but=search.probes)
        step, bill = search.step, search.bill
    else:
        stage = last_resumable(session, trial.id)
        _forget_stages(session, trial, beyond=-1 if stage is None else stage.stage)
        if stage is not None and stage.resume_step is not None:
            step, bill = stage.resume_step, Bill.model_validate(stage.bill, extra="ignore")
    forget_beyond(session, trial, step)
    keep(trial, max(0, step), bill)


def take_back_stages(session: Session, trial: TrialRow, step: int) -> None:
    """Note that stages that began at `step` or later keep no steps: the run went back to there."""
    beyond = (StageRow.trial_id == trial.id, StageRow.first_step >= step)
    session.execute(update(StageRow).where(*beyond).values(num_steps=0))


def _begin_extension(session: Session, job: JobRow) -> None:
    """Reopen the trials to which the waiting extension gives more, and add its new ones. The job loses its result."""
    before, budget = extensions.budgets(job)
    for trial in extensions.waiting(session, job):
        reopen(session, trial, before=before, budget=budget)
    extensions.add_trials(session, job)
    job.before_extension = None


def _forget_stages(session: Session, trial: TrialRow, *, beyond: int, but: Collection[str] = ()) -> None:
    """Delete the decisions of the stages `beyond` a number, and their probes except `but`."""
    session.execute(delete(StageRow).where(StageRow.trial_id == trial.id, StageRow.stage > beyond))
    probes = delete(ProbeRow).where(ProbeRow.trial_id == trial.id, ProbeRow.stage > beyond)
    session.execute(probes.where(ProbeRow.probe_id.not_in(but)))


def reopen(session: Session, trial: TrialRow, *, before: Budget, budget: Budget) -> None:
    """Let a finished trial go on, from the point where its schedule began to depend on the budget's end, else its end.

    Its budget was `before`. If `budget` is the same, a stop has ended the trial, and it goes on from its end. Its last
    weights stay until it has new ones.
    """
    trial.outcome = trial.schedule = None
    if before == budget:
        return
    trial.searching = None  # begins anew: probes have a share of the budget, and are compared at equal cost
    if trial.steady is None:
        return
    point, trial.steady = Checkpointed.model_validate(trial.steady, extra="ignore"), None
    _forget_stages(session, trial, beyond=point.stage)
    stage = session.get_one(StageRow, (trial.id, point.stage))
    stage.closed, stage.num_steps, stage.density, stage.threshold, stage.loss = False, None, None, None, None
    stage.resume, stage.resume_step, stage.bill = point.resume, point.step, point.bill.model_dump(mode="json")
    until = Allowance.model_validate(stage.decision["commit_until"], extra="ignore")  # the driver moves it as well
    has_stages = stage.decision.get("tax", {}).get("cap_share") is not None  # as `Decision.has_stages` says
    moved = spending.stretched_end(until, before, budget, has_stages=has_stages)
    if moved != until:  # the forecast was of the old end
        stage.decision = {**stage.decision, "commit_until": moved.model_dump(mode="json"), "forecast": None}
        stage.forecast = stage.forecast_std = None


def forget_beyond(session: Session, trial: TrialRow, step: int) -> None:
    """Delete the measurements beyond `step` committed steps (-1: all), and update the trial's row to what remains."""
    points.forget(session, trial.id, step)
    committed = select(StageRow).where(StageRow.trial_id == trial.id, StageRow.num_steps.is_distinct_from(0))
    stage = session.scalars(committed.order_by(StageRow.stage.desc()).limit(1)).first()
    rate = points.newest(session, Key(trial.id, "learning_rate"))  # within a ramp, the rate that it had reached
    trial.learning_rate = stage.learning_rate if rate is None and stage is not None else rate
    trial.level = None if stage is None else stage.level
    trial.validation_loss = points.newest(session, Key(trial.id, "validation_loss"))
    trial.validation_metrics = {
        name: points.newest(session, Key(trial.id, f"validation_{name}")) for name in trial.metric_directions
    }


def keep(trial: TrialRow, step: int, bill: Bill) -> None:
    """Record that the trial has `step` committed steps, at the cost of `bill`."""
    trial.step, trial.seconds, trial.bill = step, bill.seconds_training, bill.model_dump(mode="json")


def resume_points(session: Session, job: JobRow) -> tuple[ResumePoint, ...]:
    """Return each trial's resume point, with its prior from past jobs and its steers."""
    priors, pruned_at = transfer.kept(session, job.id), sweeps.pruned_trials(session, job)
    # Nobody reads the resume of a finished trial, and a sweep has hundreds of these.
    trials = [
        (trial, resume_of(session, trial) if trial.outcome is None else None)
        for trial in queries.trials(session, job.id)
    ]
    return tuple(
        ResumePoint(
            trial_id=trial.id,
            finished=trial.outcome is not None,
            resume=resume,
            prior=priors[trial.id],
            steers=steers.of_trial(session, job, trial.id),
            sample=None if trial.sample is None else Sample.model_validate(trial.sample, extra="ignore"),
            pruned=sweeps.is_to_end(trial, pruned_at, resume),
            stopped=trial.stopped_by is not None,
        )
        for trial, resume in trials
    )


def resume_of(session: Session, trial: TrialRow) -> Json | None:
    """Return the state from which a later attempt resumes the trial; None: it starts anew."""
    if trial.searching is not None:
        resume: Json = trial.searching["resume"]
        return resume
    stage = last_resumable(session, trial.id)
    return None if stage is None else stage.resume


def last_resumable(session: Session, trial_id: str) -> StageRow | None:
    """Return the stage, closed or checkpointed, from which a later attempt resumes; None: it starts anew."""
    resumable = select(StageRow).where(StageRow.trial_id == trial_id, StageRow.resume_step.is_not(None))
    return session.scalars(resumable.order_by(StageRow.stage.desc()).limit(1)).first()


def drop_resumes(session: Session, trial_id: str, *, before: int) -> None:
    """Drop the resumes of stages `before` a number: a trial only goes on from its last one, and they are large."""
    earlier = (StageRow.trial_id == trial_id, StageRow.stage < before, StageRow.resume_step.is_not(None))
    session.execute(update(StageRow).where(*earlier).values(resume=None, resume_step=None))


def preempt(job: JobRow, by: JobRow, *, now: float) -> None:
    """Pause the running job for `by`. Do nothing unless `by` still waits and has a higher priority."""
    outranks = Priority(by.priority).rank > Priority(job.priority).rank
    if job.job_state is JobState.RUNNING and by.job_state is JobState.QUEUED and outranks:
        job.preempted_by = by.id
        named = f"job `{by.id}`" if by.project == job.project else "a job of another project"
        reason = f"paused for {named} of priority {by.priority}; it goes on by itself"
        jobs.transition(job, JobState.PAUSING, now=now, reason=reason)


def regroup(job: JobRow, *, now: float) -> None:
    """Pause the running job briefly, so that it resumes with more workers. Do nothing if it no longer runs."""
    if job.job_state is JobState.RUNNING:
        job.preempted_by = job.id  # nobody has to resume it
        reason = "paused for a moment: there is room for more of its workers, with which it goes on by itself"
        jobs.transition(job, JobState.PAUSING, now=now, reason=reason)


def num_workers(job: JobRow, attempt: AttemptRow) -> int | None:
    """Return the number of workers in each lane of the attempt; None if an earlier release began it."""
    if attempt.workers is None:
        return None
    return attempt.workers // (Shape.of_json(job.spec).lanes * (attempt.trials or 1))


def require_owner(session: Session, job: JobRow, number: int) -> AttemptRow:
    """Return attempt `number` if it still owns the job; raises Fenced."""
    attempt = session.get(AttemptRow, (job.id, number))
    if attempt is None or number != job.attempt:
        raise Fenced(f"attempt {number} does not own job `{job.id}`; its last attempt is {job.attempt}")
    if attempt.ended_at is not None:
        raise Fenced(f"attempt {number} of job `{job.id}` has ended: {attempt.reason or attempt.outcome}")
    return attempt


def control(job: JobRow) -> Control:
    """Return the control request to the job's current driver."""
    if job.job_state is JobState.STARTING and job.stops:
        return Control.STOP
    return _TOLD.get(job.job_state, Control.RUN)


def stopped_early(job: JobRow) -> str:
    """Return who or what stopped the job early, as its reason; "" if nothing did."""
    if job.stopped_by is not None:
        return f"stopped early by {job.stopped_by}"
    return f"stopped: it held its workers for {job.wall_limit_s:.10g} s, its limit" if job.is_at_limit else ""


def hold(job: JobRow, attempt: AttemptRow, held_s: float, *, now: float) -> None:
    """Count the time for which the attempt has held its workers, and stop a running job that reaches its limit.

    The driver measures `held_s`, all of its life, by a clock that nobody sets. So jumps of the service's clock do not
    count, its absence does, and a renewal that comes twice counts once.
    """
    if job.wall_limit_s is None:  # the usual case, and every driver calls this every few seconds
        return
    job.held_s += max(0.0, held_s - attempt.held_s)
    attempt.held_s = max(held_s, attempt.held_s)
    if job.is_at_limit and job.job_state is JobState.RUNNING:
        jobs.transition(job, JobState.STOPPING, now=now, reason=stopped_early(job))


def run(job: JobRow, *, now: float) -> None:
    """Record the first report of a starting job's driver."""
    to = JobState.STOPPING if job.stops else JobState.RUNNING
    jobs.transition(job, to, now=now, reason=stopped_early(job))


def end(session: Session, job: JobRow, attempt: AttemptRow, *, outcome: str, reason: str, now: float) -> None:
    """Close the attempt. Its writes are refused from now on, and its use counts in its project's share."""
    attempt.ended_at, attempt.outcome, attempt.reason = now, outcome, reason
    if attempt.cpus is not None and attempt.gpus is not None:
        quotas.charge(session, job.project, Size(attempt.cpus, attempt.gpus), began_at=attempt.began_at, now=now)


def lose(session: Session, job: JobRow, *, reason: str, now: float, max_attempts: int) -> None:
    """End the current attempt for `reason`. The job queues again or fails, or completes its cancel or pause."""
    if job.job_state not in ACTIVE:
        return
    attempt = require_owner(session, job, job.attempt)
    if (wanted := _WANTED.get(job.job_state)) is not None:
        why = reason if job.preempted_by is None else job.reason  # the driver sees any pause as a person's
        end(session, job, attempt, outcome=wanted.value, reason=why, now=now)
        if wanted is JobState.PAUSED and job.preempted_by is not None:  # nobody has to resume it
            wanted, job.attempts_before, job.not_before = JobState.QUEUED, job.attempt, 0.0
        jobs.transition(job, wanted, now=now, reason=job.reason)
        return
    end(session, job, attempt, outcome="failed", reason=reason, now=now)
    num_tried = job.attempt - job.attempts_before
    if num_tried >= max_attempts:
        jobs.transition(job, JobState.FAILED, now=now, reason=reason)
    else:
        job.not_before = now + back_off_s(num_tried)
        jobs.transition(job, JobState.QUEUED, now=now, reason=f"attempt {job.attempt} ended: {reason}")
    messages.add(job, Occasion.ATTEMPT_LOST, reason=reason, now=now)


def back_off_s(num_tried: int) -> float:
    """Return the seconds to wait after `num_tried` attempts in a row without progress. The first may be chance."""
    return 0.0 if num_tried == 1 else min(MAX_BACK_OFF_S, _BACK_OFF_S * 2 ** (num_tried - 2))


def succeed(session: Session, job: JobRow, *, now: float) -> None:
    """End the current attempt with the job's result. A job being cancelled is cancelled; one about to pause succeeds.

    If every trial diverged, or every sample failed, or a stop came before any result, the job fails: another attempt
    would do no better.
    """
    attempt = require_owner(session, job, job.attempt)
    trials = [queries.trial_view(trial) for trial in queries.trials(session, job.id)]
    has_left_out = job.stops or any(trial.stopped_by is not None for trial in trials)
    failure = divergence.why_all(trials, stopped=has_left_out)
    if failure and job.is_at_limit:
        failure = f"{failure} ({stopped_early(job)})"
    end(session, job, attempt, outcome="failed" if failure else "succeeded", reason=failure or "", now=now)
    if job.job_state is JobState.CANCELLING:
        jobs.transition(job, JobState.CANCELLED, now=now, reason=job.reason)
        return
    if failure:
        jobs.transition(job, JobState.FAILED, now=now, reason=failure)
        return
    if job.job_state is JobState.STARTING:  # every trial had finished in an earlier attempt
        run(job, now=now)
    jobs.transition(job, JobState.SUCCEEDED, now=now, reason=stopped_early(job))
    if (best := ranking.job_result(ranking.metric_of(job.spec), trials)) is not None:
        job.result, job.score = best
