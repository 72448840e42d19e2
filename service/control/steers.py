"""Steers: pins, vetoes and searches that people ask of a running job's controllers. Functions of one open session.

Every answer to a trial, and every attempt's brief, carries the steers in force. A trial takes them over when a stage
opens, and its decision names those that it follows. So a crash of a driver or service loses no steer, and none
counts twice.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from search.config import STAGED_KINDS
from search.types import Steer
from service.control import events, extensions, jobs, queries
from service.control.access.rules import Principal
from service.control.models import JobRow, StageRow, SteerRow, TrialRow
from service.control.moments import moment, moment_or_none
from service.errors import InvalidJob
from service.job import steering
from service.job.parts import TrialSpec
from service.job.problems import Problem
from service.wire.events import EventKind
from service.wire.steering import SteerableView, SteeringView, SteerRequest, SteerView
from service.wire.stored import stored_spec
from trainers.spec.ranges import Conflict

#: A stage that may use at least this share of the budget is the last. Sums of seconds are not exact.
_WHOLE = 0.999999
#: The maximum number of steers in force in a job.
MAX_IN_FORCE = 100


class _Heard(NamedTuple):
    """The trials that have followed a steer, according to their decisions."""

    first_stages: dict[str, int]  # by trial, the first stage that names it
    searched: set[str]  # trials that made its search
    failed: set[str]  # trials that later dropped its pinned rate


def steer(session: Session, job: JobRow, *, asked: SteerRequest, by: Principal, now: float) -> None:
    """Withdraw the steers that the request clears, and add the one that it asks for. Raises InvalidJob.

    A request that repeats a steer in force adds nothing, except that a completed search can be asked for again.
    """
    specs = _specs(session, job, asked)
    rows = _in_force(session, job)
    heard = _heard(session, job.id, rows)
    withdrawn = _withdrawn(rows, asked, [*specs])
    left = [row for row in rows if row not in withdrawn and not _is_done(row, heard[row.id])]
    said = {**asked.model_dump(mode="json", exclude={"clear"}, exclude_none=True), "trials": [*specs]}
    is_known = any(_is_same(row, said) and not _has_ended(row, heard[row.id]) for row in left)
    is_new = bool(asked.pin or asked.veto or asked.search_now) and not is_known
    if is_new:
        _require_sense(specs, _steer(SteerRow(id=job.num_steers + 1, name=by.name, said=said)), left, heard)
        job.num_steers += 1
        session.add(SteerRow(job_id=job.id, id=job.num_steers, at=now, name=by.name, key_id=by.key_id, said=said))
    for row in withdrawn:
        row.withdrawn_at, row.withdrawn_by = now, by.name
    if is_new or withdrawn:
        jobs.change(job)
        ids = [row.id for row in withdrawn]
        events.tell(job, EventKind.STEERED, steer=job.num_steers if is_new else None, withdrawn=ids, by=by.name)


def of_trial(session: Session, job: JobRow, trial_id: str) -> tuple[Steer, ...]:
    """Return the steers in force for one trial."""
    if not job.num_steers:  # the usual case, and every answer to a driver calls this
        return ()
    return tuple(_steer(row) for row in _in_force(session, job) if trial_id in row.said["trials"])


def view(session: Session, job_id: str) -> SteeringView:
    """Return all steers of the job, and the values that may be steered. Raises UnreadableJob."""
    job = queries.job_row(session, job_id)
    return SteeringView(
        version=job.version,
        steers=_views(session, job_id),
        steerable=_steerable(session, job),
        notes=tuple(_notes(session, job)),
    )


def _notes(session: Session, job: JobRow) -> Iterator[str]:
    """Yield a note on trials whose current stage lasts to the end of the budget."""
    caps = {unit: cap for unit, cap in job.spec["budget"].items() if cap is not None}
    for row in queries.trials(session, job.id):
        last = _last_decided(session, row.id)
        until = {} if last is None or last.closed or row.outcome is not None else last.decision["commit_until"]
        if until and all(until.get(unit) is not None and until[unit] >= cap * _WHOLE for unit, cap in caps.items()):
            name = row.id.partition(".")[2]
            yield f"`{name}` is in its last stage: what is said now holds only if something ends that early"


def _last_decided(session: Session, trial_id: str) -> StageRow | None:
    """Return the trial's last decided stage, or None."""
    last = select(StageRow).where(StageRow.trial_id == trial_id).order_by(StageRow.stage.desc()).limit(1)
    return session.scalars(last).first()


def _steerable(session: Session, job: JobRow) -> tuple[SteerableView, ...]:
    specs = _all_specs(session, job)
    rows = queries.trials(session, job.id)
    over = extensions.finished(session, job, rows)
    trials: dict[tuple[str, steering.Searchable], list[str]] = {}
    for row in rows:
        spec = specs[row.arm, row.seed]
        for name, of in steering.searchable(spec).items() if not _conflict(row, spec, over) else ():
            trials.setdefault((name, of), []).append(row.id)
    return tuple(
        SteerableView(
            name=name,
            trials=tuple(ids),
            low=of.low if of.is_of_numbers else None,
            high=of.high if of.is_of_numbers else None,
            names=() if of.is_of_numbers else of.listed,
            current=_value_in_force(session, ids[0], of.name),
        )
        for (name, of), ids in trials.items()
    )


def _value_in_force(session: Session, trial_id: str, name: str) -> Any:
    """Return a value in the trial's last decision, by its name in `search.types.Values`; None if it has none."""
    stage = _last_decided(session, trial_id)
    return None if stage is None else stage.decision["values"].get(name)


def _views(session: Session, job_id: str) -> tuple[SteerView, ...]:
    rows = session.scalars(select(SteerRow).where(SteerRow.job_id == job_id).order_by(SteerRow.id)).all()
    heard = _heard(session, job_id, rows)
    return tuple(_view(row, heard[row.id]) for row in rows)


def _heard(session: Session, job_id: str, rows: Sequence[SteerRow]) -> dict[int, _Heard]:
    """Return for each steer how far its trials have followed it."""
    heard = {row.id: _Heard({}, set(), set()) for row in rows}
    for trial in queries.trials(session, job_id) if rows else ():
        pinned, now = set[int](), set[int]()
        for stage, said in _heeded(session, trial.id):
            now = {each["id"] for each in said if "learning_rate" in each["pin"]}
            pinned |= now
            for each in (each for each in said if each["id"] in heard):
                heard[each["id"]].first_stages.setdefault(trial.id, stage)
                if each["search_now"]:
                    heard[each["id"]].searched.add(trial.id)
        for failed in (pinned - now) & heard.keys():
            heard[failed].failed.add(trial.id)
    return heard


def _heeded(session: Session, trial_id: str) -> Iterator[tuple[int, Sequence[dict[str, Any]]]]:
    """Yield each decided stage of the trial, with the steers named by its decision."""
    for stage in queries.decided(session, [trial_id])[trial_id]:
        yield stage.stage, stage.decision.get("steers", ())


def _view(row: SteerRow, heard: _Heard) -> SteerView:
    said = _steer(row)
    return SteerView(
        id=row.id,
        at=moment(row.at),
        by=row.name,
        trials=tuple(row.said["trials"]),
        pin=said.pin,
        veto=said.veto,
        search_now=said.search_now,
        first_stages=heard.first_stages,
        in_force=row.withdrawn_at is None and not _is_done(row, heard),
        withdrawn_at=moment_or_none(row.withdrawn_at),
        withdrawn_by=row.withdrawn_by,
    )


def _has_ended(row: SteerRow, heard: _Heard) -> bool:
    """Return whether the requested search was made in every trial, or the pinned rate failed in any."""
    return bool(heard.failed) or (_steer(row).search_now and heard.searched >= set(row.said["trials"]))


def _is_done(row: SteerRow, heard: _Heard) -> bool:
    """Return whether the steer has no effect left in any trial: all searches were made, or its rate failed."""
    trials, said = set(row.said["trials"]), _steer(row)
    pins = set(said.pin) - ({"learning_rate"} if heard.failed >= trials else set())
    return not (pins or said.veto) and (not said.search_now or heard.searched >= trials)


def _in_force(session: Session, job: JobRow) -> Sequence[SteerRow]:
    held = select(SteerRow).where(SteerRow.job_id == job.id, SteerRow.withdrawn_at.is_(None))
    return session.scalars(held.order_by(SteerRow.id)).all()


def _steer(row: SteerRow) -> Steer:
    said = {name: value for name, value in row.said.items() if name != "trials"}
    return Steer(id=row.id, by=row.name, **said)


def _is_same(row: SteerRow, said: dict[str, object]) -> bool:
    return {**row.said} == said


def _all_specs(session: Session, job: JobRow) -> dict[tuple[str, int], TrialSpec]:
    drawn = queries.samples(queries.trials(session, job.id))
    return {(each.arm, each.seed): each for each in stored_spec(job.id, job.spec).trials(drawn)}


def _specs(session: Session, job: JobRow, asked: SteerRequest) -> dict[str, TrialSpec]:
    """Return the trials that the request names. Raises InvalidJob for a trial that cannot be steered."""
    specs = _all_specs(session, job)
    rows = {row.id: row for row in queries.trials(session, job.id)}
    over = extensions.finished(session, job, rows.values())
    found = {name: specs[row.arm, row.seed] for name, row in rows.items()}
    conflicts = {name: _conflict(rows[name], spec, over) for name, spec in found.items()}
    if asked.trials is None:
        named = [name for name, conflict in conflicts.items() if not conflict]
        if not named:
            raise InvalidJob([Problem(pointer="", message="; ".join(dict.fromkeys(conflicts.values())))])
        return {name: found[name] for name in named}
    problems = [
        Problem(pointer=f"/trials/{index}", message=message, value=name)
        for index, name in enumerate(asked.trials)
        if (message := conflicts.get(name, f"`{name}` is no trial of this job"))
    ]
    if problems:
        raise InvalidJob(problems)
    return {name: found[name] for name in dict.fromkeys(asked.trials)}


def _conflict(row: TrialRow, spec: TrialSpec, over: Collection[str]) -> str:
    """Return why the trial cannot be steered; empty if it can. Those that are `over` cannot."""
    if not steering.is_steerable(spec):
        *some, last = (f"`{kind}`" for kind in STAGED_KINDS)
        kinds = f"{', '.join(some)} or {last}"
        return f"arm `{spec.arm}` has `controller: {spec.controller.kind}`: only {kinds} can be steered"
    return f"trial `{row.id}` has finished" if row.id in over else ""


def _withdrawn(rows: Sequence[SteerRow], asked: SteerRequest, trials: Sequence[str]) -> list[SteerRow]:
    if isinstance(asked.clear, bool):
        named = asked.clear and asked.trials is not None
        return [row for row in rows if asked.clear and (not named or set(row.said["trials"]) <= set(trials))]
    known = {row.id: row for row in rows}
    problems = [
        Problem(pointer=f"/clear/{index}", message=f"no steer {each} holds; {_held(rows)}", value=each)
        for index, each in enumerate(asked.clear)
        if each not in known
    ]
    if problems:
        raise InvalidJob(problems)
    return [known[each] for each in dict.fromkeys(asked.clear)]


def _held(rows: Iterable[SteerRow]) -> str:
    ids = ", ".join(str(row.id) for row in rows)
    return f"those that do: {ids}" if ids else "none does"


def _left_in(trial_id: str, row: SteerRow, heard: _Heard) -> Steer:
    """Return the part of a steer that applies to a trial: without a rate that failed there."""
    said = _steer(row)
    pin = {name: value for name, value in said.pin.items() if name != "learning_rate" or trial_id not in heard.failed}
    return said.model_copy(update={"pin": pin})


def _require_sense(
    specs: dict[str, TrialSpec], steer: Steer, rows: Sequence[SteerRow], heard: dict[int, _Heard]
) -> None:
    """Raise InvalidJob if the steer makes no sense for one of the trials, given those in force."""
    if len(rows) >= MAX_IN_FORCE:
        message = f"{len(rows)} steers hold, and no job has more than {MAX_IN_FORCE}: withdraw some"
        raise InvalidJob([Problem(pointer="", message=message)])
    found: dict[tuple[str, str], Conflict] = {}  # trials of several seeds have the same
    for trial_id, spec in specs.items():
        others = [_left_in(trial_id, row, heard[row.id]) for row in rows if trial_id in row.said["trials"]]
        for conflict in steering.conflicts(spec, steer, others):
            known = found.setdefault((conflict.pointer, conflict.message), conflict)
            arms = tuple(dict.fromkeys((*known.arms, spec.arm)))
            found[conflict.pointer, conflict.message] = known._replace(arms=arms)
    if found:
        raise InvalidJob([Problem.of(each) for each in found.values()])
