"""Convert rows to public views. Functions of one open session; they only read.

Stored JSON is read without fields unknown here: the database may come from a later release with the same schema.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from search.schedule_file import Provenance
from search.sweep.spec import SampleValues
from service.control.metrics import points
from service.control.metrics.columns import Point
from service.control.metrics.extents import NO_POINTS, extents
from service.control.models import AttemptRow, EventRow, JobRow, Json, ProbeRow, StageRow, TrialRow
from service.control.moments import moment, moment_or_none
from service.control.results import ranking, stage_views
from service.errors import NotFound, UnreadableJob
from service.job.advice import advice
from service.job.changes import value_at
from service.job.priority import Priority
from service.job.spec import JobSpec
from service.job.states import ACTIVE, TERMINAL, Verb, verbs_in
from service.job.steering import has_steerable, is_steerable
from service.wire.events import Event, EventKind
from service.wire.jobs import JobBill, JobProgress, JobSummary, JobView, LostAttempt
from service.wire.records import Bill, Line, Origin, RunEnd, ScheduleEntry
from service.wire.stored import UnreadJob, stored_spec
from service.wire.trials import AttemptView, ScheduleView, Series, SeriesExtent, StageView, TrialView
from trainers.methods.optimizer.spec import JobOptimizer, contenders

#: Verbs that need the job's own parts to be readable.
_OF_READABLE = (Verb.RESUME, Verb.RETRY, Verb.EXTEND)
#: Series that every trial reports, besides the losses and metrics of evaluations.
_SERIES = ("loss", "learning_rate", "density", "bytes_sent", "memory_bytes", "validation_loss")


class NamedPoint(NamedTuple):
    """A measured value of the committed line; seconds on the training clock."""

    name: str
    step: int
    seconds: float
    value: float | None


class WorkerSize(NamedTuple):
    """A job's name and project, and the resources of one of its workers."""

    name: str
    project: str
    cpus: float
    gpus: float


def worker_sizes(session: Session, job_ids: Collection[str]) -> dict[str, WorkerSize]:
    """Return the worker size of each of these jobs that exists."""
    query = select(JobRow.id, JobRow.name, JobRow.project, JobRow.spec["workers"]).where(JobRow.id.in_(job_ids))
    rows = session.execute(query)
    return {
        job_id: WorkerSize(name, project, workers["cpus"], workers["gpus"]) for job_id, name, project, workers in rows
    }


def job_row(session: Session, job_id: str, *, project: str | None = None) -> JobRow:
    """Return the job's row. Raises NotFound, also for a job outside `project` if one is given."""
    job = session.get(JobRow, job_id)
    if job is None or project not in (None, job.project):
        raise no_job(job_id)
    return job


def version(session: Session, job_id: str) -> int:
    """Return the job's version; raises NotFound."""
    found = session.scalar(select(JobRow.version).where(JobRow.id == job_id))
    if found is None:
        raise no_job(job_id)
    return found


def no_job(job_id: str) -> NotFound:
    return NotFound(f"there is no job `{job_id}`")


def job_view(job: JobRow, spec: JobSpec | None = None) -> JobView:
    """Return the job as users see it. `spec` is the row's spec, if the caller has parsed it."""
    try:
        spec = spec or stored_spec(job.id, job.spec)
    except UnreadableJob as error:
        verbs = tuple(verb for verb in verbs_of(job, searches=False) if verb not in _OF_READABLE)
        shown = UnreadJob.model_validate(job.spec)
        return _job_view(job, verbs=verbs, labels=job.spec["labels"], unreadable=error.fields, spec=shown)
    verbs = verbs_of(job, searches=any(map(is_steerable, spec.trials())))
    return _job_view(job, verbs=verbs, labels=spec.labels, advice=advice(spec), spec=spec)


def shown_job(session: Session, job: JobRow, *, max_attempts: int) -> JobView:
    """Return the job as users see it, with the facts of its attempts; `max_attempts` are allowed in a row."""
    lost, held = lost_attempts(session, [job], max_attempts=max_attempts), seconds_held(session, [job])
    return job_view(job).model_copy(update={"lost": lost.get(job.id), "seconds_held": held.get(job.id)})


def lost_attempts(session: Session, jobs: Sequence[JobRow], *, max_attempts: int) -> dict[str, LostAttempt]:
    """Return the last lost attempt of each job that goes on and has got no further since, by the job's id."""
    tried = [job for job in jobs if job.job_state not in TERMINAL and job.attempt > job.attempts_before]
    before = {job.id: job.attempts_before for job in tried}
    if not any(job.attempt > 1 or job.job_state not in ACTIVE for job in tried):  # all are in their first attempt
        return {}
    query = select(AttemptRow).where(AttemptRow.job_id.in_(before), AttemptRow.outcome == "failed")
    found: dict[str, LostAttempt] = {}
    for row in session.scalars(query.order_by(AttemptRow.number)):
        if row.number > before[row.job_id]:
            num_lost = found[row.job_id].num_lost + 1 if row.job_id in found else 1
            found[row.job_id] = LostAttempt(
                number=row.number, reason=row.reason, num_lost=num_lost, max_lost=max_attempts
            )
    return found


def seconds_held(session: Session, jobs: Sequence[JobRow]) -> dict[str, float]:
    """Return for how long each job that is over, and has had an attempt, held its workers, by the job's id."""
    over = [job.id for job in jobs if job.job_state in TERMINAL and job.attempt]
    if not over:
        return {}
    query = select(AttemptRow.job_id, func.sum(AttemptRow.ended_at - AttemptRow.began_at))
    rows = session.execute(query.where(AttemptRow.job_id.in_(over)).group_by(AttemptRow.job_id))
    return {job_id: held_s for job_id, held_s in rows if held_s is not None}


def verbs_of(job: JobRow, *, searches: bool = True) -> tuple[Verb, ...]:
    """Return the verbs that the job allows now, given whether it searches. It can be stopped only once."""
    return verbs_in(job.job_state, searches=searches, has_run=job.started_at is not None and not job.stops)


def _job_view(job: JobRow, **of_spec: Any) -> JobView:
    return JobView.model_construct(  # the parts are valid, and validation would take longer than all the rest
        id=job.id,
        name=job.name,
        owner=job.owner,
        project=job.project,
        state=job.job_state,
        reason=job.reason,
        attempt=job.attempt,
        created_at=moment(job.created_at),
        started_at=moment_or_none(job.started_at),
        finished_at=moment_or_none(job.finished_at),
        version=job.version,
        notes=job.notes,
        archived=job.archived,
        priority=Priority(job.priority),
        queue=None,
        source=job.source,
        **of_spec,
    )


def attempt_view(attempt: AttemptRow) -> AttemptView:
    """Return the attempt as users see it."""
    return AttemptView(
        began_at=moment(attempt.began_at),
        ended_at=moment_or_none(attempt.ended_at),
        **_columns(attempt, ("number", "outcome", "reason", "workers")),
    )


def job_summary(
    job: JobRow,
    losses: Iterable[float | None],
    progress: JobProgress | None,
    lost: LostAttempt | None,
    held_s: float | None,
    bill: JobBill | None,
    pointers: Sequence[str],
) -> JobSummary:
    """Return the job as lists show it, with the `losses` of its trials, the facts of its attempts, and its `bill`.

    `pointers` say which fields of its spec to show.
    """
    return JobSummary(
        id=job.id,
        name=job.name,
        owner=job.owner,
        project=job.project,
        state=job.job_state,
        reason=job.reason,
        created_at=moment(job.created_at),
        started_at=moment_or_none(job.started_at),
        finished_at=moment_or_none(job.finished_at),
        arms=tuple(arm["name"] for arm in job.spec["arms"]),
        best_validation_loss=min((loss for loss in losses if loss is not None), default=None),
        metric=ranking.metric_of(job.spec),
        result=job.result,
        labels=job.spec["labels"],
        archived=job.archived,
        priority=Priority(job.priority),
        version=job.version,
        verbs=verbs_of(job, searches=has_steerable(job.spec)),
        progress=progress,
        lost=lost,
        seconds_held=held_s,
        fields={pointer: value_at(job.spec, pointer) for pointer in pointers} or None,
        bill=bill,
    )


def bills(session: Session, job_ids: Sequence[str]) -> dict[str, JobBill]:
    """Return the sum of the bills of each job's trials, by the job's id."""
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for job_id, bill in session.execute(select(TrialRow.job_id, TrialRow.bill).where(TrialRow.job_id.in_(job_ids))):
        found[job_id].append(bill)
    return {job_id: _sum(of_trials) for job_id, of_trials in found.items()}


def _sum(bills: Sequence[dict[str, Any]]) -> JobBill:
    """Add up stored bills. They are not made into `Bill`s, whose many other parts cost most of a long list's time."""
    usual = {name: Bill.model_fields[name].default for name in JobBill.model_fields}
    columns = {name: [bill.get(name, default) for bill in bills] for name, default in usual.items()}
    return JobBill(**{name: None if None in values else sum(values) for name, values in columns.items()})


def trials(session: Session, job_id: str, *, trial_id: str | None = None) -> Sequence[TrialRow]:
    """Return the job's trials in its order, or only the named one. Raises NotFound."""
    job_row(session, job_id)
    query = select(TrialRow).where(TrialRow.job_id == job_id).order_by(TrialRow.position)
    if trial_id is None:
        return session.scalars(query).all()
    found = session.scalars(query.where(TrialRow.id == trial_id)).all()
    if not found:
        raise NotFound(f"job `{job_id}` has no trial `{trial_id}`")
    return found


def samples(trials: Iterable[TrialRow]) -> dict[str, SampleValues]:
    """Return the values of the drawn samples among `trials`, by name."""
    return {trial.arm: trial.sample["values"] for trial in trials if trial.sample and trial.sample["values"]}


def trial_view(trial: TrialRow) -> TrialView:
    """Return the trial as users see it."""
    # The facts behind the weights; rows of earlier versions lack some.
    kept = RunEnd.model_validate(trial.schedule or {}, extra="ignore")
    own = {"trial_id", "bill", "line", "failure", *RunEnd.model_fields}
    return TrialView(
        trial_id=trial.id,
        bill=Bill.model_validate(trial.bill, extra="ignore"),
        line=line_of(trial),
        failure=(trial.schedule or {}).get("failure"),
        **dict(kept),
        **_columns(trial, TrialView.model_fields.keys() - own),
    )


def line_of(trial: TrialRow) -> Line:
    """Return the line of training whose weights the trial kept."""
    # trials from before there were two lines do not name one
    kept: Line = "main" if trial.schedule is None else trial.schedule.get("line", "main")
    return kept


def decided_stages(
    session: Session,
    trials: Iterable[TrialRow],
    *,
    with_posterior: bool = False,
    only: Collection[tuple[str, int]] | None = None,
    numbers: Collection[int] = (),
) -> tuple[StageView, ...]:
    """Return the decided stages of `trials` with their probes. Posteriors are large, and only included on request.

    `only` selects stages by trial and number; `numbers` selects them in every trial (empty: all).
    """
    found = list(trials)
    stages = decided(session, [trial.id for trial in found], numbers)
    probes = _probes(session, [trial.id for trial in found], numbers)
    return tuple(
        stage_views.stage_view(trial, stage, probes[trial.id, stage.stage], with_posterior=with_posterior)
        for trial in found
        for stage in stages[trial.id]
        if only is None or (trial.id, stage.stage) in only
    )


def _probes(
    session: Session, trial_ids: Sequence[str], numbers: Collection[int]
) -> defaultdict[tuple[str, int], list[ProbeRow]]:
    """Return the trials' probes by trial and stage, in order of arrival."""
    found: defaultdict[tuple[str, int], list[ProbeRow]] = defaultdict(list)
    query = select(ProbeRow).where(ProbeRow.trial_id.in_(trial_ids))
    if numbers:
        query = query.where(ProbeRow.stage.in_(numbers))
    for row in session.scalars(query.order_by(ProbeRow.id)):
        found[row.trial_id, row.stage].append(row)
    return found


def decided(
    session: Session, trial_ids: Sequence[str], numbers: Collection[int] = ()
) -> defaultdict[str, list[StageRow]]:
    """Return the trials' decided stages, by trial and in their order. `numbers` selects them (empty: all)."""
    found: defaultdict[str, list[StageRow]] = defaultdict(list)
    query = select(StageRow).where(StageRow.trial_id.in_(trial_ids))
    if numbers:
        query = query.where(StageRow.stage.in_(numbers))
    for row in session.scalars(query.order_by(StageRow.stage)):
        found[row.trial_id].append(row)
    return found


def _columns(row: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def series(
    session: Session, trial: TrialRow, name: str, *, max_points: int, within: points.Steps = points.EVERY_STEP
) -> Series:
    """Return these steps of the trial's series `name`, thinned to `max_points`; empty if nothing was reported."""
    kept, num_points = points.read(session, points.Key(trial.id, name), max_points=max_points, within=within)
    return series_of(trial, name, kept, num_points=num_points)


def series_of_each(session: Session, trials: Sequence[TrialRow], name: str, *, max_points: int) -> list[Series]:
    """Return the series `name` of each of the trials, as `series` does, with few statements for all of them."""
    found = points.read_each(session, [trial.id for trial in trials], name, max_points=max_points)
    return [series_of(trial, name, kept, num_points=num) for trial in trials for kept, num in [found[trial.id]]]


def series_of(trial: TrialRow, name: str, kept: Sequence[Point], *, num_points: int) -> Series:
    """Return the series of the `kept` ones of `num_points` points, as users see it."""
    return Series(
        trial_id=trial.id,
        arm=trial.arm,
        seed=trial.seed,
        name=name,
        steps=tuple(each.step for each in kept),
        seconds=tuple(each.seconds for each in kept),
        values=tuple(each.value for each in kept),
        num_points=num_points,
    )


def require_series(session: Session, trials: Sequence[TrialRow], name: str) -> None:
    """Raise NotFound for a name that no trial of the job reports. A known name may have no points yet."""
    expected = {each for trial in trials for each in _expected_series(trial)}
    may_be_declared = name.startswith("validation_") and any(trial.backend is None for trial in trials)
    is_declared_later = may_be_declared and job_row(session, trials[0].job_id).job_state not in TERMINAL
    if name in expected or is_declared_later:
        return
    trial_ids = [trial.id for trial in trials]
    if not points.is_known(session, trial_ids, name):
        known = expected | points.names(session, trial_ids)
        raise NotFound(f"there is no metric `{name}`; there are {', '.join(sorted(known))}")


def _expected_series(trial: TrialRow) -> list[str]:
    """Return the names of the series that the trial reports, or will report; its workload may add some of its own."""
    return [*_SERIES, *(f"validation_{metric}" for metric in trial.metric_directions)]


def series_extents(session: Session, trials: Sequence[TrialRow]) -> tuple[SeriesExtent, ...]:
    """Return the extent of every series, trial by trial and by name. A series that is expected may have no points."""
    reached = extents(session, [trial.id for trial in trials])
    names = {trial.id: {*_expected_series(trial)} for trial in trials}
    for trial_id, name in reached:
        names[trial_id].add(name)
    return tuple(
        SeriesExtent(
            trial_id=trial.id,
            arm=trial.arm,
            seed=trial.seed,
            name=name,
            **reached.get(points.Key(trial.id, name), NO_POINTS)._asdict(),
        )
        for trial in trials
        for name in sorted(names[trial.id])
    )


def series_names(session: Session, trial_id: str) -> list[str]:
    """Return the names of the trial's series."""
    return sorted(points.names(session, [trial_id]))


def points_beyond(session: Session, step: int, trial_id: str, name: str) -> list[NamedPoint]:
    """Return the next points of the series after `step`, some thousand, by step; empty at the end."""
    return [NamedPoint(name, *sample) for sample in points.beyond(session, points.Key(trial_id, name), step)]


def schedule_views(
    session: Session, trials: Sequence[TrialRow], optimizers: Mapping[tuple[str, int], JobOptimizer]
) -> tuple[ScheduleView, ...]:
    """Return each trial's schedule: the final one, or else as far as it is known.

    `optimizers` are those of the job, by arm and seed. If several competed, the schedule names the one that trained.
    """
    unfinished = [trial.id for trial in trials if trial.schedule is None]
    stages, trained = decided(session, unfinished), _trained_entries(session, unfinished)
    return tuple(
        _schedule_view(trial, _entries(trial, stages[trial.id], trained), optimizer=optimizers[trial.arm, trial.seed])
        for trial in trials
    )


def _schedule_view(trial: TrialRow, entries: Sequence[ScheduleEntry], *, optimizer: JobOptimizer) -> ScheduleView:
    kind = str(entries[0].values.get("optimizer", optimizer.kind)) if entries else optimizer.kind
    return ScheduleView(
        trial_id=trial.id,
        arm=trial.arm,
        seed=trial.seed,
        optimizer=kind,
        complete=trial.schedule is not None,
        line=line_of(trial),
        num_steps=sum(entry.num_steps for entry in entries),
        warmup_steps=next((each.warmup_steps for each in contenders(optimizer) if each.kind == kind), 0),
        entries=tuple(entries),
    )


def provenance(job: JobRow, trial: TrialRow) -> Provenance:
    """Return the provenance of the trial's schedule: its run, and the origin that its driver reported."""
    kept = (trial.schedule or {}).get("origin")  # null: it has not finished, or an earlier release trained it
    told = Origin.model_validate(kept, extra="ignore").model_dump() if kept else {}
    sample = None if trial.sample is None else trial.sample["values"]
    # schedules are shared, and the path of a webhook may be a secret
    spec = {name: part for name, part in job.spec.items() if name != "webhook"}
    return Provenance(job_id=job.id, job=spec, arm=trial.arm, seed=trial.seed, sample=sample, **told)


def event_view(row: EventRow) -> Event:
    """Return the event as users see it."""
    kind, at = EventKind(row.kind), moment(row.at)
    return Event(id=row.id, job_id=row.job_id, project=row.project, kind=kind, at=at, data=row.data)


def _trained_entries(session: Session, trial_ids: Sequence[str]) -> dict[str, Json]:
    """Return the schedules of the trials' last checkpoints, by trial."""
    if not trial_ids:
        return {}
    resumable = (StageRow.trial_id.in_(trial_ids), StageRow.resume_step.is_not(None))
    last = select(StageRow.trial_id, func.max(StageRow.stage)).where(*resumable).group_by(StageRow.trial_id)
    schedule = StageRow.resume["progress", "schedule"]  # only this part: the rest of a resume is large
    of_last = select(StageRow.trial_id, schedule).where(tuple_(StageRow.trial_id, StageRow.stage).in_(last))
    return dict(iter(session.execute(of_last)))


def _entries(trial: TrialRow, stages: Iterable[StageRow], checkpointed: Mapping[str, Json]) -> list[ScheduleEntry]:
    """Return the final schedule, or else that of the trial's last checkpoint, and what was decided after that."""
    kept = checkpointed.get(trial.id) if trial.schedule is None else trial.schedule["entries"]
    trained = [ScheduleEntry.model_validate(entry, extra="ignore") for entry in kept or ()]
    step = trained[-1].step + trained[-1].num_steps if trained else 0
    behind = ((stage, _entry(stage, trial, behind=step)) for stage in stages if stage.num_steps != 0)
    return [*trained, *(entry for stage, entry in behind if entry.num_steps or stage.first_step >= step)]


def _entry(stage: StageRow, trial: TrialRow, *, behind: int) -> ScheduleEntry:
    """Return the schedule entry of the stage's decision, from step `behind` on."""
    first, end = max(behind, stage.first_step), stage.first_step + (stage.num_steps or 0)
    num_steps = max(0, (trial.step if stage.num_steps is None else end) - first)
    fields = _columns(stage, ("learning_rate", "level", "values", "density", "threshold", "reason"))
    people = tuple(dict.fromkeys(steer["by"] for steer in stage.decision.get("steers", ())))
    return ScheduleEntry(step=first, num_steps=num_steps, steered_by=people, **fields)
