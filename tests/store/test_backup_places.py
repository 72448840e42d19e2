"""A restored service finds its files, and a backup copies the configured database."""

import errno
import os
import sqlite3
import subprocess
from contextlib import closing

import pytest
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from api.cli import main
from service.control import backup
from service.control.backup import Backup
from service.control.database.engine import is_there
from service.errors import Unavailable
from service.settings import Settings

S3 = "s3://bucket/wiretune"


@pytest.fixture
def make(tmp_path, put_sqlite):
    """Makes a service with this storage, and a backup of it, in folders of this name."""

    def make(*, storage_url="", name="old"):
        settings = Settings(state_dir=tmp_path / name, storage_url=storage_url)
        put_sqlite(settings)
        return settings, tmp_path / f"backup of {name}"

    return make


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (S3, "", f"the backup's files are in {S3}, .* set WIRETUNE_STORAGE_URL to {S3}; or copy them there first"),
        (S3, f"{S3}-new", f"the storage would be {S3}-new: set WIRETUNE_STORAGE_URL to {S3}"),
        ("", S3, r"files are in .*/storage, and the storage would be s3:.*: set WIRETUNE_STORAGE_URL to a folder"),
    ],
)
def test_nothing_is_restored_whose_files_would_be_elsewhere_unless_they_were_moved(
    make, tmp_path, monkeypatch, old, new, said
):
    settings, folder = make(storage_url=old)
    backup.back_up(settings, folder)
    elsewhere = Settings(state_dir=tmp_path / "new", storage_url=new)

    with pytest.raises(Unavailable, match=said):
        backup.restore(elsewhere, folder)
    assert not elsewhere.state_dir.exists()

    monkeypatch.setenv("WIRETUNE_STATE_DIR", str(elsewhere.state_dir))
    monkeypatch.setenv("WIRETUNE_STORAGE_URL", new)
    restored = CliRunner().invoke(main.app, ["restore", "--files-moved", str(folder)])
    assert "goes on with its jobs" in restored.stdout, restored.stderr


@pytest.mark.parametrize(("old", "new"), [(S3, S3), (S3, f"{S3}/"), ("", "")])
def test_a_restore_needs_no_word_where_its_files_are_in_place(make, tmp_path, old, new):
    settings, folder = make(storage_url=old)
    backup.back_up(settings, folder)

    assert backup.restore(Settings(state_dir=tmp_path / "new", storage_url=new), folder).storage_url


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
def test_a_backup_is_of_the_database_however_its_folder_is_named(make, name):
    settings, folder = make(name=name)
    files = set(os.listdir(settings.state_dir.parent))

    made = backup.back_up(settings, folder)

    assert set(os.listdir(settings.state_dir.parent)) == files | {folder.name}
    with closing(sqlite3.connect(folder / "database.sqlite")) as copy:
        assert copy.execute("select version_num from alembic_version").fetchall() == [(made.revision,)]


def test_a_database_that_is_migrated_meanwhile_makes_no_whole_backup(make, monkeypatch):
    settings, folder = make()
    found, look = [("0001", "0002")], backup.revisions
    monkeypatch.setattr(backup, "revisions", lambda url: found.pop() if found else look(url))

    with pytest.raises(Unavailable, match="migrated the database meanwhile; the backup is not whole, make another"):
        backup.back_up(settings, folder)
    assert not (folder / "backup.json").exists()


def test_a_checkpoint_that_is_half_removed_is_not_backed_up_and_the_database_is_copied_again(make, monkeypatch):
    settings, folder = make()
    half, whole = (settings.state_dir / "results" / "job" / name for name in ("half", "whole"))
    for each in (half, whole):
        each.mkdir(parents=True)
        (each / "shared.safetensors").write_bytes(b"weights")
    (whole / "manifest.json").write_text('{"shards": []}')
    named = [{f"file://{half}"}, {f"file://{whole}"}]
    dump = backup._dump

    def dump_as_named(*arguments):
        dump(*arguments)
        return named.pop(0)

    monkeypatch.setattr(backup, "_dump", dump_as_named)

    assert isinstance(backup.back_up(settings, folder), Backup)
    assert named == []


def test_a_folder_that_cannot_be_listed_makes_no_whole_backup(make, monkeypatch):
    settings, folder = make()
    closed = settings.state_dir / "results" / "job"
    closed.mkdir(parents=True)
    scandir = os.scandir

    def refuse(path="."):
        if path == str(closed):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(Unavailable, match=f"cannot read {closed}: Permission denied; the backup is not whole"):
        backup.back_up(settings, folder)
    assert not (folder / "backup.json").exists()


def test_a_restore_copies_into_a_folder_of_somebody_else_and_leaves_its_mode(make, tmp_path, monkeypatch):
    settings, folder = make()
    old, new = settings.state_dir / "results", tmp_path / "storage of root"
    (old / "job").mkdir(parents=True)
    (old / "job" / "weights").write_bytes(b"weights")
    backup.back_up(settings, folder)
    (new / "job").mkdir(parents=True)
    new.chmod(0o2775)
    change = os.utime

    def utime_of_files_alone(path, *arguments, **options):
        if os.path.isdir(path):  # as the kernel answers whoever does not own it
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        change(path, *arguments, **options)

    monkeypatch.setattr(os, "utime", utime_of_files_alone)

    backup.restore(Settings(state_dir=tmp_path / "new", storage_url=f"file://{new}"), folder)

    assert (new / "job" / "weights").read_bytes() == b"weights"
    assert new.stat().st_mode & 0o7777 == 0o2775


@pytest.mark.parametrize(
    ("step", "failure"),
    [
        ("_copy_below", OSError(errno.ENOSPC, "the disk is full")),
        ("_copy_private", OSError(errno.ENOSPC, "the disk is full")),
        ("_moving", OperationalError("UPDATE", {}, sqlite3.OperationalError("database or disk is full"))),
    ],
)
def test_a_restore_that_the_disk_had_no_room_for_can_be_repeated(make, tmp_path, monkeypatch, step, failure):
    settings, folder = make()
    backup.back_up(settings, folder)
    elsewhere = Settings(state_dir=tmp_path / "new")
    work = getattr(backup, step)

    def fail(*_arguments, **_options):
        raise failure

    monkeypatch.setattr(backup, step, fail)
    with pytest.raises(Unavailable, match=r"cannot restore .* is full; mend that, and restore again"):
        backup.restore(elsewhere, folder)
    monkeypatch.setattr(backup, step, work)

    assert backup.restore(elsewhere, folder).has_files
    assert is_there(elsewhere.resolved_database_url)
    assert not [each for each in elsewhere.state_dir.iterdir() if each.name.startswith("tmp")]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://wt:hush@db/wt",
        "postgresql://db/wt?user=wt&password=hush",
        "postgresql://wt:old@db/wt?password=hush",
    ],
)
def test_a_password_is_neither_an_argument_of_a_program_nor_said(monkeypatch, url):
    ran = []

    def run(arguments, *, env, **_):
        ran.append((arguments, env))
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(backup, "_on", lambda *_: False)

    backup._run_program("pg_dump", "--dbname", url=url)
    with pytest.raises(Unavailable, match="is not empty") as refused:
        backup._require_empty(Settings(database_url=url))

    [(arguments, environment)] = ran
    assert environment["PGPASSWORD"] == "hush"
    assert "@db/wt" in arguments[-1] or "user=wt" in arguments[-1]
    assert not [text for text in (*arguments, str(refused.value)) if "hush" in text or "old" in text]
