"""The files of a job: results that the API generates, and files in its folder on storage."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import get_args

from service.control.storage import WEIGHTS, FileInfo, Storage
from service.errors import NotFound
from service.job.states import TERMINAL
from service.wire.artifacts import Artifact, ArtifactKind, Which
from service.wire.jobs import JobView
from service.wire.trials import ScheduleView, TrialView

_JSON, _BINARY = "application/json", "application/octet-stream"
_LOG = re.compile(r"attempt-(?P<number>[0-9]{1,18})\.log")
#: Outcomes with which an extended trial has the weights from before it was extended.
_EARLIER = (None, "failed")
_CHECKPOINT = re.compile(r"(?P<folder>attempt-[0-9]+/(?P<trial>[^/]+)/.+)/manifest\.json")


def artifacts(
    job: JobView, trials: Iterable[TrialView], schedules: Iterable[ScheduleView], storage: Storage
) -> tuple[Artifact, ...]:
    """Return the job's existing files, results first. Raises Unavailable if the storage cannot be listed."""
    files, begun = storage.files(job.id), [trial for trial in trials if trial.backend is not None]
    found = [_made(job, ArtifactKind.REPORT, "report.json", _JSON, "report")]
    if begun:
        found.append(_made(job, ArtifactKind.METRICS, "metrics.csv", "text/csv", "metrics.csv"))
    for schedule in schedules:
        if schedule.entries:
            name, which = f"{schedule.trial_id}.schedule.json", _of_trial(schedule)
            found.append(_made(job, ArtifactKind.SCHEDULE, name, _JSON, f"schedule?{which}", schedule.trial_id))
    for trial in begun:
        found += _weights(job, trial, storage, files)
    return (*found, *_stored(job, files))


def _made(
    job: JobView, kind: ArtifactKind, name: str, media_type: str, place: str, trial_id: str | None = None
) -> Artifact:
    href = f"/v1/jobs/{job.id}/{place}"
    return Artifact(
        name=name, kind=kind, trial_id=trial_id, href=href, media_type=media_type, num_bytes=None, created_at=None
    )


def _of_trial(of: TrialView | ScheduleView) -> str:
    return f"arm={of.arm}&seed={of.seed}"


def _weights(job: JobView, trial: TrialView, storage: Storage, files: Mapping[str, FileInfo]) -> Iterator[Artifact]:
    """Yield the trial's weights of the best state and of the end; an extended one has earlier ones until its end."""
    for which in (None,) if trial.outcome in _EARLIER else get_args(Which):
        try:
            url = weights_url(job, trial, which)
        except NotFound:
            continue
        about = files.get(url.removeprefix(f"{storage.job_url(job.id)}/"))
        if about is not None:
            chosen = "" if which is None else f"&which={which}"
            yield Artifact(
                name=weights_name(trial, which),
                kind=ArtifactKind.WEIGHTS,
                trial_id=trial.trial_id,
                href=f"/v1/jobs/{job.id}/weights?{_of_trial(trial)}{chosen}",
                media_type=_BINARY,
                num_bytes=about.num_bytes,
                sha256=weights_sha256(trial, url),
                created_at=about.changed_at,
            )


def weights_name(trial: TrialView, which: str | None) -> str:
    """Return the name under which the trial's weights are downloaded."""
    return ".".join([trial.trial_id, *([which] if which else []), WEIGHTS])


def weights_url(job: JobView, trial: TrialView, which: Which | None) -> str:
    """Return where the trial's weights are, None: those that the job exports.

    Raises NotFound with the reason, and UnreadableJob where that depends on what this release cannot read.
    """
    name = f"trial `{trial.trial_id}`"
    if trial.weights_url is None:
        ended = "the job ended before it had" if job.state in TERMINAL else "it has not finished"
        why = "it failed" if trial.outcome == "failed" else ended
        raise NotFound(f"{name} has no weights: {why}")
    if which is None:
        return trial.weights_url
    if trial.outcome in _EARLIER:
        why = "has not finished again" if trial.outcome is None else "failed after it was extended"
        raise NotFound(f"{name} {why}: without `which` its earlier weights are there")
    export = job.readable.checkpoint.export
    if which == "best" and export != "best":
        raise NotFound(
            f"{name} has no best weights: with `checkpoint.export: {export}` no best state is kept; clone the job with "
            "`checkpoint: {export: best}`"
        )
    if which == "last" and (trial.averaged or trial.exported_step is not None):
        if trial.last_weights_url is None:
            raise NotFound(f"the last weights of {name} were not kept: it ended in an earlier release")
        return trial.last_weights_url
    return trial.weights_url


def weights_sha256(trial: TrialView, url: str) -> str | None:
    """Return the SHA-256 of the trial's weights at `url`; None: an earlier release has not said."""
    return trial.last_weights_sha256 if url == trial.last_weights_url else trial.weights_sha256


def _stored(job: JobView, files: Mapping[str, FileInfo]) -> Iterator[Artifact]:
    """Yield complete checkpoints, each as its manifest, and the logs that are kept; a job may have left other files."""
    num_bytes: Counter[str] = Counter()  # of each folder
    for path, about in files.items():
        for parent in PurePosixPath(path).parents:
            num_bytes[str(parent)] += about.num_bytes
    for path, about in sorted(files.items()):
        log, checkpoint = _LOG.fullmatch(path), _CHECKPOINT.fullmatch(path)
        if log:
            place, name, kind, trial_id = f"logs?attempt={log['number']}", path, ArtifactKind.LOG, None
        elif checkpoint:
            place, name, kind = f"files/{path}", checkpoint["folder"], ArtifactKind.CHECKPOINT
            trial_id = checkpoint["trial"]
        else:
            continue
        yield Artifact(
            name=name,
            kind=kind,
            trial_id=trial_id,
            href=f"/v1/jobs/{job.id}/{place}",
            media_type="text/plain" if log else _JSON,
            num_bytes=about.num_bytes if log else num_bytes[name],
            created_at=about.changed_at,
        )
