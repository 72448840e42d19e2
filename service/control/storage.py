"""The storage that attempts write to: a folder for each job, accessed through fsspec."""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import fsspec
from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import tokenize
from pydantic import BaseModel, Field

from service.control import local_folder
from service.errors import NotFound, Unavailable, WiretuneError
from service.wire.records import SHA256
from trainers import filesystem as files

WEIGHTS = "weights.safetensors"
_MANIFEST = "manifest.json"
#: The largest manifest to read; it has some 150 bytes for each file of its checkpoint.
_MAX_MANIFEST_BYTES = 8_000_000
_CHUNK_BYTES = 1 << 20
#: The block size of S3 reads, held in memory for each download. The S3 driver's default is 50 MiB.
_BLOCK_BYTES = 8 << 20
#: The service's own files on storage, as errors name them. Each check of a storage writes its own file, since
#: replicas may check at the same time.
_OWN_FILE = re.compile(r"/\.(writable|storage)-[^/\s.]+(\.[0-9a-f]+\.partial)?")
#: Errors about a name that is too long, or that a socket has.
_NO_SUCH_FILE = {errno.ENAMETOOLONG, errno.ENXIO}


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """An open file. `etag` changes with the content. `chunks` closes the file at the end."""

    num_bytes: int
    etag: str
    content: IO[bytes]

    def chunks(self, part: range | None = None) -> Iterator[bytes]:
        """Yield the content, or the byte range `part` of it, in chunks."""
        places = range(self.num_bytes) if part is None else part
        with self.content as file, files.as_os_error(getattr(file, "path", "")):
            file.seek(places.start)
            while places and (chunk := file.read(min(len(places), _CHUNK_BYTES))):
                places = places[len(chunk) :]
                yield chunk

    def first(self, most: int) -> bytes:
        """Return at most the first `most` bytes of the content."""
        with self.content as file, files.as_os_error(getattr(file, "path", "")):
            return file.read(most)


class FileInfo(NamedTuple):
    """A listed file."""

    num_bytes: int
    changed_at: datetime | None  # None: the storage does not tell


class _Shard(BaseModel):
    name: str
    sha256: str = Field(pattern=SHA256)


class _Manifest(BaseModel):
    """The part of a checkpoint's manifest read here. It is untrusted, since a job may have written anything there."""

    shards: tuple[_Shard, ...]


@dataclass(frozen=True)
class Storage:
    """The files below `root`, an fsspec URL. Raises NotFound for a missing file, Unavailable if storage fails."""

    root: str

    @property
    def is_folder(self) -> bool:
        """True if the storage is a folder on this machine, as opposed to an object store."""
        return split_protocol(self.root)[0] in (None, *LocalFileSystem.protocol)

    def job_url(self, job_id: str) -> str:
        """Return the job's folder."""
        return f"{self.root.rstrip('/')}/{job_id}"

    def attempt_url(self, job_id: str, number: int) -> str:
        """Return the folder that attempt `number` writes to."""
        return f"{self.job_url(job_id)}/attempt-{number}"

    def log_url(self, job_id: str, number: int) -> str:
        """Return the place of the log of attempt `number`."""
        return f"{self.attempt_url(job_id, number)}.log"

    def open(self, job_id: str, url: str) -> StoredFile:
        """Open a file of the job. NotFound for a file elsewhere: attempts name the places, so they are not trusted."""
        with self._reaching_into(job_id, url) as (filesystem, path):
            return self._open(url, filesystem, path)

    def _open(self, url: str, filesystem: Any, path: str) -> StoredFile:
        if isinstance(filesystem, LocalFileSystem):
            return self._open_local(url, path)
        about = filesystem.info(path)
        if about["type"] != "file":
            raise _no_plain_file(url)
        content = filesystem.open(path, "rb", block_size=_BLOCK_BYTES)
        return StoredFile(num_bytes=about["size"], etag=f'"{_version(about)}"', content=content)

    def _open_local(self, url: str, path: str) -> StoredFile:
        """Open a local file. All that is said of it is of the opened one: a job may put another in its place."""
        try:
            content = local_folder.open_file(*self._below_root(path))
        except IsADirectoryError as error:
            raise _no_plain_file(url) from error
        about = os.fstat(content.fileno())
        if not stat.S_ISREG(about.st_mode):
            content.close()
            raise _no_plain_file(url)
        version = tokenize(about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        return StoredFile(num_bytes=about.st_size, etag=f'"{version}"', content=content)

    def _below_root(self, path: str) -> tuple[str, list[str]]:
        """Return the local folder of the storage, and the parts of `path` below it."""
        _, root = fsspec.url_to_fs(self.root)
        return root, os.path.relpath(path, root).split(os.sep)

    def first_gone(self, job_id: str, urls: Sequence[str]) -> str | None:
        """Return the first of `urls` at which the job has no file or folder; None: it has all. Links do not count.

        The job's folder is listed once, as a sweep has hundreds of checkpoints.
        """
        elsewhere = next((url for url in urls if not self.is_in_folder(job_id, url)), None)
        if elsewhere is not None or not urls:
            return elsewhere
        found = set[str]()
        with suppress(NotFound), self._reaching_folder(job_id, "list") as (filesystem, root):
            for path, about in filesystem.find(root, detail=True).items():
                if about["type"] == "file":
                    name = path[len(root) + 1 :]
                    found.update([name, *map(str, PurePosixPath(name).parents)])
        return next((url for url in urls if url.removeprefix(f"{self.job_url(job_id)}/") not in found), None)

    def is_in_folder(self, job_id: str, url: str) -> bool:
        """Return whether `url` is in the job's folder. A `::` is refused, as fsspec would chain several places."""
        folder, inside = f"{self.job_url(job_id)}/", url.removeprefix(self.job_url(job_id))
        return url.startswith(folder) and ".." not in inside.split("/") and "::" not in inside

    @contextmanager
    def _reaching_into(self, job_id: str, url: str) -> Iterator[tuple[Any, str]]:
        """Provide the file system and path of `url`. NotFound for a place outside the job's folder."""
        if not self.is_in_folder(job_id, url):
            raise NotFound(f"{url} is not in the folder of job `{job_id}`, {self.job_url(job_id)}")
        with _reaching(url) as (filesystem, path):
            try:
                yield filesystem, path
            except NotADirectoryError as error:  # below a file, unless the storage itself is one
                if os.path.isdir(fsspec.url_to_fs(self.root)[1]):
                    raise FileNotFoundError(path) from error
                raise

    @contextmanager
    def _reaching_folder(self, job_id: str, doing: str) -> Iterator[tuple[Any, str]]:
        """Provide the file system and path of the job's folder. NotFound for a link in its place."""
        with _reaching(self.job_url(job_id), doing) as (filesystem, path):
            self._require_no_link(filesystem, path)
            yield filesystem, path

    def _require_no_link(self, filesystem: Any, path: str) -> None:
        """Raise NotFound if a local `path`, or a folder between it and the root, is a link: jobs may create links."""
        if not isinstance(filesystem, LocalFileSystem):
            return
        _, root = fsspec.url_to_fs(self.root)
        if os.path.realpath(path) != os.path.join(os.path.realpath(root), os.path.relpath(path, root)):
            raise NotFound(f"{path} is a link, or in one, and links are not followed")

    def listed_sha256(self, job_id: str, url: str) -> str | None:
        """Return the SHA-256 of a checkpoint's file according to the manifest beside it; None if there is none."""
        folder, _, name = url.rpartition("/")
        with suppress(NotFound, ValueError):
            content = self.open(job_id, f"{folder}/{_MANIFEST}").first(_MAX_MANIFEST_BYTES)
            shards = _Manifest.model_validate_json(content).shards
            return next((each.sha256 for each in shards if each.name == name), None)
        return None

    def write(self, url: str, content: bytes) -> None:
        """Write a file, and the folders above it. The file appears under its name only when complete.

        A link or a folder may be in the way, as jobs may create them. A link in the file's own place is replaced;
        otherwise this raises NotFound.
        """
        with _reaching(url, "write") as (filesystem, path):
            if not isinstance(filesystem, LocalFileSystem):
                files.write(url, content)
                return
            try:
                local_folder.write(*self._below_root(path), content)
            except IsADirectoryError as error:
                raise _no_plain_file(url) from error

    def require_writable(self) -> None:
        """Raise Unavailable unless the storage can write, read and remove a file.

        The error names the storage and not the file, so its text is the same until something changes.
        """
        url = f"{self.root.rstrip('/')}/.writable-{secrets.token_hex(4)}"
        content = secrets.token_bytes(_CHUNK_BYTES)  # a full disk may still accept a few bytes
        with _naming_no_file():
            self.write(url, content)
            with _as_refusals(url, "read"):
                given = files.read(url)
            with _reaching(url, "remove") as (filesystem, path):
                filesystem.rm_file(path)
            if given != content:
                gave = f"the storage gave back another file than it took, at {url}"
                raise Unavailable(f"{gave}; check WIRETUNE_STORAGE_URL")

    def mark_url(self, name: str) -> str | None:
        """Return the place of the mark by which machines recognize this folder; None if the storage is not a folder."""
        return f"{self.root.rstrip('/')}/.storage-{name}" if self.is_folder else None

    def leave_mark(self, url: str) -> None:
        """Write the mark. Raises Unavailable, as `require_writable` does, if the storage does not accept it."""
        with _naming_no_file():
            self.write(url, b"")

    def has_mark(self, name: str) -> bool:
        """Return whether the mark exists."""
        with _reaching(f"{self.root.rstrip('/')}/.storage-{name}") as (filesystem, path):
            return bool(filesystem.exists(path))

    def require_room(self, job_id: str, checkpoints: Iterable[str], *, at_once: int) -> None:
        """Raise Unavailable unless a checkpoint fits for each trial that trains at once. Only local disks are checked.

        The size is that of the largest of the job's last `checkpoints` that still exist. The error does not name the
        free space, which changes all the time.
        """
        with _reaching(self.root) as (filesystem, root):
            if not isinstance(filesystem, LocalFileSystem):
                return
            free = shutil.disk_usage(root).free
        sizes = [0]
        for url in checkpoints:
            with suppress(NotFound), self._reaching_into(job_id, url) as (filesystem, path):
                self._require_no_link(filesystem, path)
                sizes.append(filesystem.du(path))
        if (needed := sum(sorted(sizes)[-at_once:])) > free:
            raise Unavailable(
                f"the storage has less than the {needed / 1e9:.3g} GB free that the job needs for its next "
                "checkpoint: make room (`wiretune clean`), and it goes on by itself"
            )

    def code_url(self, project: str, digest: str) -> str:
        """Return the place of a project's package of code."""
        return f"{self.root.rstrip('/')}/code/{project}/{digest.removeprefix('sha256:')}.zip"

    def read_code(self, project: str, digest: str) -> bytes:
        """Return the zip of a package of code."""
        url = self.code_url(project, digest)
        with _as_refusals(url, "read"):
            return files.read(url)

    def open_code(self, project: str, digest: str) -> StoredFile:
        """Open the zip of a package of code."""
        url = self.code_url(project, digest)
        with _reaching(url) as (filesystem, path):
            return self._open(url, filesystem, path)

    def has_code(self, project: str, digest: str) -> bool:
        """Return whether the package exists."""
        with _reaching(self.code_url(project, digest)) as (filesystem, path):
            return bool(filesystem.exists(path))

    def remove_code(self, project: str, digest: str) -> None:
        """Remove a package of code, if it exists."""
        with suppress(NotFound), _reaching(self.code_url(project, digest), "remove") as (filesystem, path):
            filesystem.rm_file(path)

    def sizes(self, job_id: str) -> dict[str, int]:
        """Return the size in bytes of every file in the job's folder, by path; empty if there is no folder."""
        with suppress(NotFound), self._reaching_folder(job_id, "list") as (filesystem, path):
            return {found: about["size"] for found, about in filesystem.find(path, detail=True).items()}
        return {}

    def files(self, job_id: str) -> dict[str, FileInfo]:
        """Return every file of the job, by its path in the job's folder; empty if there is no folder."""
        with suppress(NotFound), self._reaching_folder(job_id, "list") as (filesystem, root):
            found = filesystem.find(root, detail=True)
            return {path[len(root) + 1 :]: FileInfo(about["size"], _changed_at(about)) for path, about in found.items()}
        return {}

    def file_url(self, job_id: str, path: str) -> str:
        """Return the URL of a file in the job's folder."""
        return f"{self.job_url(job_id)}/{path}"

    def remove_job(self, job_id: str) -> None:
        """Remove the job's folder, if it exists."""
        with suppress(NotFound), self._reaching_folder(job_id, "remove") as (filesystem, path):
            filesystem.rm(path, recursive=True)

    def remove(self, job_id: str, paths: list[str]) -> None:
        """Remove files of the job's folder, then the folders in it that have become empty."""
        with self._reaching_folder(job_id, "remove") as (filesystem, root):
            for path in paths:
                with suppress(FileNotFoundError):  # somebody else removed it
                    if isinstance(filesystem, LocalFileSystem):
                        local_folder.remove_file(*self._below_root(path))
                    else:
                        filesystem.rm_file(path)
            if not files.has_folders(filesystem):
                return
            for folder in sorted((name for name, _, _ in filesystem.walk(root)), key=len, reverse=True):
                if filesystem.isdir(folder) and not filesystem.ls(folder, refresh=True):
                    filesystem.rmdir(folder)


def is_complete(folder: Path) -> bool:
    """Return whether a local folder holds a complete checkpoint: every file that its manifest lists."""
    try:
        manifest = _Manifest.model_validate_json((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return all((folder / each.name).is_file() for each in manifest.shards)


def _no_plain_file(url: str) -> NotFound:
    return NotFound(f"{url} is a folder, or no plain file")


def _version(about: Mapping[str, Any]) -> str:
    """Return a value that changes with a file's content. For S3 it is the ETag: other fields vary between calls."""
    return str(tokenize(about.get("ETag", about)))


def _changed_at(about: Mapping[str, Any]) -> datetime | None:
    moment = about.get("mtime", about.get("LastModified", about.get("last_modified")))
    return datetime.fromtimestamp(moment, UTC) if isinstance(moment, int | float) else moment


@contextmanager
def _reaching(url: str, doing: str = "read") -> Iterator[tuple[Any, str]]:
    """Provide the file system and path of `url`; `doing` is for the error message."""
    with _as_refusals(url, doing), files.reaching(url) as reached:
        yield reached


@contextmanager
def _naming_no_file() -> Iterator[None]:
    """Let errors name only the storage: with a file's name, each would have another text."""
    try:
        yield
    except (NotFound, Unavailable) as error:
        raise Unavailable(_OWN_FILE.sub("", str(error))) from error.__cause__


@contextmanager
def _as_refusals(url: str, doing: str) -> Iterator[None]:
    try:
        yield
    except WiretuneError:
        raise
    except Exception as error:  # no answer, permission, driver or such URL; gcsfs and adlfs raise their own errors
        number = getattr(error, "errno", None)
        if isinstance(error, FileNotFoundError) or number in _NO_SUCH_FILE:
            raise NotFound(f"{url} is not on storage (any more)") from error
        if number == errno.ELOOP:
            raise NotFound(f"{url} is a link, or in one, and links are not followed") from error
        said = str(error) or type(error).__name__
        raise Unavailable(f"cannot {doing} {url} on storage: {said}; {_remedy(url, error)}") from error


def _remedy(url: str, error: Exception) -> str:
    if isinstance(error, ImportError):
        return "install its driver here and on every node (for s3://: `pip install 'wiretune[s3]'`)"
    if not files.is_s3(url):
        return "check WIRETUNE_STORAGE_URL"
    if isinstance(error, PermissionError):
        return (
            "check the key (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE and "
            "AWS_PROFILE), and that it may get, put, list and delete in the bucket of WIRETUNE_STORAGE_URL"
        )
    return "check that the bucket of WIRETUNE_STORAGE_URL exists, and AWS_ENDPOINT_URL where the store is not AWS's"
