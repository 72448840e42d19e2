"""Durability: a restart, a killed process, a second opener."""

import os
import signal
import subprocess
import sys

import pytest
from sqlalchemy import select

from service.control import backup
from service.control.database.locks import prepare_state_dir
from service.control.models import ApiKeyRow
from service.control.store import Store
from service.errors import Unavailable
from service.settings import Settings
from tests.store.conftest import only

ADD_JOBS = """
import sys
from pathlib import Path
from service.control.store import Store
from service.settings import Settings
from service.job.spec import JobSpec
store = Store.open(Settings(state_dir=Path(sys.argv[1]), database_url=sys.argv[2]))
spec = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}})
while True:
    print(store.add_job(spec)[0].id, flush=True)
"""


def test_a_closed_store_reopens_with_everything(settings, clock, spec):
    store = Store.open(settings, clock=clock)
    job, _ = store.add_job(spec, idempotency_key="k")
    key, token = store.add_key("ci"), store.attempts.token(job.id, 1)
    store.close()

    reopened = Store.open(settings, clock=clock)

    try:
        assert reopened.job(job.id) == job
        assert reopened.add_job(spec, idempotency_key="k") == (job, False)
        assert reopened.check_key(key)
        assert reopened.attempts.check_token(job.id, 1, token)
    finally:
        reopened.close()


def test_a_second_opener_of_a_state_dir_is_refused_with_the_pid_of_the_first(store, settings, database_url):
    remedy = "; or give this replica a WIRETUNE_STATE_DIR of its own" if database_url else ""

    with pytest.raises(Unavailable, match=f"in use by process {os.getpid()} .*; use that one, or stop it{remedy}$"):
        Store.open(settings)


@only("sqlite")
def test_a_file_that_another_state_dirs_service_serves_is_refused_by_whatever_name(store, settings, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(settings.state_dir / "wiretune.db")
    other = Settings(state_dir=tmp_path / "other", database_url=f"sqlite:///{link}")
    backup.back_up(settings, tmp_path / "backup")

    for take in (Store.open, lambda settings: backup.restore(settings, tmp_path / "backup")):
        with pytest.raises(Unavailable, match=f"the service's database is in use by process {os.getpid()}"):
            take(other)


def test_every_acknowledged_job_survives_a_kill(settings):
    command = [sys.executable, "-c", ADD_JOBS, str(settings.state_dir), settings.database_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(25)]
        process.send_signal(signal.SIGKILL)
        acknowledged += process.stdout.read().split()

    store = Store.open(settings)

    try:
        assert len(acknowledged) >= 25
        assert set(acknowledged) <= {job.job_id for job in store.work.backlog().waiting}
    finally:
        store.close()


def test_a_database_that_cannot_be_opened_says_which_variable_to_check(tmp_path):
    settings = Settings(state_dir=tmp_path, database_url=f"sqlite:///{tmp_path}/missing/folder/jobs.db")

    with pytest.raises(Unavailable, match="WIRETUNE_DATABASE_URL"):
        Store.open(settings)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "no database's URL; allowed: sqlite:///FILE or postgresql://"),
        ("postgresql://user:secret@host:port/jobs", "no database's URL"),
        ("mysql://host/jobs", "kind `mysql`; allowed: sqlite"),
        ("postgresql+pg8000://user:secret@host/jobs", r"driver of `postgresql\+pg8000` .* is not installed"),
        ("sqlite+nothing:///jobs.db", r"driver of `sqlite\+nothing` .* is not installed"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_by_its_variable_without_its_password(tmp_path, url, said):
    with pytest.raises(Unavailable, match=said) as refusal:
        Store.open(Settings(state_dir=tmp_path, database_url=url))

    assert "WIRETUNE_DATABASE_URL" in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_database_that_does_not_answer_is_named_by_its_variable_without_its_password(tmp_path):
    settings = Settings(state_dir=tmp_path, database_url="postgresql://user:secret@127.0.0.1:1/jobs")

    with pytest.raises(Unavailable, match="WIRETUNE_DATABASE_URL") as refusal:
        Store.open(settings)

    assert "secret" not in str(refusal.value)


def test_a_state_dir_that_cannot_be_made_is_refused_by_its_variable(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(Unavailable, match=r"file/state: Not a directory; check WIRETUNE_STATE_DIR"):
        Store.open(Settings(state_dir=tmp_path / "file" / "state"))


def test_a_state_dir_that_cannot_be_locked_is_refused_by_its_variable(settings):
    (settings.state_dir / "service.lock").mkdir(parents=True)

    with pytest.raises(Unavailable, match=r"cannot lock .*service\.lock: Is a directory; check WIRETUNE_STATE_DIR"):
        Store.open(settings)


def test_a_closed_store_refuses_reads_and_writes(settings):
    store = Store.open(settings)
    store.close()

    for call in (store.jobs, lambda: store.add_key("ci")):
        with pytest.raises(Unavailable, match="closed"):
            call()


def test_keys_are_not_kept(store):
    key = store.add_key("ci")

    with store._db.engine.connect() as connection:
        (row,) = connection.execute(select(ApiKeyRow.__table__))
    assert key.startswith("wt_")
    assert key not in map(str, row)


@only("sqlite")
def test_no_byte_of_the_file_tells_a_key(store, settings):
    key = store.add_key("ci")
    store.close()

    assert key.encode() not in (settings.state_dir / "wiretune.db").read_bytes()


def test_a_key_that_was_never_given_out_is_refused(store):
    assert store.check_key(store.add_key("ci"))
    assert not store.check_key("wt_made-up")


def test_a_token_is_good_for_its_own_attempt_alone(store):
    token = store.attempts.token("job-1", 1)

    assert store.attempts.check_token("job-1", 1, token)
    assert not store.attempts.check_token("job-1", 2, token)
    assert not store.attempts.check_token("job-2", 1, token)
    assert not store.attempts.check_token("job-1", 1, "")


def test_the_secret_is_for_its_owner_alone(store, settings):
    assert (settings.state_dir / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("content", "mode"), [(None, 0o700), ("notes.txt", 0o755)])
def test_an_empty_state_dir_becomes_its_owners_alone_and_one_in_use_stays_as_it_is(tmp_path, content, mode):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    if content:
        (folder / content).touch()

    prepare_state_dir(Settings(state_dir=folder))

    assert folder.stat().st_mode & 0o777 == mode


def test_an_operators_secret_replaces_the_made_one(tmp_path, monkeypatch):
    monkeypatch.setenv("WIRETUNE_SECRET", "shared by all replicas")
    stores = [Store.open(Settings(state_dir=tmp_path / name)) for name in ("one", "two")]

    try:
        assert stores[1].attempts.check_token("job-1", 1, stores[0].attempts.token("job-1", 1))
    finally:
        for store in stores:
            store.close()
