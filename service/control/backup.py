"""Back up and restore a service, even while it runs: its database, its secrets, and the files of a local storage.

A backup's folder holds `backup.json`, `database.sqlite` or `database.dump`, `secret` and `api_key`, and `storage/`.
Files of remote storage, such as S3, are not copied: the backup names its URL, and its versioning must keep them.
"""

import errno
import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import fsspec
from pydantic import BaseModel, ValidationError
from sqlalchemy import (
    JSON,
    URL,
    Column,
    Connection,
    MetaData,
    String,
    Table,
    Text,
    cast,
    func,
    inspect,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from service.control.database.engine import connect, is_sqlite, is_there, without_password
from service.control.database.faults import said
from service.control.database.locks import lock_service, make_private, prepare_state_dir
from service.control.database.schema import is_current, revisions
from service.control.ingest import places
from service.control.models import JobRow, StageRow, TrialRow
from service.control.storage import Storage, is_complete
from service.control.storage_mark import lost, remembered
from service.errors import Unavailable
from service.job.states import TERMINAL
from service.settings import Settings

T = TypeVar("T")
MANIFEST, FILES = "backup.json", "storage"
_DATABASES = {"sqlite": "database.sqlite", "postgresql": "database.dump"}
_PRIVATE = ("secret", "api_key")
#: Files that SQLite reads along with a database: changes to apply to it or to undo.
_BESIDE_SQLITE = ("-wal", "-shm", "-journal")
_TRIES = 5
_TIMEOUT_S = 3600.0


class Backup(BaseModel):
    """The manifest of a backup."""

    made_at: datetime
    wiretune: str
    database: Literal["sqlite", "postgresql"]
    revision: str | None
    storage_url: str
    has_files: bool


def back_up(settings: Settings, folder: Path) -> Backup:
    """Write a backup into `folder`, which must be new or empty. Raises Unavailable, and says what to do.

    Files are copied before the database and again after it, first the checkpoints that its rows name. If a running job
    has removed one meanwhile, both are copied again. So every checkpoint that a job resumes from is in the backup.
    """
    _prepare(folder)
    url = settings.resolved_database_url
    if not is_there(url):
        raise Unavailable(f"there is no database at {without_password(url)[0]}; check WIRETUNE_DATABASE_URL")
    revision, newest = revisions(url)
    if revision == newest:  # other releases may keep no marks
        _require_mounted(settings, url)
    is_local = _folder_of(settings.resolved_storage_url) is not None
    _copy_files(settings, folder)
    kind: Literal["sqlite", "postgresql"] = "sqlite" if is_sqlite(url) else "postgresql"
    _copy_database(settings, folder, kind)
    if kind == "sqlite" and revisions(_url_of(folder / _DATABASES[kind]))[0] != revision:
        raise Unavailable("another release migrated the database meanwhile; the backup is not whole, make another")
    _copy_files(settings, folder)
    for name in _PRIVATE:
        _copy_private(settings.state_dir / name, folder / name)
    made = Backup(
        made_at=datetime.now(UTC),
        wiretune=version("wiretune"),
        database=kind,
        revision=revision,
        storage_url=settings.resolved_storage_url,
        has_files=is_local,
    )
    (folder / MANIFEST).write_text(made.model_dump_json(indent=2) + "\n")  # last: without it, this is no backup
    return made


def restore(settings: Settings, folder: Path, *, are_files_moved: bool = False) -> Backup:
    """Restore a backup to the places in `settings`. Its jobs go on once a service starts there.

    Raises Unavailable if a service with these settings runs or has any data already; and if rows would name missing
    files, unless `are_files_moved`: the caller has copied them to the storage in `settings`.
    """
    made = _read(folder)
    url = settings.resolved_database_url
    kind = "sqlite" if is_sqlite(url) else "postgresql"
    if made.database != kind:
        raise Unavailable(
            f"the backup is of {made.database}, and WIRETUNE_DATABASE_URL names {kind}; restore it to one"
        )
    if not are_files_moved:
        _require_files(made, settings, folder)
    prepare_state_dir(settings)
    with lock_service(settings):
        _require_empty(settings)
        try:
            _put_back(made, settings, folder)
        except (OSError, SQLAlchemyError) as error:
            # `pg_restore` has committed by then; an SQLite file appears when it is whole.
            is_half = kind == "postgresql" and isinstance(error, SQLAlchemyError)
            way_out = "restore into a new, empty database" if is_half else "restore again"
            raise Unavailable(f"cannot restore {folder}: {said(error)}; mend that, and {way_out}") from error
    return made


def _put_back(made: Backup, settings: Settings, folder: Path) -> None:
    """Copy files and secrets, then the database. While there is no database, a failed restore can be repeated.

    Raises OSError, and SQLAlchemyError where rows could not be changed.
    """
    place = _folder_of(settings.resolved_storage_url)
    if made.has_files and place is not None:
        _copy_below(folder / FILES, place, fail=_raise)
    for name in _PRIVATE:
        _copy_private(folder / name, settings.state_dir / name)
    url, source = settings.resolved_database_url, folder / _DATABASES[made.database]
    old, new = made.storage_url.rstrip("/"), settings.resolved_storage_url.rstrip("/")
    if made.database == "postgresql":
        options = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
        _run_program("pg_restore", *options, str(source), "--dbname", url=url)
        _move_urls(url, old, new)
        return
    file = Path(make_url(url).database or "").resolve()
    with TemporaryDirectory(dir=file.parent) as draft:  # the file appears only when complete
        whole = Path(draft, file.name)
        shutil.copy(source, whole)
        _move_urls(_url_of(whole), old, new)
        if os.listdir(draft) != [whole.name]:  # the disk had no room to apply the changes in `-wal`
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        whole.replace(file)


def _require_mounted(settings: Settings, url: str) -> None:
    """Raise Unavailable if the storage has lost the service's mark: its files are elsewhere, and would be missing."""
    if settings.storage_url and (why := lost(Storage(settings.resolved_storage_url), remembered(url))):
        raise Unavailable(why)


def _raise(error: OSError) -> None:
    raise error


def _raise_unless_removed(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        why = f"cannot read {error.filename}: {error.strerror}"
        raise Unavailable(f"{why}; the backup is not whole: mend that, and begin again") from error


def _prepare(folder: Path) -> None:
    try:
        make_private(folder)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise Unavailable(f"cannot write a backup into {folder}: {error.strerror}; name another folder") from error
    if not is_empty:
        raise Unavailable(f"{folder} is not empty; name a new folder for the backup")


def _read(folder: Path) -> Backup:
    try:
        return Backup.model_validate_json((folder / MANIFEST).read_text())
    except (OSError, ValidationError) as error:
        raise Unavailable(f"{folder} holds no whole backup: it needs a valid {MANIFEST}") from error


def _require_files(made: Backup, settings: Settings, folder: Path) -> None:
    """Raise Unavailable if the files will not be at the storage in `settings`, where restored rows look for them."""
    old, new = made.storage_url, settings.resolved_storage_url
    if old.rstrip("/") == new.rstrip("/") or (made.has_files and _folder_of(new) is not None):
        return
    files, way_out = old, f"set WIRETUNE_STORAGE_URL to {old}"
    if made.has_files:
        files, way_out = str(folder / FILES), "set WIRETUNE_STORAGE_URL to a folder"
    raise Unavailable(
        f"the backup's files are in {files}, and the storage would be {new}: {way_out}; or copy them there first, and "
        "give `--files-moved`"
    )


def _folder_of(storage_url: str) -> Path | None:
    """Return the folder of a local storage; None if it is remote."""
    protocol, path = fsspec.core.split_protocol(storage_url)
    return Path(path) if protocol in (None, "file", "local") else None


def _copy_database(settings: Settings, folder: Path, kind: str) -> None:
    """Copy a snapshot of the database, and the checkpoints from which its jobs resume. Raises Unavailable."""
    lost: set[str] = set()
    for _ in range(_TRIES):
        missing = {url for url in _dump(settings, folder, kind) if not _is_copied(settings, folder, url)}
        if missing <= lost:  # rows still name them: no job has moved on, the service itself has lost their files
            return
        lost = missing
    raise Unavailable(f"{min(lost)} was removed before it could be copied; the backup is not whole, make another")


def _is_copied(settings: Settings, folder: Path, url: str) -> bool:
    """Copy the checkpoint at `url`. Return whether the backup has all of it; True if storage is remote."""
    root = _folder_of(settings.resolved_storage_url)
    inside = url.removeprefix(f"{settings.resolved_storage_url.rstrip('/')}/")
    if root is None or inside == url:
        return True
    source, target = root / inside, folder / FILES / inside
    if not source.resolve().is_relative_to(root.resolve()):  # a link made by a job, not our checkpoint
        return True
    _copy_below(source, target)
    return is_complete(target)


def _copy_files(settings: Settings, folder: Path) -> None:
    """Copy the files of a local storage."""
    source = _folder_of(settings.resolved_storage_url)
    if source is None:
        return
    (folder / FILES).mkdir(exist_ok=True)
    _copy_below(source, folder / FILES)


def _copy_below(source: Path, target: Path, *, fail: Callable[[OSError], None] = _raise_unless_removed) -> None:
    """Copy the files that are missing or have changed. `fail` is called for a folder that cannot be listed."""
    for root, _, names in os.walk(source, onerror=fail):
        for name in names:
            _copy_changed(Path(root) / name, target / Path(root).relative_to(source) / name)


def _copy_changed(source: Path, target: Path) -> None:
    try:
        found = source.lstat()
        if not stat.S_ISREG(found.st_mode):  # user code can leave links and devices, which may lead anywhere
            return
        if target.exists() and (target.stat().st_size, target.stat().st_mtime_ns) == (found.st_size, found.st_mtime_ns):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    except FileNotFoundError:  # removed meanwhile; keep an earlier copy, as a row may name it
        return
    except OSError as error:
        raise Unavailable(f"cannot copy {source} to {target}: {error.strerror}; mend that, and begin again") from error


def _copy_private(source: Path, target: Path) -> None:
    if source.exists():
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(source.read_bytes())


def _dump(settings: Settings, folder: Path, kind: str) -> set[str]:
    """Write a snapshot of the database; return the checkpoints from which its unfinished jobs resume."""
    url, target = settings.resolved_database_url, folder / _DATABASES[kind]
    try:
        target.touch(mode=0o600)  # others may be able to read the folder
    except OSError as error:
        raise Unavailable(f"cannot write {target}: {error.strerror}; name another folder") from error
    if kind == "postgresql":
        return _on(url, lambda connection: _dump_postgresql(url, target, connection))
    try:
        with (
            closing(sqlite3.connect(_reading(make_url(url).database or ""), uri=True)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)  # a consistent snapshot, even during writes
    except sqlite3.Error as error:
        raise Unavailable(f"the database could not be copied: {error}; try again") from error
    return _on(_url_of(target), _checkpoints)


def _url_of(file: Path) -> str:
    return URL.create("sqlite", database=str(file)).render_as_string()


def _reading(file: str) -> str:
    """Return the URI with which SQLite opens an existing file, and does not create one."""
    return f"{Path(file).absolute().as_uri()}?mode=ro"


def _dump_postgresql(url: str, target: Path, connection: Connection) -> set[str]:
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")  # a dump may take an hour
    moment = connection.scalar(select(func.pg_export_snapshot()))
    found = _checkpoints(connection)
    _run_program("pg_dump", "--format=custom", f"--snapshot={moment}", f"--file={target}", "--dbname", url=url)
    return found


def _checkpoints(connection: Connection) -> set[str]:
    """Return the checkpoints from which unfinished jobs resume; none if the database is of another release."""
    if not is_current(connection):
        return set()
    last = (
        select(StageRow.trial_id, func.max(StageRow.stage).label("stage"))
        .where(StageRow.resume_step.is_not(None))
        .group_by(StageRow.trial_id)
        .subquery()
    )
    rows = connection.execute(
        select(TrialRow.steady, TrialRow.searching, StageRow.resume)
        .join(JobRow, JobRow.id == TrialRow.job_id)
        .outerjoin(last, last.c.trial_id == TrialRow.id)
        .outerjoin(StageRow, (StageRow.trial_id == TrialRow.id) & (StageRow.stage == last.c.stage))
        .where(JobRow.state.not_in([state.value for state in TERMINAL]))
    )
    found: set[str] = set()
    for steady, searching, resume in rows:
        goes_on_from = [record["resume"] for record in (steady, searching) if record] + [resume]
        # `checkpoints` also lists those that the next save may remove.
        found |= {url for pointer, url in places(goes_on_from, "") if "/checkpoints/" not in pointer}
    return found


def _run_program(program: str, *arguments: str, url: str) -> None:
    """Run a PostgreSQL client program on the database. The password is not an argument, which others could see."""
    address, password = without_password(url)
    secret = {} if password is None else {"PGPASSWORD": password}
    plain = address.set(drivername="postgresql").render_as_string().replace("+", "%20")  # libpq needs %20
    try:
        done = subprocess.run(
            [program, *arguments, plain], env=os.environ | secret, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise Unavailable(f"`{program}` is not installed; it comes with PostgreSQL's client programs") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"`{program}` did not end within {_TIMEOUT_S / 60:.0f} minutes; run it by hand") from error
    if done.returncode:
        raise Unavailable(f"`{program}` failed: {done.stderr.strip()}")


def _require_empty(settings: Settings) -> None:
    url = settings.resolved_database_url
    if is_sqlite(url):
        is_empty = not is_there(url)
        file = make_url(url).database or ""
        if is_empty and (left := [f"{file}{end}" for end in _BESIDE_SQLITE if os.path.exists(f"{file}{end}")]):
            raise Unavailable(
                f"{', '.join(left)} of another database would be taken for the restored one's; remove what nobody "
                "needs, or restore into a new place: set WIRETUNE_STATE_DIR or _URL"
            )
    else:
        is_empty = _on(url, lambda connection: not inspect(connection).get_table_names())
    if not is_empty:
        place = without_password(url)[0]
        raise Unavailable(f"the database {place} is not empty; restore into a new one: set WIRETUNE_STATE_DIR or _URL")


def _move_urls(url: str, old: str, new: str) -> None:
    """Update the rows to name the files' new places."""
    if old == new:
        return

    def move(connection: Any) -> None:
        found = inspect(connection)
        for name in found.get_table_names():
            columns = [Column(each["name"], each["type"]) for each in found.get_columns(name)]
            for column in Table(name, MetaData(), *columns).columns:
                if isinstance(column.type, JSON | String | Text):
                    connection.execute(_moving(column, old, new, is_typed=connection.dialect.name == "postgresql"))

    _within(url, move)


def _moving(column: Column[Any], old: str, new: str, *, is_typed: bool) -> Any:
    text = cast(column, Text)
    moved: Any = func.replace(text, f"{old}/", f"{new}/")
    moved = cast(moved, column.type) if is_typed else moved  # SQLite stores JSON as text, and would make it a number
    return update(column.table).where(text.contains(f"{old}/", autoescape=True)).values({column: moved})


def _on(url: str, ask: Callable[[Connection], T]) -> T:
    try:
        return _within(url, ask)
    except SQLAlchemyError as error:
        raise Unavailable(f"the database does not answer: {said(error)}; check WIRETUNE_DATABASE_URL") from error


def _within(url: str, ask: Callable[[Connection], T]) -> T:
    """Return the result of `ask` in its own transaction."""
    engine = connect(url)
    try:
        with engine.begin() as connection:
            return ask(connection)
    finally:
        engine.dispose()
