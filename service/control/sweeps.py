"""The sweep of a job: its trials' measurements at rungs, the pruned samples, and the ranking.

Functions of one open session, and pure functions of what they read. Every decision follows from the stored rows in
their order, so a restarted service or driver decides the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from search.sweep.ranking import Mark, Standing, best_trade_offs, pruned, ranking, saved_share
from service.control import events, transfer
from service.control.models import JobRow, RungRow, TrialRow
from service.errors import UnreadableJob
from service.job.parts import Direction
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.events import EventKind
from service.wire.metrics import sign, value_of
from service.wire.records import MarkPoint, RungReached, SampleDrawn
from service.wire.stored import stored_spec
from service.wire.sweeps import RankedTrial, RungView, SampleStatus, SweepReport
from service.wire.trials import UNSUCCESSFUL, TrialView


def drawn(session: Session, job: JobRow, trial: TrialRow, record: SampleDrawn) -> None:
    """Store the learned values of a sample, and the past searches that it learns from. The first values stored stay.

    Samples that start together do not know of each other. If they draw the same values, the first to report gets them.
    """
    if trial.sample is None or trial.sample["values"] is not None:
        return
    of_job = select(TrialRow.sample).where(TrialRow.job_id == trial.job_id, TrialRow.sample.is_not(None))
    if record.only_if_new and any(each and each["values"] == record.values for each in session.scalars(of_job)):
        return
    trial.sample = {**trial.sample, "values": record.values, "drawn_by": record.drawn_by}
    values = {trial.arm: record.values}
    visible = None if job.sees_all else job.project
    priors = transfer.sample_priors(session, stored_spec(job.id, job.spec), values, project=visible)
    trial.prior = priors[trial.arm].model_dump(mode="json") if trial.arm in priors else None
    events.tell(trial, EventKind.SAMPLE, **record.model_dump(mode="json", exclude={"kind", "only_if_new"}))


def reached(session: Session, job: JobRow, trial: TrialRow, record: RungReached) -> None:
    """Store a trial's measurement at a rung. If the trial reaches it again after a crash, nothing changes."""
    trial.step = max(trial.step, record.step)
    if session.scalar(select(RungRow.id).filter_by(trial_id=trial.id, rung=record.rung)) is not None:
        return
    session.add(RungRow(**record.model_dump(exclude={"kind"})))
    session.flush()  # assigns ids in order of arrival
    told = record.model_dump(include={"trial_id", "rung", "step", "value"})
    events.tell(trial, EventKind.RUNG, **told, kept=trial.id not in pruned_trials(session, job))


#: In place of the rung of a mark: the trial has reached none, and is ranked behind those that have.
_ON_THE_WAY = -1


class Pruned(NamedTuple):
    """The end of a pruned sample."""

    rung: int
    step: int


def is_to_end(trial: TrialRow, pruned_at: Mapping[str, Pruned], resume: Mapping[str, Any] | None = None) -> bool:
    """Return whether the trial is pruned at a rung and has reached it in this life, or in the state it resumes.

    A crash may have put it back before the rung. It then trains up to the rung again, and ends with the same weights.
    """
    at = pruned_at.get(trial.id)
    if at is None:
        return False
    # After the rung, it may have rolled back to a step before it.
    return trial.step >= at.step or (resume is not None and resume["progress"]["num_rungs"] > at.rung)


def pruned_trials(session: Session, job: JobRow) -> dict[str, Pruned]:
    """Return the end of each pruned sample by trial; empty for a job that cannot be read."""
    if not job.spec.get("params") or not (rows := rungs(session, job.id)):
        return {}
    try:
        spec = stored_spec(job.id, job.spec)
    except UnreadableJob:
        return {}
    # Every batch of a sample calls this. Whole rows, with the schedules of hundreds of trials, take ten times as long.
    columns = select(TrialRow.id, TrialRow.metric_directions, TrialRow.sample.is_not(None))
    trials = session.execute(columns.where(TrialRow.job_id == job.id)).all()
    directions = {name: way for _, ways, _ in trials for name, way in ways.items()}
    samples = {trial_id for trial_id, _, is_sample in trials if is_sample}
    step_at = {(row.trial_id, row.rung): row.step for row in rows}
    ended = _pruned(spec, _marks(spec, rows, directions), samples)
    return {trial: Pruned(rung, step_at[trial, rung]) for trial, rung in ended.items()}


def _pruned(spec: JobSpec, marks: Sequence[Mark], samples: set[str]) -> dict[str, int]:
    sweep = spec.sweep_config
    return pruned(marks, samples, num_rungs=len(sweep.rungs()), reduction=sweep.reduction)


def rungs(session: Session, job_id: str) -> Sequence[RungRow]:
    """Return the measurements of the job's trials at rungs, in order of arrival."""
    of_job = select(RungRow).join(TrialRow, TrialRow.id == RungRow.trial_id).where(TrialRow.job_id == job_id)
    return session.scalars(of_job.order_by(RungRow.id)).all()


def short_of_a_rung(session: Session, job: JobRow, spec: JobSpec) -> list[str]:
    """Return the samples that a stop has kept from one of the rungs. Pruned samples have reached their last one."""
    if not spec.params or not (num_rungs := len(spec.sweep_config.rungs())):
        return []
    passed, ended = Counter(row.trial_id for row in rungs(session, job.id)), pruned_trials(session, job)
    samples = select(TrialRow).where(TrialRow.job_id == job.id, TrialRow.sample.is_not(None))
    return [
        each.arm
        for each in session.scalars(samples.order_by(TrialRow.position))
        if (each.outcome is None or (each.schedule or {}).get("stopped"))
        and each.id not in ended
        and each.stopped_by is None  # alone: it never goes on
        and passed[each.id] < num_rungs
    ]


def seen(session: Session, job: JobRow, trials: Sequence[TrialView]) -> tuple[MarkPoint, ...]:
    """Return the samples' measurements for a sampler that learns from them; empty for other samplers.

    A sample that diverged or failed counts as bad at the whole budget, with unknown cost.
    """
    spec = stored_spec(job.id, job.spec)
    if not spec.params or spec.sweep_config.sampler != "bo":
        return ()
    values = {trial.trial_id: trial.sample.values for trial in trials if trial.sample is not None}
    shares = (*spec.sweep_config.rungs(), 1.0)
    marks = _all_marks(spec, rungs(session, job.id), trials)
    num_rungs = len(shares) - 1
    lost = [Mark(trial.trial_id, num_rungs, None) for trial in trials if trial.outcome in UNSUCCESSFUL]
    return tuple(
        MarkPoint(values=known, share=shares[mark.rung], value=mark.value, cost=mark.cost)
        for mark in (*marks, *lost)
        if (known := values.get(mark.trial)) is not None
    )


def _marks(spec: JobSpec, rows: Iterable[RungRow], directions: Mapping[str, Direction]) -> list[Mark]:
    factor, cost = sign(directions.get(spec.objective.metric)), spec.sweep_config.cost
    return [
        Mark(row.trial_id, row.rung, None if row.value is None else factor * row.value, _cost(cost, row))
        for row in rows
    ]


def _cost(unit: str | None, row: RungRow) -> float | None:
    return None if unit is None else float(row.bytes_sent if unit == "bytes" else row.seconds)


def _all_marks(spec: JobSpec, rows: Iterable[RungRow], trials: Sequence[TrialView]) -> list[Mark]:
    """Return the marks at rungs, and at the end of trials that were not pruned."""
    directions = {name: way for trial in trials for name, way in trial.metric_directions.items()}
    marks = _marks(spec, rows, directions)
    ended = _pruned(spec, marks, {trial.trial_id for trial in trials if trial.sample is not None})
    num_rungs = len(spec.sweep_config.rungs())
    whole = [trial for trial in trials if trial.outcome == "completed" and not trial.stopped]
    ends = [_end(spec, trial, num_rungs, directions) for trial in whole]
    return [*marks, *(mark for mark in ends if mark.trial not in ended)]


def _end(spec: JobSpec, trial: TrialView, num_rungs: int, directions: Mapping[str, Direction]) -> Mark:
    metric, unit, bill = spec.objective.metric, spec.sweep_config.cost, trial.bill
    value = value_of(trial, metric)
    costs = {"bytes": float(bill.bytes_sent), "seconds": bill.seconds_training}
    signed = None if value is None else sign(directions.get(metric)) * value
    return Mark(trial.trial_id, num_rungs, signed, None if unit is None else costs[unit])


def report(spec: JobSpec, state: JobState, rows: Sequence[RungRow], trials: Sequence[TrialView]) -> SweepReport | None:
    """Return the ranking of the trials of a job in `state`; None if it has no sweep."""
    if not spec.params:
        return None
    directions = {name: way for trial in trials for name, way in trial.metric_directions.items()}
    shares, samples = spec.sweep_config.rungs(), {each.trial_id for each in trials if each.sample is not None}
    ended = _pruned(spec, _marks(spec, rows, directions), samples)
    marks = _all_marks(spec, rows, trials)
    last = {mark.trial: mark for mark in sorted([*marks, *_on_the_way(spec, trials)], key=lambda mark: mark.rung)}
    standings = [Standing(each.trial_id, last.get(each.trial_id), each.outcome in UNSUCCESSFUL) for each in trials]
    front = best_trade_offs([mark for mark in last.values() if mark.rung == len(shares)])
    by_id = {trial.trial_id: trial for trial in trials}
    factor = sign(directions.get(spec.objective.metric))
    return SweepReport(
        metric=spec.objective.metric,
        direction="max" if factor < 0 else "min",
        cost=spec.sweep_config.cost,
        ranking=tuple(
            _ranked(
                place,
                by_id[each],
                last.get(each),
                (*shares, 1.0),
                factor=factor,
                status=_status(by_id[each], ended, state),
                on_front=each in front,
            )
            for place, each in enumerate(ranking(standings), start=1)
        ),
        rungs=tuple(_rung(number, share, marks, ended) for number, share in enumerate(shares)),
        saved_share=saved_share(shares, ended, len(trials)),
    )


def _on_the_way(spec: JobSpec, trials: Iterable[TrialView]) -> Iterator[Mark]:
    """Yield what unfinished trials measured last, only to rank them: all of an extended sweep are such."""
    for trial in trials:
        value = value_of(trial, spec.objective.metric)
        if trial.outcome is None and value is not None:
            yield Mark(trial.trial_id, _ON_THE_WAY, sign(trial.metric_directions.get(spec.objective.metric)) * value)


def _ranked(
    place: int,
    trial: TrialView,
    mark: Mark | None,
    shares: Sequence[float],
    *,
    factor: int,
    status: SampleStatus,
    on_front: bool,
) -> RankedTrial:
    return RankedTrial(
        place=place,
        trial_id=trial.trial_id,
        arm=trial.arm,
        sample=trial.sample,
        status=status,
        share=0.0 if mark is None or mark.rung == _ON_THE_WAY else shares[mark.rung],
        value=None if mark is None or mark.value is None else factor * mark.value,
        cost=None if mark is None else mark.cost,
        on_front=on_front,
    )


def _status(trial: TrialView, ended: Mapping[str, int], state: JobState) -> SampleStatus:
    if trial.trial_id in ended and trial.outcome not in UNSUCCESSFUL:
        return SampleStatus.PRUNED
    return SampleStatus(trial.phase(state))


def _rung(number: int, share: float, marks: Iterable[Mark], ended: Mapping[str, int]) -> RungView:
    there = [mark.trial for mark in marks if mark.rung == number]
    num_kept = sum(ended.get(trial) != number for trial in there)
    return RungView(share=share, num_reached=len(there), num_kept=num_kept)
