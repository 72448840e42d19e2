"""The weights that a job starts from because another job has exported them: where they are, and their hash.

They are looked up when the job is added, and kept with it. So every attempt starts from the same file, and a worker
notices if the file has changed since. Functions of one open session.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.control import queries
from service.control.access.permissions import within
from service.control.database import rows
from service.control.models import JobRow, Json
from service.control.results import outcomes, ranking
from service.control.results.artifacts import weights_sha256, weights_url
from service.control.results.outcomes import ReportCache
from service.control.storage import Storage
from service.errors import IllegalTransition, InvalidJob, NotFound, UnreadableJob
from service.job.parts import BEST_TRIAL
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import TERMINAL, JobState
from service.job.sweep import workloads
from service.wire.records import StartingWeights
from service.wire.trials import TrialView
from trainers.spec.workloads import JobWeights

_NUM_LISTED = 5  # of a job's trials, in a refusal


def best_trials(session: Session, spec: JobSpec, kept: ReportCache, *, project: str | None) -> dict[str, str | None]:
    """Return the best trial of each job of which the spec names the best, by the job's id; None: it has none.

    They are found before the write, since a report takes too long for the one writer. A sweep that is not over has
    none yet: the best so far may not stay the best. `find` refuses jobs that are not there, or cannot be read.
    """
    found: dict[str, str | None] = {}
    for job_id in {each.job for each in _named(spec) if each.arm == BEST_TRIAL}:
        with suppress(NotFound, UnreadableJob):
            queries.job_row(session, job_id, project=project)
            report = outcomes.report(session, job_id, kept)
            found[job_id] = report.best_trial if report.complete or report.sweep is None else None
    return found


def find(
    session: Session,
    spec: JobSpec,
    *,
    project: str | None,
    best: Mapping[str, str | None],
    is_write: bool = True,
) -> Json | None:
    """Return the files of all that the job names by `weights_of`, to be kept with it; None: it names none.

    Those jobs may be of `project`, or of any if None; `best` has their `best_trials`. Nobody can delete them before the
    end of a write, if the database locks rows. Raises InvalidJob for one that is not there, and for weights that it
    does not have.
    """
    found, problems = [], []
    for named, place in _named(spec).items():
        try:
            if is_write:
                session.get(JobRow, named.job, with_for_update={"read": True})
            found.append(_file(session, named, project, best).model_dump(mode="json"))
        except (NotFound, UnreadableJob) as refusal:
            value = named.model_dump_json(exclude_none=True)
            problems.append(Problem(pointer=place, message=f"`weights_of`: {refusal}", value=value))
    if problems:
        raise InvalidJob(problems)
    return {"files": found} if found else None


def kept(job: JobRow, storage: Storage) -> tuple[StartingWeights, ...]:
    """Return the files that were found for the job, without those outside the folders of the jobs that they are of.

    Drivers name the places, so these are not trusted.
    """
    files = (job.starting_weights or {"files": ()})["files"]
    found = (StartingWeights.model_validate(each, extra="ignore") for each in files)
    return tuple(each for each in found if storage.is_in_folder(each.named.job, each.url))


def require_unused(session: Session, job: JobRow) -> None:
    """Raise IllegalTransition while a job that is not over starts from the weights of this one."""
    rows.store(session)  # including new jobs of the same group, which may name it
    live = [state.value for state in JobState if state not in TERMINAL]
    query = select(JobRow).where(JobRow.state.in_(live), JobRow.starting_weights.is_not(None))
    for user in session.scalars(query):
        if any(each["named"]["job"] == job.id for each in (user.starting_weights or {})["files"]):
            named = f"job `{user.id}`" if user.project == job.project else "a job of another project"
            raise IllegalTransition(
                f"{named} starts from the weights of job `{job.id}`, and is {user.state}: delete this one once that is "
                "over"
            )


def _named(spec: JobSpec) -> dict[JobWeights, str]:
    """Return all that the job names by `weights_of`, each with the first place in the job that does."""
    places: dict[JobWeights, str] = {}
    for place, workload in workloads(spec):
        if workload.weights_of is not None:
            places.setdefault(workload.weights_of, within(place, "weights_of"))
    return places


def _file(session: Session, named: JobWeights, project: str | None, best: Mapping[str, str | None]) -> StartingWeights:
    """Raise NotFound if there are no such weights, and UnreadableJob if this release cannot tell."""
    job = queries.job_row(session, named.job, project=project)
    trial = _trial(session, job, named, best)
    url = weights_url(queries.job_view(job), trial, named.which)
    return StartingWeights(named=named, url=url, sha256=weights_sha256(trial, url))


def _trial(session: Session, job: JobRow, named: JobWeights, best: Mapping[str, str | None]) -> TrialView:
    """Return the only one of the job's trials that is meant."""
    trials = [queries.trial_view(each) for each in queries.trials(session, job.id)]
    meant = ranking.chosen(trials, named.arm, named.seed, lambda: best.get(job.id))
    if len(meant) == 1:
        return meant[0]
    if not meant:
        known = "; `best` is known once the job is over" if named.arm == BEST_TRIAL else ""
        raise NotFound(f"job `{job.id}` has no such trial{known}; it has {_listed(trials)}")
    raise NotFound(
        f"job `{job.id}` has {len(meant)} such trials: name one by `arm` and `seed`; it has {_listed(meant)}"
    )


def _listed(trials: Iterable[TrialView]) -> str:
    shown = [f"`arm: {each.arm}, seed: {each.seed}`" for each in trials]
    more = f" and {len(shown) - _NUM_LISTED} more" if len(shown) > _NUM_LISTED else ""
    return ", ".join(shown[:_NUM_LISTED]) + more
