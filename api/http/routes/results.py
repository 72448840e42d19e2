"""`/v1/jobs/{job}/...`: measurements, decisions, learned schedules, files and logs of the job's trials."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from pydantic import Field

from api.http.auth import Caller, require_key, require_visible
from api.http.dependencies import DownloadOf, Slot
from api.http.downloads import attachment, sent
from api.http.etags import UNCHANGED, IfNoneMatch, unchanged
from api.http.operations import Operation, OperationRouter, file
from api.http.ranges import FILE_HEADERS, PARTIAL, PartOf
from api.http.services import StoreOf, services_of
from api.tables import csv_chunks
from service.control.access.rules import Action
from service.control.metrics.points import EVERY_STEP, Steps
from service.control.ray_cluster.logs import ending, since, whole_length
from service.control.results import ranking
from service.control.results.artifacts import artifacts, weights_name, weights_sha256, weights_url
from service.errors import Busy, InvalidRequest, NotFound, UnreadableJob
from service.job.parts import BEST_TRIAL
from service.job.problems import Problem
from service.wire.artifacts import Artifact, Which
from service.wire.comparison import Comparison
from service.wire.records import MAX_WHOLE
from service.wire.reports import JobReport
from service.wire.trials import AttemptView, ScheduleView, Series, SeriesExtent, StageView, TrialView

#: Bytes of a log sent in one piece.
_PIECE_BYTES = 2**18

router = OperationRouter(prefix="/v1/jobs/{job}", tags=["results"], dependencies=[Depends(require_key)])

_Whole = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
Arm = Annotated[str | None, Query(description="an arm's name, or `best`: the best trial")]
Seed = Annotated[int | None, Query(ge=0, le=MAX_WHOLE, description="one of the job's seeds")]
FirstStep = Annotated[_Whole, Query(description="leave out earlier steps")]


def chosen_trial(job: str, store: StoreOf, arm: Arm = None, seed: Seed = None) -> TrialView:
    """Return the requested trial, by default a sweep's best, else that of the first arm and seed. Raises `NotFound`."""
    return chosen_trials(job, store, ranking.default_arm(store.trials(job), arm, seed), seed)[0]


def chosen_trials(job: str, store: StoreOf, arm: Arm = None, seed: Seed = None) -> list[TrialView]:
    """Return the requested trials, by default all, in the job's order. Raises `NotFound` and `UnreadableJob`."""
    trials = store.trials(job)
    found = ranking.chosen(trials, arm, seed, lambda: store.report(job).best_trial)
    if not found:
        asked = " and ".join(
            text for text, value in ((f"arm `{arm}`", arm), (f"seed {seed}", seed)) if value is not None
        )
        arms, seeds = ", ".join({trial.arm: None for trial in trials}), sorted({trial.seed for trial in trials})
        best = "; `best` is known once all trials have finished, if any has a result" if arm == BEST_TRIAL else ""
        raise NotFound(f"job `{job}` has no trial of {asked}{best}; arms: {arms}; seeds: {seeds}")
    return found


TrialOf = Annotated[TrialView, Depends(chosen_trial)]
TrialsOf = Annotated[list[TrialView], Depends(chosen_trials)]


@router.serves("GET", "/trials", Operation(id="listTrials", action=Action.READ))
def list_trials(job: str, store: StoreOf) -> tuple[TrialView, ...]:
    """Return the job's trials: every arm x every seed."""
    return store.trials(job)


@router.serves("GET", "/stages", Operation(id="listStages", action=Action.READ))
def list_stages(
    job: str,
    store: StoreOf,
    trial: str | None = None,
    stage: Annotated[
        list[_Whole], Query(description="only stages with these numbers; default: all", max_length=100)
    ] = [],  # noqa: B006
    posterior: Annotated[bool, Query(description="with each decision's posterior on a grid, up to 20 kB")] = False,
) -> tuple[StageView, ...]:
    """Return every decided stage: its probes, the choice with its reason and grounds, and the result of the commit."""
    return store.stages(job, trial_id=trial, numbers=stage, with_posterior=posterior)


@router.serves("GET", "/metrics", Operation(id="listMetrics", action=Action.READ))
def list_metrics(job: str, store: StoreOf, trial: str | None = None) -> tuple[SeriesExtent, ...]:
    """Return every trial's series: the name, how many points it has, and the last of them."""
    return store.series_extents(job, trial_id=trial)


@router.serves("GET", "/metrics/{name}", Operation(id="getMetric", action=Action.READ))
def get_metric(
    job: str,
    name: str,
    store: StoreOf,
    trial: str | None = None,
    max_points: Annotated[int, Query(ge=2, le=10_000)] = 2000,
    first_step: FirstStep = EVERY_STEP.first,
    last_step: Annotated[_Whole, Query(description="leave out later steps")] = EVERY_STEP.last,
) -> tuple[Series, ...]:
    """Return one series per trial, thinned to `max_points` with its extremes kept."""
    return store.series(job, name, trial_id=trial, max_points=max_points, within=Steps(first_step, last_step))


@router.serves(
    "GET",
    "/metrics.csv",
    Operation(
        id="exportMetrics",
        action=Action.READ,
        errors=(Busy, UnreadableJob),
        headers={200: ("Content-Disposition",)},
        is_stream=True,
    ),
    response_class=Response,
    responses=file("text/csv", "every point"),
)
def export_metrics(
    job: str,
    store: StoreOf,
    trials: TrialsOf,
    download: DownloadOf,
    name: Annotated[str | None, Query(description="only this metric; default: all")] = None,
    first_step: FirstStep = EVERY_STEP.first,
) -> StreamingResponse:
    """Return every point of every series as rows `job, arm, seed, step, seconds, name, value`; none is thinned out."""
    if name is not None:
        store.require_series(job, name)
    found = ((trial, store.points(trial.trial_id, name=name, first_step=first_step)) for trial in trials)
    chunks = csv_chunks(job, found)
    return StreamingResponse(download.rows(chunks), media_type="text/csv", headers=attachment(f"{job}-metrics.csv"))


@router.serves("GET", "/schedule", Operation(id="getSchedule", action=Action.READ, errors=(UnreadableJob,)))
def get_schedule(job: str, store: StoreOf, trial: TrialOf) -> ScheduleView:
    """Return a learned schedule, by default that of a sweep's best trial, else of the first arm and seed."""
    (found,) = store.schedules(job, arm=trial.arm, seed=trial.seed)
    if not found.entries:
        none = "it failed" if trial.outcome == "failed" else "the weights are those of its start"
        why = "yet: it has no step" if trial.outcome is None else f"and gets none: {none}"
        raise NotFound(f"job `{job}` has no schedule of arm `{trial.arm}` {why}")
    return found


@router.serves(
    "GET",
    "/weights",
    Operation(id="getWeights", action=Action.READ, errors=(Busy, UnreadableJob), headers=FILE_HEADERS),
    response_class=Response,
    responses=PARTIAL | UNCHANGED | file("application/octet-stream", "a safetensors file"),
)
def get_weights(
    job: str,
    store: StoreOf,
    trial: TrialOf,
    download: DownloadOf,
    part: PartOf,
    _: Slot,
    which: Annotated[
        Which | None, Query(description="the best evaluated state, or the last one; default: as in `checkpoint.export`")
    ] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return trained weights as a safetensors file, by default of a sweep's best trial, else the first arm and seed."""
    url = weights_url(store.job(job), trial, which)
    found = store.storage.open(job, url)
    download.closing.callback(found.content.close)
    if (short := unchanged(found.etag, if_none_match)) is not None:
        return short
    return sent(found, part, weights_name(trial, which), download, sha256=weights_sha256(trial, url))


#: A path none of whose parts begins with a dot.
_PATH = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*$"


@router.serves("GET", "/artifacts", Operation(id="listArtifacts", action=Action.READ, errors=(Busy, UnreadableJob)))
def list_artifacts(job: str, store: StoreOf, _: Slot) -> tuple[Artifact, ...]:
    """Return the files that the job has: report, metrics, schedules, weights, checkpoints, logs."""
    return artifacts(store.job(job), store.trials(job), store.schedules(job), store.storage)


@router.serves(
    "GET",
    "/files/{path:path}",
    Operation(id="getFile", action=Action.READ, errors=(Busy,), headers=FILE_HEADERS),
    response_class=Response,
    responses=PARTIAL | UNCHANGED | file("application/octet-stream", "the file"),
)
def get_file(
    job: str,
    path: Annotated[str, Path(pattern=_PATH, max_length=500, description="in the job's folder on storage")],
    store: StoreOf,
    download: DownloadOf,
    part: PartOf,
    _: Slot,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return a file of the job's folder on storage: a checkpoint's manifest, or a file that a manifest names."""
    store.version(job)
    url = store.storage.file_url(job, path)
    found = store.storage.open(job, url)
    download.closing.callback(found.content.close)
    if (short := unchanged(found.etag, if_none_match)) is not None:
        return short
    return sent(found, part, path.rpartition("/")[2], download, sha256=store.storage.listed_sha256(job, url))


@router.serves("GET", "/report", Operation(id="getReport", action=Action.READ, errors=(UnreadableJob,)))
def get_report(job: str, store: StoreOf) -> JobReport:
    """Return the result: every trial with its bill, every arm's mean over its seeds with a 95 % interval."""
    return store.report(job)


@router.serves("GET", "/attempts", Operation(id="listAttempts", action=Action.READ))
def list_attempts(job: str, store: StoreOf) -> tuple[AttemptView, ...]:
    """Return the job's attempts, oldest first: when each began and ended, how, and why."""
    return store.attempts.of_job(job)


MAX_COMPARED = 26  # one letter each


@router.serves("GET", "/comparison", Operation(id="getComparison", action=Action.READ, errors=(UnreadableJob,)))
def get_comparison(
    job: str,
    store: StoreOf,
    caller: Caller,
    other: Annotated[list[str], Query(max_length=MAX_COMPARED - 1, description="another job; repeatable")] = [],  # noqa: B006  (FastAPI copies it)
) -> Comparison:
    """Compare the job with others: the fields in which they differ, and their results against a common target."""
    require_visible(other, store, caller)
    return store.comparison(list(dict.fromkeys([job, *other])))


@router.serves(
    "GET",
    "/logs",
    Operation(
        id="getLogs", action=Action.READ, errors=(Busy,), headers={200: ("X-Log-Offset", "X-Log-End")}, is_stream=True
    ),
    response_class=PlainTextResponse,
    responses=file("text/plain", "what was printed"),
)
def get_logs(
    job: str,
    request: Request,
    _download: DownloadOf,
    _: Slot,
    attempt: Annotated[int | None, Query(ge=1, le=MAX_WHOLE, description="default: the last")] = None,
    offset: Annotated[
        int | None, Query(ge=0, le=MAX_WHOLE, description="skip this many bytes, which were already read")
    ] = None,
    tail: Annotated[
        int | None, Query(ge=1, le=MAX_WHOLE, description="only the last lines, at most this many bytes in all")
    ] = None,
) -> StreamingResponse:
    """Return the output of an attempt's driver and workers; so far, if it still runs.

    `X-Log-Offset` says where in the log the answer begins, and `X-Log-End` where it ends: to read on, pass that as
    `offset`. Long logs are stored without their middle, so an answer may be shorter than the difference.
    """
    if tail is not None and offset is not None:
        message = "`tail` goes without `offset`: the answer says in `X-Log-Offset` where it begins"
        raise InvalidRequest([Problem(pointer="/tail", message=message, value=tail)])
    log = services_of(request).logs.read(job, number=attempt)
    start, text = (offset or 0, since(log, offset or 0)) if tail is None else ending(log, tail)
    places = {"X-Log-Offset": str(start), "X-Log-End": str(max(start, whole_length(log)))}
    headers = places | {"Content-Length": str(len(text))}
    return StreamingResponse(_pieces(text), media_type="text/plain", headers=headers)


async def _pieces(text: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(text), _PIECE_BYTES):
        yield text[start : start + _PIECE_BYTES]
