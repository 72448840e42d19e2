"""Measure and remove what finished jobs left behind. Unfinished jobs are never touched."""

import shutil
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, Field

from service.control.ray_cluster import embedded
from service.control.ray_cluster.orphans import tune_folders
from service.control.storage import WEIGHTS, Storage
from service.job.spec import JobSpec
from service.job.states import TERMINAL
from service.job.sweep import workloads
from service.settings import Settings
from service.wire.base import MAX_PAGE
from service.wire.code import CodeView
from service.wire.jobs import JobPage, JobSummary, JobView

_RAYS_FILES = "Ray's files"
#: The least age of unused code: the job for which it was uploaded may follow soon.
_KEPT = timedelta(days=1)


class Leftover(BaseModel):
    """Files that are no longer needed."""

    what: str  # "results of JOB", "Tune's files of JOB", "Ray's files", "code of PROJECT"
    place: str
    num_bytes: int
    num_files: int
    job_id: str | None = None  # the job whose folder on storage holds them
    paths: list[str] = Field(default=[], exclude=True)  # on storage
    code: str | None = None  # the digest of a package that no job needs
    project: str | None = None  # which has the package; others may have the same one


class JobPages(Protocol):
    """A source of all jobs, archived ones included: the store, or a client of its service."""

    def __call__(self, *, limit: int, cursor: str | None) -> JobPage:
        """Return a page of jobs."""


def finished_jobs(pages: JobPages, *, before: datetime) -> Iterator[str]:
    """Yield the jobs that had ended by `before`. None runs again unless its user asks."""
    for job in _all(pages):
        if job.state in TERMINAL and job.finished_at is not None and job.finished_at < before:
            yield job.id


def unfinished_jobs(pages: JobPages) -> Iterator[str]:
    """Yield the jobs that are not over."""
    return (job.id for job in _all(pages) if job.state not in TERMINAL)


def starting_points(jobs: Iterable[JobView]) -> set[str]:
    """Return the ids of the jobs from whose weights `jobs` start."""
    readable = (job.spec for job in jobs if isinstance(job.spec, JobSpec))  # by this release
    named = (workload.weights_of for spec in readable for _, workload in workloads(spec))
    return {each.job for each in named if each is not None}


def _all(pages: JobPages) -> Iterator[JobSummary]:
    cursor: str | None = None
    while True:
        page = pages(limit=MAX_PAGE, cursor=cursor)
        yield from page.jobs
        if (cursor := page.next_cursor) is None:
            return


def leftovers(
    settings: Settings, finished: Iterable[str], *, with_weights: bool, in_use: Collection[str] = ()
) -> list[Leftover]:
    """Return what `finished` jobs, and a killed Ray, left on storage and on this machine.

    Weights are included only `with_weights`, and not those of jobs `in_use`. Raises Unavailable if the storage cannot
    be listed.
    """
    job_ids = list(finished)
    storage = Storage(settings.resolved_storage_url)
    found = [_on_storage(storage, job_id, with_weights=with_weights and job_id not in in_use) for job_id in job_ids]
    found += [  # left by killed drivers, as a finished job has none
        _folder(f"Tune's files of {job_id}", folder)
        for folder, attempts in tune_folders()
        for job_id in {name.rpartition("-a")[0] for name in attempts}.intersection(job_ids)
    ]
    if (folder := embedded.stale_dir(settings)) is not None:
        found.append(_folder(_RAYS_FILES, folder))
    return [leftover for leftover in found if leftover.num_files]


def unused_code(packages: Iterable[CodeView], *, before: datetime) -> list[Leftover]:
    """Return the packages that no job needs and that were last used before `before`, and at least a day ago."""
    latest = min(before, datetime.now(UTC) - _KEPT)
    return [
        Leftover(
            what=f"code of {each.project}",
            place=f"{each.project}/{each.digest}",
            num_bytes=each.num_bytes,
            num_files=each.num_files,
            code=each.digest,
            project=each.project,
        )
        for each in packages
        if each.used_at < latest and not each.in_use
    ]


def remove(settings: Settings, leftover: Leftover) -> None:
    """Remove exactly what `leftovers` found. Raises Unavailable or NotFound if that is not possible now."""
    if leftover.job_id is not None:
        Storage(settings.resolved_storage_url).remove(leftover.job_id, leftover.paths)
    elif leftover.what == _RAYS_FILES:
        embedded.clear_stale(settings)  # checks again, as a service may have started
    else:
        shutil.rmtree(leftover.place, ignore_errors=True)


def _on_storage(storage: Storage, job_id: str, *, with_weights: bool) -> Leftover:
    sizes = storage.sizes(job_id)
    gone = [path for path in sizes if with_weights or not path.endswith(f"/{WEIGHTS}")]
    return Leftover(
        what=f"results of {job_id}",
        place=storage.job_url(job_id),
        num_bytes=sum(sizes[path] for path in gone),
        num_files=len(gone),
        job_id=job_id,
        paths=gone,
    )


def _folder(what: str, folder: Path) -> Leftover:
    sizes = [path.lstat().st_size for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return Leftover(what=what, place=str(folder), num_bytes=sum(sizes), num_files=len(sizes))
