"""`wiretune clean` reports the files that finished jobs left, removes exactly those, and leaves live jobs alone."""

import json
import os
import shutil
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import clean_command, main
from api.client import Client
from api.failures import Unreachable
from api.local_service import Server
from service.control import cleaning
from service.control.listing import JobFilter
from service.control.ray_cluster import embedded
from service.control.storage import Storage
from service.control.store import Store
from service.errors import Unavailable
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.jobs import JobEdit
from tests.api.conftest import Reporting

run_cli = CliRunner()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's folder for temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def served(live_url: str, key: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A service that runs on this machine."""
    monkeypatch.setattr(clean_command, "running_server", lambda settings: Server(live_url, key))
    return live_url


@pytest.fixture
def finished(store: Store, job: JobSpec) -> str:
    reporting = Reporting(store, job)
    reporting.run_to_the_end()
    storage = store.storage
    storage.write(storage.log_url(reporting.job_id, 1), b"log\n")
    return reporting.job_id


@pytest.fixture
def running(store: Store, job: JobSpec) -> str:
    reporting = Reporting(store, job)
    reporting.start("tuned")
    reporting.save("tuned")
    return reporting.job_id


def tune_folder(temporary: Path, job_id: str) -> Path:
    """What a killed driver of the job leaves."""
    folder = Path(tempfile.mkdtemp(prefix="wiretune-tune-")) / f"{job_id}-a1"
    folder.mkdir()
    (folder / "trial.json").write_bytes(bytes(500))
    return folder.parent


def sizes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def clean(*options: str) -> Any:
    done = run_cli.invoke(main.app, ["clean", *options, "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_it_frees_exactly_what_it_said(served: str, store: Store, finished: str, temporary: Path) -> None:
    results = store.settings.state_dir / "results"
    tune_folder(temporary, finished)
    before = sum(sizes(results).values()) + sum(sizes(temporary).values())

    said, done = clean("--dry-run"), clean("--yes")

    after = sum(sizes(results).values()) + sum(sizes(temporary).values())
    assert said["leftovers"] == done["leftovers"] and (said["removed"], done["removed"]) == (False, True)
    assert said["bytes"] == before - after == 2 * 3000 + len("log\n") + 500
    assert clean("--yes") == {"removed": True, "bytes": 0, "leftovers": []}


def test_what_is_kept_is_the_weights(served: str, store: Store, finished: str) -> None:
    clean("--yes")

    left = sizes(store.settings.state_dir / "results")
    assert [path.name for path in left] == ["weights.safetensors"] * 2
    assert store.job(finished).id == finished and store.schedules(finished)


def test_the_weights_of_the_end_are_kept_beside_the_best(served: str, store: Store, job: JobSpec) -> None:
    reporting = Reporting(store, job)
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=1.0, density=None)
    reporting.finish_trial("tuned", rates=[1.0], density=None, loss=0.3, exported_step=100)
    reporting.finish()

    clean("--yes")

    left = sizes(store.settings.state_dir / "results")
    assert {path.parent.name == "last" for path in left} == {True, False} and len(left) == 2


def test_the_weights_go_when_asked_for(served: str, store: Store, finished: str) -> None:
    clean("--yes", "--weights")

    assert list((store.settings.state_dir / "results").iterdir()) == []


def test_weights_from_which_an_unfinished_job_starts_stay(
    served: str, store: Store, finished: str, job: JobSpec
) -> None:
    named = {"weights_of": {"job": finished, "arm": "tuned"}}
    content = job.model_dump(mode="json")
    user, _ = store.add_job(JobSpec.model_validate(content | {"workload": content["workload"] | named}))

    clean("--yes", "--weights")
    assert [path.name for path in sizes(store.settings.state_dir / "results")] == ["weights.safetensors"] * 2

    store.cancel(user.id)
    clean("--yes", "--weights")
    assert not sizes(store.settings.state_dir / "results")


def test_a_live_jobs_files_stay(served: str, store: Store, running: str, finished: str, temporary: Path) -> None:
    folder = Path(store.storage.job_url(running).removeprefix("file://"))
    scratch = tune_folder(temporary, running)
    before = sizes(folder) | sizes(scratch)

    found = clean("--yes", "--weights")

    assert before and sizes(folder) | sizes(scratch) == before
    assert running not in json.dumps(found)


def test_a_folder_of_no_job_of_this_service_stays(served: str, store: Store, finished: str, temporary: Path) -> None:
    others = store.settings.state_dir / "results" / "job-of-another"
    others.mkdir()
    (others / "file").touch()
    scratch = tune_folder(temporary, "job-of-another")

    clean("--yes", "--weights")

    assert (others / "file").exists() and scratch.exists()


@pytest.mark.parametrize(("days", "num_found"), [("0", 1), ("1", 0)])
def test_young_jobs_can_be_left_alone(served: str, finished: str, days: str, num_found: int) -> None:
    assert len(clean("--dry-run", "--older-than", days)["leftovers"]) == num_found


def test_nothing_goes_without_a_yes(served: str, store: Store, finished: str) -> None:
    before = sizes(store.settings.state_dir / "results")

    done = run_cli.invoke(main.app, ["clean"])

    assert done.exit_code == 2 and "--yes" in done.stderr
    assert "6.0 kB" in done.stdout and finished in done.stdout
    assert sizes(store.settings.state_dir / "results") == before


def test_without_a_service_the_database_is_asked(settings: Settings, store: Store, finished: str) -> None:
    store.close()

    assert [each["job_id"] for each in clean("--dry-run")["leftovers"]] == [finished]


def test_a_service_that_does_not_answer_is_left_alone(settings: Settings, store: Store, finished: str) -> None:
    done = run_cli.invoke(main.app, ["clean", "--yes"])

    assert done.exit_code == 1 and str(os.getpid()) in done.stderr


def test_what_a_killed_ray_left_goes(served: str, store: Store, settings: Settings) -> None:
    folder = embedded._launch(settings).temp_dir
    folder.mkdir()
    (folder / "log").write_bytes(bytes(100))

    done = clean("--yes")

    assert (done["bytes"], [each["place"] for each in done["leftovers"]]) == (100, [str(folder)])
    assert not folder.exists()


def test_a_ray_that_starts_after_the_look_keeps_its_files(
    served: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = embedded._launch(settings).temp_dir
    folder.mkdir()
    (folder / "log").write_bytes(bytes(100))
    try:
        (found,) = cleaning.leftovers(settings, [], with_weights=False)
        monkeypatch.setattr(embedded, "_watchdog_pid", lambda launch: os.getpid())

        cleaning.remove(settings, found)

        assert (folder / "log").exists()
    finally:
        shutil.rmtree(folder)


def test_what_cannot_be_removed_is_said_and_the_rest_goes(
    served: str, finished: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tune_folder(temporary, finished)

    def refuse(*_: Any) -> None:
        raise Unavailable("the storage is read-only")

    monkeypatch.setattr(Storage, "remove", refuse)

    done = run_cli.invoke(main.app, ["clean", "--yes", "--json"])

    assert done.exit_code == 1 and finished in done.stderr and "read-only" in done.stderr
    assert (json.loads(done.stdout)["bytes"], scratch.exists()) == (500, False)


@pytest.fixture
def cancelled(store: Store, job: JobSpec) -> list[str]:
    """Two jobs that left files, and may be tried again."""
    found = [Reporting(store, job) for _ in range(2)]
    for reporting in found:
        reporting.start("tuned")
        reporting.save("tuned")
        store.cancel(reporting.job_id)
        reporting.finish("cancelled")
    return [reporting.job_id for reporting in found]


def test_a_job_that_goes_on_while_others_are_cleaned_keeps_its_files(
    served: str, store: Store, cancelled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = cleaning.remove

    def remove_and_retry(settings: Settings, leftover: cleaning.Leftover) -> None:
        remove(settings, leftover)
        (other,) = {*cancelled} - {leftover.job_id}
        store.retry(other)

    monkeypatch.setattr(cleaning, "remove", remove_and_retry)

    (gone,) = clean("--yes", "--weights")["leftovers"]

    (other,) = {*cancelled} - {gone["job_id"]}
    left = store.storage.sizes(other)
    assert len(left) == 2


def test_a_service_that_goes_away_meanwhile_leaves_a_word_on_what_was_done(
    served: str, cancelled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, lives = Client.job, [True]

    def job(client: Client, job_id: str) -> Any:
        if not lives:
            raise Unreachable(served, ConnectionError("refused"))
        lives.pop()
        return ask(client, job_id)

    monkeypatch.setattr(Client, "job", job)

    done = run_cli.invoke(main.app, ["clean", "--yes", "--json"])

    assert done.exit_code == 1
    (gone,) = json.loads(done.stdout)["leftovers"]
    (other,) = {*cancelled} - {gone["job_id"]}
    assert f"{other}: no Wiretune service answers" in done.stderr


def test_a_look_at_a_machine_without_a_service_makes_nothing(settings: Settings) -> None:
    assert clean("--dry-run")["leftovers"] == []
    assert not settings.state_dir.exists()


def test_an_age_beyond_a_century_is_refused(settings: Settings) -> None:
    done = run_cli.invoke(main.app, ["clean", "--dry-run", "--older-than", "1e12"])

    assert done.exit_code == 2 and "36500" in done.stderr


def test_every_finished_job_is_seen_however_many_there_are(
    store: Store, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {store.cancel(store.add_job(job)[0].id).id for _ in range(5)}
    store.edit(min(made), JobEdit(archived=True))
    store.add_job(job)
    monkeypatch.setattr(cleaning, "MAX_PAGE", 2)

    assert set(cleaning.finished_jobs(partial(store.jobs, JobFilter(archived=None)), before=datetime.now(UTC))) == made
