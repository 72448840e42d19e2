"""A trial as Tune runs it: start its lanes of workers, train it, and report the result."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, nullcontext

from pydantic import ValidationError
from ray import tune

from search.sweep.propose import Seen, propose
from search.sweep.spec import SampleValues
from service import tracing
from service.cluster import checkpoints, shared_folder, trial
from service.cluster.attempt import Hopeless, LostTouch, NoPlace, configure_process, is_wanted, last_line
from service.cluster.checkpoints import NoRoom
from service.cluster.group import RayGroup
from service.cluster.reporter import Door, Reporter, Stopped
from service.cluster.shared_folder import UnlikeMachine
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from service.job.sweep import at, conflicts_at, sample_name
from service.wire.records import AttemptBrief, Control, ResumePoint, SampleDrawn, StartingWeights, TrialFailed
from trainers.training.call_results import Unfit, WorkerFailed, in_place_of_others
from trainers.training.elastic import ElasticGroup
from trainers.training.group import Group
from trainers.training.repair import RepairingGroup
from trainers.workload import NoData, WorkloadError

#: After this many draws a sample keeps its values, even if another sample has them.
MAX_DRAWS = 8

log = logging.getLogger("wiretune.driver")


def run(trial_id: str, trace: Mapping[str, str], *, max_silence_s: float) -> None:
    """Train one trial in the process that Tune started for it.

    Args:
        trial_id: a trial of the job that the environment names.
        trace: the driver's span.
        max_silence_s: how long the trial waits for its brief; running drivers and trials wait as long for the API.
    """
    configure_process("wiretune-trial", trial=trial_id)
    with tracing.span("trial", parent=trace, trial=trial_id):
        tune.report({"outcome": _run(trial_id, max_silence_s=max_silence_s)})
    tracing.flush()


def _run(trial_id: str, *, max_silence_s: float) -> str:
    """Return how the trial ended. Raises LostTouch, which ends all trials, if the attempt can store nothing more."""
    try:
        return _reported(Door.from_environment(), trial_id, max_silence_s=max_silence_s)
    except Stopped as stopped:
        if stopped.control is Control.FENCED:
            raise LostTouch(f"a trial lost touch with the API: {stopped.reason}") from stopped
        log.info("trial %s ends: %s", trial_id, stopped.reason)
        return stopped.control


def _reported(door: Door, trial_id: str, *, max_silence_s: float) -> str:
    brief = door.brief(max_silence_s=max_silence_s)
    point, spec = _find(brief, trial_id)
    if not is_wanted(brief, point):  # any more: a user has asked for its end, or the job's, while an earlier trial ran
        return Control.STOP if brief.control is Control.RUN else brief.control
    is_stopped = point.pruned or point.stopped or brief.control is Control.STOP
    asked = Control.STOP if is_stopped else Control.RUN
    reporter = Reporter(door, point.trial_id, max_silence_s=brief.max_silence_s, steers=point.steers, asked=asked)
    try:
        return _outcome(door, brief, point, spec, reporter)
    finally:
        reporter.close()


def _outcome(door: Door, brief: AttemptBrief, point: ResumePoint, spec: TrialSpec, reporter: Reporter) -> str:
    """Return how the trial ended. An error that would repeat ends only a sample, but for an arm's trial the job."""
    try:
        return _trained(door, brief, point, spec, reporter)
    except Unfit as unfit:
        log.error("%s", unfit)
        raise NoPlace(last_line(unfit)) from unfit
    except UnlikeMachine as unlike:  # the next attempt may get other machines, or this one is mended by then
        log.error("%s", unlike)
        raise NoPlace(str(unlike)) from unlike
    except (NoData, NoRoom) as refused:  # not caused by a sample's values
        raise Hopeless(str(refused)) from refused
    except (WorkloadError, WorkerFailed) as failed:
        log.error("%s", failed)
        why = str(failed)
        if isinstance(failed, WorkerFailed):
            if failed.is_passing:
                raise
            why = f"a worker failed: {last_line(failed)}; `wiretune logs {brief.job_id}` has its traceback"
        if point.sample is None:
            raise Hopeless(why) from failed
    reporter.flush(TrialFailed(trial_id=point.trial_id, reason=why))
    return "failed"


def _trained(door: Door, brief: AttemptBrief, point: ResumePoint, spec: TrialSpec, reporter: Reporter) -> str:
    """Start the trial's workers, train it, and return its outcome."""
    if point.sample is not None and point.sample.values is None:
        point, spec = _learned(door, brief, point, reporter)
    elif point.sample is not None and point.sample.values is not None:
        _require_readable(brief.spec, point.sample.values)
    spec = with_weights(spec, brief.starting_weights).among(brief.num_workers or spec.workers.count)
    num_workers = spec.lanes.count * spec.workers.count
    log.info("trial %s starts %d workers, lanes: %d", point.trial_id, num_workers, spec.lanes.count)
    checkpoints.remove_strays(brief.storage_url, point.trial_id, number=brief.number, resume=point.resume)
    with ExitStack() as lanes:
        may_pass = nullcontext() if point.resume is None else in_place_of_others()
        with tracing.span("start workers", workers=num_workers), may_pass:
            shared_folder.require(brief.storage_mark)
            group, *spare = [
                lanes.enter_context(_that_outlives_workers(spec, brief.storage_mark, lane=lane))
                for lane in range(spec.lanes.count)
            ]
        log.info("trial %s: its workers are ready, on %s over %s", point.trial_id, group.device, group.backend)
        result = trial.train(
            spec,
            group,
            reporter,
            trial_id=point.trial_id,
            storage_url=brief.storage_url,
            resume=point.resume,
            spare=spare,
            prior=point.prior,
        )
    return result.outcome


def with_weights(spec: TrialSpec, found: Iterable[StartingWeights]) -> TrialSpec:
    """Return the run with the file of the weights that it takes from another job, of those that the service `found`.

    Raises WorkloadError if that is none of them.
    """
    named = spec.replica.workload.weights_of
    if named is None:
        return spec
    file = next((each for each in found if each.named == named), None)
    if file is None:
        raise WorkloadError(f"`workload.weights_of`: those of job `{named.job}` are not in its folder on storage")
    workload = spec.replica.workload.model_copy(update={"weights": file.url, "weights_of": None})
    replica = spec.replica.model_copy(update={"workload": workload, "weights_sha256": file.sha256})
    return spec.model_copy(update={"replica": replica})


def _that_outlives_workers(spec: TrialSpec, mark: str | None, *, lane: int) -> Group:
    """Start the workers of a lane, in a group that survives the loss of one."""
    workers = spec.workers
    group = RayGroup(spec.replica, workers, mark=mark, lane=lane)
    if workers.min is None or not spec.trains_in_rounds:
        return RepairingGroup(group)
    return ElasticGroup(group, least=min(workers.min, workers.count), own_pace=workers.pace == "own")


def _find(brief: AttemptBrief, trial_id: str) -> tuple[ResumePoint, TrialSpec]:
    samples = [point.sample for point in brief.trials if point.sample is not None]
    drawn = {sample_name(each.number): each.values for each in samples if each.values is not None}
    for point, spec in zip(brief.trials, brief.spec.trials(drawn), strict=True):
        if point.trial_id == trial_id:
            return point, spec
    raise ValueError(f"job {brief.job_id} has no trial {trial_id!r}")


def _require_readable(job: JobSpec, values: SampleValues) -> None:
    """Raise WorkloadError for a sample's values that no trial can have, as an earlier release may have drawn them."""
    try:
        at(job, values)
    except ValidationError as error:
        why = "; ".join(each.message for each in conflicts_at(job, values))
        raise WorkloadError(f"a sample cannot have the values {values}: {why}") from error


def _learned(door: Door, brief: AttemptBrief, point: ResumePoint, reporter: Reporter) -> tuple[ResumePoint, TrialSpec]:
    """Draw a sample's values from the measurements of others, store them, and return where and what it trains.

    If another sample has drawn the same values meanwhile, that one keeps them, and this one draws again.
    """
    for num_left in reversed(range(MAX_DRAWS)):
        drawn = _draw(brief, point)
        log.info("trial %s draws its values by %s: %s", point.trial_id, drawn.drawn_by, drawn.values)
        reporter.flush(drawn if num_left else drawn.model_copy(update={"only_if_new": False}))
        brief = door.brief(max_silence_s=brief.max_silence_s)
        point, spec = _find(brief, point.trial_id)
        if point.sample is not None and point.sample.values is not None:
            break
    _require_readable(brief.spec, drawn.values)
    return point, spec


def _draw(brief: AttemptBrief, point: ResumePoint) -> SampleDrawn:
    """Return values for a sample. They must be new, unless no new ones are left."""
    seen = [Seen(each.values, each.share, each.value, each.cost) for each in brief.seen]
    others = [each.sample for each in brief.trials if each.sample is not None and not each.finished]
    pending = [each.values for each in others if each.values is not None]
    values, drawn_by = propose(
        brief.spec.params,
        brief.spec.sweep_config,
        point.sample.number if point.sample is not None else 0,
        seen=seen,
        pending=pending,
        fits=lambda values: not conflicts_at(brief.spec, values),
    )
    is_new = values not in [*(each.values for each in seen), *pending]
    return SampleDrawn(trial_id=point.trial_id, values=values, drawn_by=drawn_by, only_if_new=is_new)
