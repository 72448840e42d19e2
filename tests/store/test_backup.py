"""A backup of a live service, restored elsewhere: every job is there and resumes from its checkpoint."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from api.cli import main
from service.control import backup
from service.control.listing import JobFilter
from service.control.processes import wait_until
from service.control.store import Store
from service.errors import Unavailable
from service.settings import Settings
from service.wire.jobs import JobEdit
from service.wire.records import Bill
from tests.store.conftest import Driver, only
from tests.support.patience import PATIENCE_S


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path, database_url: str) -> Settings:
    """A fresh place: an empty state dir, and for PostgreSQL an empty database."""
    url = request.getfixturevalue("empty_postgres_url") if database_url else ""
    return Settings(state_dir=tmp_path / "elsewhere", database_url=url)


def checkpointed(driver: Driver, settings: Settings, *, stage: int = 0) -> str:
    """Have the driver close a stage with a checkpoint; return its URL."""
    step = 50 * stage
    url = f"{settings.resolved_storage_url}/{driver.job_id}/attempt-1/{driver.trial_id}/{stage:06d}-step-{step + 50}"
    folder = Path(url.removeprefix("file://"))
    folder.mkdir(parents=True)
    (folder / "state.safetensors").write_bytes(b"weights")
    driver.decide(stage, first_step=step)
    driver.close(stage, step=step + 50, num_steps=50, bill=Bill(), resume={"checkpoint": url})
    return url


@only("sqlite")
def test_a_backup_takes_no_link_or_pipe_along_that_jobs_left_in_the_storage(
    settings: Settings, driver: Driver, store: Store, tmp_path: Path
) -> None:
    folder = Path(checkpointed(driver, settings).removeprefix("file://"))
    (tmp_path / "secret").write_text("of the operator")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to("/etc")
    os.mkfifo(folder / "pipe")

    backup.back_up(settings, tmp_path / "backup")

    copied = next((tmp_path / "backup").rglob(folder.name))
    assert [each.name for each in copied.iterdir()] == ["state.safetensors"]


def test_a_job_of_a_live_service_goes_on_from_its_checkpoint_in_a_fresh_place(
    store: Store, settings: Settings, driver: Driver, elsewhere: Settings, tmp_path: Path, spec
) -> None:
    url = checkpointed(driver, settings)
    store.edit(driver.job_id, JobEdit(notes="the precious one"))
    stop, acknowledged = threading.Event(), []

    def submit() -> None:
        while not stop.is_set():
            acknowledged.append(store.add_job(spec)[0].id)

    writer = threading.Thread(target=submit)
    writer.start()
    try:
        wait_until(lambda: len(acknowledged) >= 3, timeout_s=PATIENCE_S)
        before = set(acknowledged)
        backup.back_up(settings, tmp_path / "backup")
    finally:
        stop.set()
        writer.join()
    backup.restore(elsewhere, tmp_path / "backup")

    restored = Store.open(elsewhere)
    try:
        assert before and before <= {each.job_id for each in restored.work.backlog().waiting}
        assert [each.id for each in restored.jobs(JobFilter(text="precious")).jobs] == [driver.job_id]
        assert restored.attempts.token(driver.job_id, 1) == store.attempts.token(driver.job_id, 1)
        restored.attempts.lose(driver.job_id, 1, reason="its cluster is gone")
        restored.attempts.begin(driver.job_id)
        [point] = restored.attempts.brief(driver.job_id, 2).trials
        moved = point.resume["checkpoint"]
        assert moved == url.replace(settings.resolved_storage_url, elsewhere.resolved_storage_url)
        assert Path(moved.removeprefix("file://"), "state.safetensors").read_bytes() == b"weights"
    finally:
        restored.close()


@pytest.mark.parametrize("num_superseded", [1, 5])
def test_a_checkpoint_that_is_removed_before_it_is_copied_has_the_database_copied_again(
    settings: Settings, driver: Driver, elsewhere: Settings, tmp_path: Path, monkeypatch, num_superseded: int
) -> None:
    dump, stages = backup._dump, iter(range(100))

    def dump_and_go_on(*arguments) -> set[str]:
        stage = next(stages)
        if stage == 0:
            checkpointed(driver, settings)
        named = dump(*arguments)
        if stage < num_superseded:  # a job goes on: its next checkpoint is known, and the one before is removed
            checkpointed(driver, settings, stage=stage + 1)
            for url in named:
                shutil.rmtree(url.removeprefix("file://"))
        return named

    monkeypatch.setattr(backup, "_dump", dump_and_go_on)
    if num_superseded == 5:
        with pytest.raises(Unavailable, match="was removed before it could be copied; the backup is not whole"):
            backup.back_up(settings, tmp_path / "backup")
        return
    backup.back_up(settings, tmp_path / "backup")
    backup.restore(elsewhere, tmp_path / "backup")

    with closing(Store.open(elsewhere)) as restored:
        restored.attempts.lose(driver.job_id, 1, reason="its cluster is gone")
        restored.attempts.begin(driver.job_id)
        [point] = restored.attempts.brief(driver.job_id, 2).trials
    assert Path(point.resume["checkpoint"].removeprefix("file://"), "state.safetensors").exists()


@only("sqlite")
def test_a_checkpoint_that_the_service_itself_has_lost_keeps_nobody_from_a_backup(
    settings: Settings, driver: Driver, tmp_path: Path
) -> None:
    shutil.rmtree(checkpointed(driver, settings).removeprefix("file://"))

    assert backup.back_up(settings, tmp_path / "backup").has_files


@only("sqlite")
@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
def test_nothing_is_restored_beside_what_is_left_of_another_database(
    store: Store, settings: Settings, elsewhere: Settings, tmp_path: Path, end: str
) -> None:
    backup.back_up(settings, tmp_path / "backup")
    elsewhere.state_dir.mkdir()
    left = elsewhere.state_dir / f"wiretune.db{end}"
    left.touch()

    with pytest.raises(Unavailable, match=f"{left} of another database"):
        backup.restore(elsewhere, tmp_path / "backup")

    assert not (elsewhere.state_dir / "wiretune.db").exists()


def test_a_backup_in_an_empty_folder_that_was_there_is_its_owners_alone(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "backup").mkdir(mode=0o755)

    made = backup.back_up(settings, tmp_path / "backup")

    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700
    copied = "database.sqlite" if made.database == "sqlite" else "database.dump"
    assert (tmp_path / "backup" / copied).stat().st_mode & 0o777 == 0o600


def test_a_backup_is_restored_into_an_empty_place_alone(
    store: Store, settings: Settings, elsewhere: Settings, tmp_path: Path
) -> None:
    backup.back_up(settings, tmp_path / "backup")
    backup.restore(elsewhere, tmp_path / "backup")

    with pytest.raises(Unavailable, match="is not empty; restore into a new one"):
        backup.restore(elsewhere, tmp_path / "backup")
    with pytest.raises(Unavailable, match="is not empty; name a new folder"):
        backup.back_up(settings, tmp_path / "backup")


@only("postgresql")
def test_a_restore_that_fails_once_the_rows_are_there_asks_for_a_new_database(
    store: Store, settings: Settings, elsewhere: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OperationalError("UPDATE", {}, OSError("the disk is full"))

    backup.back_up(settings, tmp_path / "backup")
    monkeypatch.setattr(backup, "_moving", fail)

    with pytest.raises(Unavailable, match="the disk is full; mend that, and restore into a new, empty database"):
        backup.restore(elsewhere, tmp_path / "backup")
    with pytest.raises(Unavailable, match="is not empty; restore into a new one"):
        backup.restore(elsewhere, tmp_path / "backup")


@only("sqlite")
def test_half_a_backup_is_none(settings: Settings, elsewhere: Settings, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "backup").mkdir()

    with pytest.raises(Unavailable, match=r"holds no whole backup: it needs a valid backup\.json"):
        backup.restore(elsewhere, tmp_path / "backup")


@only("sqlite")
def test_the_commands_say_what_they_did_and_the_folder_is_its_owners_alone(
    store: Store, settings: Settings, elsewhere: Settings, tmp_path: Path, monkeypatch
) -> None:
    run: Callable[..., object] = CliRunner().invoke
    monkeypatch.setenv("WIRETUNE_STATE_DIR", str(settings.state_dir))
    made = run(main.app, ["backup", str(tmp_path / "backup"), "--json"])
    monkeypatch.setenv("WIRETUNE_STATE_DIR", str(elsewhere.state_dir))
    restored = run(main.app, ["restore", str(tmp_path / "backup")])

    assert json.loads(made.stdout)["database"] == "sqlite", made.stderr
    assert "goes on with its jobs" in restored.stdout, restored.stderr
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    assert (elsewhere.state_dir / "secret").read_text() == (settings.state_dir / "secret").read_text()
