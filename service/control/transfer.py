"""Find past searches for a new job's runs to learn from, and store them with its trials.

A later attempt therefore learns from the same searches, whatever has finished since. Functions of one open session.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from search.config import BoConfig, PastJobs
from search.past_jobs.prior import MIN_FINITE, NO_PRIOR, PastSearch, Prior
from search.sweep.spec import SampleValues
from service.control.models import JobRow, StageRow, TrialRow
from service.errors import InvalidJob, UnreadableJob
from service.job.parts import Arm, JobParts, TrialSpec
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import JobState
from service.job.sweep import at
from service.wire.records import Sample
from service.wire.stored import stored_spec
from trainers.spec.workloads import OwnWorkload

#: The number of jobs that `auto` uses at most ...
MAX_JOBS = 5
#: ... among this many of the newest jobs with the same workload.
MAX_LOOKED_AT = 50


class _Kind(NamedTuple):
    """The facts that must agree for learning rates and levels of two runs to be comparable."""

    optimizer: str
    exchange: str

    @classmethod
    def of(cls, trial: TrialSpec) -> "_Kind":
        exchange = trial.replica.exchange
        by = f" by {exchange.level_name}" if exchange.level is not None else ""
        sync = trial.replica.sync.kind
        under = "" if sync == "every_step" else f" under {sync}"
        return cls(trial.replica.optimizer.kind, f"{exchange.kind}{by}{under}")


class _Run(NamedTuple):
    """A past run that searched."""

    arm: str
    seed: int
    kind: _Kind


class _Named(NamedTuple):
    """A past job that a job names, and where."""

    pointer: str
    job: str


class _Refusal(Exception):
    """A reason why a job cannot be learned from."""


class _Unlike(_Refusal):
    """It trained with another optimizer or exchange; runs of other kinds may learn from it."""


class _Past:
    """The past jobs of `project`, or of all if None. A job's runs are read once, for all arms and samples that ask."""

    def __init__(self, session: Session, project: str | None) -> None:
        self.session, self.project = session, project
        self._runs: dict[str, tuple[_Run, ...]] = {}

    def runs(self, job: JobRow) -> tuple[_Run, ...]:
        """Return the job's runs that searched. Raises `_Refusal`."""
        if job.id not in self._runs:
            try:
                spec = stored_spec(job.id, job.spec)
            except UnreadableJob as error:
                raise _Refusal(str(error)) from error
            samples = self.session.execute(select(TrialRow.arm, TrialRow.sample).where(TrialRow.job_id == job.id))
            drawn = {arm: sample["values"] for arm, sample in samples if sample and sample["values"]}
            searching = (trial for trial in spec.trials(drawn) if isinstance(trial.controller, BoConfig))
            self._runs[job.id] = tuple(_Run(trial.arm, trial.seed, _Kind.of(trial)) for trial in searching)
        return self._runs[job.id]


def priors(session: Session, spec: JobSpec, samples: Mapping[str, Sample], *, project: str | None) -> dict[str, Prior]:
    """Return the prior of each arm and drawn sample that asks for one, from jobs of `project`, or of all if None.

    Raises InvalidJob for named jobs that it cannot learn from. Jobs of other projects count as not found.
    """
    drawn = {name: sample.values for name, sample in samples.items() if sample.values is not None}
    past = _Past(session, project)
    found, problems = _sample_priors(past, spec, drawn)
    trials = {trial.arm: trial for trial in spec.trials()}
    for index, arm in enumerate(spec.arms):
        trial = trials[arm.name]
        if not isinstance(trial.controller, BoConfig) or trial.controller.transfer is None:
            continue
        place = f"/arms/{index}/controller" if arm.controller else "/controller"
        searches, refused = _searches(past, trial, trial.controller.transfer, f"{place}/transfer")
        problems |= {named: str(refusal) for named, refusal in refused.items()}
        found[arm.name] = Prior(searches=searches)
    if problems:
        raise InvalidJob([Problem(pointer=each.pointer, message=problems[each], value=each.job) for each in problems])
    return found


def sample_priors(
    session: Session, spec: JobSpec, drawn: Mapping[str, SampleValues], *, project: str | None
) -> dict[str, Prior]:
    """Return the prior of each of these samples that asks for one, by name. `project` is as in `priors`."""
    return _sample_priors(_Past(session, project), spec, drawn)[0]


def _sample_priors(
    past: _Past, spec: JobSpec, drawn: Mapping[str, SampleValues]
) -> tuple[dict[str, Prior], dict[_Named, str]]:
    """Return the priors of `sample_priors`, and why named jobs teach none of the samples.

    Samples may differ in what makes runs comparable, so each learns from those of the named jobs that are like it.
    That a job is unlike all of them is no fault: a sample that is drawn later may be like it.
    """
    swept = [path for path in spec.params if path.split(".")[0] == "controller"]
    if not _asks(spec) and not swept:
        return {}, {}
    found: dict[str, Prior] = {}
    known: dict[tuple[object, ...], Prior] = {}  # hundreds of samples are of a few kinds
    problems: dict[_Named, str] = {}
    teaching: set[str] = set()
    for name, values in drawn.items():
        with suppress(ValidationError):  # values of an earlier release, with which the sample fails
            trial = at(spec, values).trial(Arm(name=name), spec.seeds[0])
            if isinstance(trial.controller, BoConfig) and trial.controller.transfer is not None:
                transfer, workload = trial.controller.transfer, trial.replica.workload
                alike = (transfer, _Kind.of(trial), workload.kind, getattr(workload, "factory", None))
                if alike not in known:
                    is_jobs_own = isinstance(spec.controller, BoConfig) and transfer == spec.controller.transfer
                    place = "/controller/transfer" if is_jobs_own else f"/params/{swept[0]}"
                    searches, refused = _searches(past, trial, transfer, place)
                    known[alike] = Prior(searches=searches)
                    teaching |= {search.job for search in searches}
                    problems |= {named: str(why) for named, why in refused.items() if not isinstance(why, _Unlike)}
                found[name] = known[alike]
    return found, {named: why for named, why in problems.items() if named.job not in teaching}


def _asks(job: JobParts) -> bool:
    return isinstance(job.controller, BoConfig) and job.controller.transfer is not None


def _searches(
    past: _Past, trial: TrialSpec, transfer: PastJobs | str, place: str
) -> tuple[tuple[PastSearch, ...], dict[_Named, _Refusal]]:
    """Return the searches that the trial learns from, and why it cannot learn from the other jobs named at `place`."""
    if not isinstance(transfer, PastJobs):
        return _newest(past, trial), {}
    searches: list[PastSearch] = []
    refused: dict[_Named, _Refusal] = {}
    for number, job_id in enumerate(transfer.jobs):
        try:
            searches.append(_search_of(past, job_id, _Kind.of(trial)))
        except _Refusal as refusal:
            refused[_Named(f"{place}/jobs/{number}", job_id)] = refusal
    return tuple(searches), refused


def kept(session: Session, job_id: str) -> Mapping[str, Prior]:
    """Return the prior of each trial, as found when the job was added, or the sample drawn."""
    rows = session.execute(select(TrialRow.id, TrialRow.prior).where(TrialRow.job_id == job_id))
    return {each: NO_PRIOR if prior is None else Prior.model_validate(prior, extra="ignore") for each, prior in rows}


def _newest(past: _Past, trial: TrialSpec) -> tuple[PastSearch, ...]:
    workload, given = trial.replica.workload, JobRow.spec["workload"]
    query = select(JobRow).where(JobRow.state == JobState.SUCCEEDED.value)
    query = query.where(given["kind"].as_string() == workload.kind)
    if past.project is not None:
        query = query.where(JobRow.project == past.project)
    if isinstance(workload, OwnWorkload):
        query = query.where(given["factory"].as_string() == workload.factory)
    searches: list[PastSearch] = []
    for job in past.session.scalars(query.order_by(JobRow.id.desc()).limit(MAX_LOOKED_AT)):
        try:
            searches.append(_search(past, job, _Kind.of(trial)))
        except _Refusal:
            continue
        if len(searches) == MAX_JOBS:
            break
    return tuple(searches)


def _search_of(past: _Past, job_id: str, kind: _Kind) -> PastSearch:
    job = past.session.get(JobRow, job_id)
    if job is None or past.project not in (None, job.project):
        raise _Refusal(f"there is no job `{job_id}`")
    if job.job_state is not JobState.SUCCEEDED:
        raise _Refusal(f"job `{job_id}` is {job.state}; only one that succeeded can be learned from")
    return _search(past, job, kind)


def _search(past: _Past, job: JobRow, kind: _Kind) -> PastSearch:
    """Return the wide search of the job's first comparable run that has one. Raises `_Refusal`."""
    searching = past.runs(job)
    if not searching:
        raise _Refusal(f"job `{job.id}` has no arm that searched")
    alike = [(run.arm, run.seed) for run in searching if run.kind == kind]
    if not alike:
        other = searching[0].kind
        raise _Unlike(
            f"job `{job.id}` trained with optimizer `{other.optimizer}` and exchange `{other.exchange}`, this one does "
            f"with `{kind.optimizer}` and `{kind.exchange}`: their rates and levels do not compare"
        )
    searches = list(_decided(past.session, job.id, alike))
    for search in searches:
        if search.num_finite >= MIN_FINITE:
            return search
    if searches and not any(search.probes for search in searches):
        raise _Refusal(
            f"job `{job.id}` probed nothing: it began with the usual rate, or had no room for a search; a job to learn "
            "from has `controller.first_search: always`"
        )
    raise _Refusal(f"the search of job `{job.id}` has fewer than {MIN_FINITE} probes that did not diverge")


def _decided(session: Session, job_id: str, runs: list[tuple[str, int]]) -> Iterator[PastSearch]:
    query = select(TrialRow.arm, TrialRow.seed, StageRow.decision).join(StageRow, StageRow.trial_id == TrialRow.id)
    query = query.where(TrialRow.job_id == job_id, StageRow.stage == 0).order_by(TrialRow.position)
    for arm, seed, decision in session.execute(query):
        if (arm, seed) in runs:
            yield _past_search(job_id, decision)


def _past_search(job_id: str, decision: Mapping[str, Any]) -> PastSearch:
    try:
        return PastSearch.of(job_id, decision)
    except ValidationError as error:
        raise _Refusal(f"the search of job `{job_id}` was stored by another release, and cannot be read") from error
