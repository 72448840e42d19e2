"""An unmounted storage folder is not mistaken for an empty one."""

import shutil
from contextlib import contextmanager

import pytest

from api.cli import doctor
from api.http.server import require_mounted
from service.code_package import of_folder
from service.control import backup
from service.control.access.rules import LOCAL
from service.control.ray_cluster.logs import Logs
from service.control.ray_cluster.ray_jobs import RayStatus
from service.control.reconciling.assembly import assemble
from service.control.store import Store
from service.errors import Unavailable
from service.job.spec import JobSpec
from service.job.states import JobState
from service.settings import Settings
from tests.support.fake_ray import Clock, FakeCluster, FakeRay

SPEC = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}, "workers": {"count": 1}})


@pytest.fixture
def disk(tmp_path):
    """Where the storage is mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    return disk


@pytest.fixture
def settings(tmp_path, disk):
    return Settings(state_dir=tmp_path / "state", storage_url=f"file://{disk}")


@pytest.fixture
def open_store(settings, put_sqlite):
    """Open the database as a service that starts does."""
    put_sqlite(settings)
    opened = []

    def open_store():
        if opened:
            opened.pop().close()
        opened.append(Store.open(settings, clock=Clock()))
        return opened[0]

    yield open_store
    opened.pop().close()


def unmount(disk):
    """Leave what a mount that failed leaves: an empty folder, in which one may write."""
    shutil.rmtree(disk)
    disk.mkdir()


@contextmanager
def unmounted(disk):
    """Take the folder away for a while. Nothing may be written below it meanwhile."""
    mounted = disk.rename(disk.with_name("not mounted"))
    disk.mkdir()
    yield
    disk.rmdir()
    mounted.rename(disk)


def test_a_service_does_not_start_on_a_folder_that_has_lost_its_mark(open_store, disk):
    require_mounted(open_store())
    require_mounted(open_store())
    unmount(disk)

    with pytest.raises(Unavailable, match=r"does not hold \.storage-.*mount it") as refused:
        require_mounted(open_store())

    assert list(disk.iterdir()) == []
    disk.joinpath(str(refused.value).rpartition("/")[2]).touch()  # as the message says, of a folder emptied on purpose
    require_mounted(open_store())


def test_doctor_fails_where_the_service_does_not_start_and_leaves_nothing_in_the_folder(open_store, settings, disk):
    new = doctor.storage(settings)
    require_mounted(open_store())
    mounted = doctor.storage(settings)
    unmount(disk)
    with pytest.raises(Unavailable) as refused:
        require_mounted(open_store())

    assert doctor.storage(settings) == doctor.Found("fail", str(refused.value))
    assert list(disk.iterdir()) == []
    assert new.verdict == mounted.verdict == "ok"


def test_no_backup_is_made_of_a_folder_that_has_lost_its_mark(open_store, settings, disk, tmp_path):
    require_mounted(open_store())
    unmount(disk)

    with pytest.raises(Unavailable, match=r"does not hold \.storage-.*mount it"):
        backup.back_up(settings, tmp_path / "backup")

    assert not (tmp_path / "backup" / backup.MANIFEST).exists()


@pytest.mark.parametrize("num_attempts", [0, 1])
def test_no_attempt_begins_on_a_folder_that_has_lost_its_mark_and_it_does_once_that_is_back(
    open_store, settings, disk, num_attempts
):
    store, clock = open_store(), Clock()
    require_mounted(store)
    reconciler = assemble(store, settings, api_url="http://x", cluster=FakeCluster(FakeRay()), clock=clock).reconciler
    job_id = store.add_job(SPEC)[0].id
    if num_attempts:
        reconciler.tick(clock())
        store.attempts.lose(job_id, 1, reason="the machine was restarted")

    with unmounted(disk):
        clock.now += 5
        reconciler.tick(clock())
        waiting = store.job(job_id)
    clock.now += 11
    reconciler.tick(clock())

    assert (waiting.state, waiting.attempt) == (JobState.QUEUED, num_attempts) and "mount it" in waiting.reason
    assert (store.job(job_id).state, store.job(job_id).attempt) == (JobState.STARTING, num_attempts + 1)


def test_a_log_is_kept_once_the_folder_is_mounted_and_not_below_it(open_store, disk):
    store, ray = open_store(), FakeRay()
    require_mounted(store)
    job_id = store.add_job(SPEC)[0].id
    ray.jobs[store.attempts.begin(job_id).submission_id], ray.output = RayStatus.FAILED, "hello\n"
    store.attempts.lose(job_id, 1, reason="the machine was restarted")
    logs, now = Logs(store, lambda: ray), store.attempts.one(job_id).ended_at

    with unmounted(disk):
        logs.keep_ended(now + 60)
        logs.keep_all()
    assert store.attempts.without_log() != ()
    logs.keep_ended(now + 80)

    assert store.attempts.without_log() == () and logs.read(job_id) == b"hello\n"


def test_the_files_of_a_job_that_was_deleted_while_the_folder_was_not_mounted_are_removed_later(open_store, disk):
    store = open_store()
    require_mounted(store)
    job_id = store.cancel(store.add_job(SPEC)[0].id).id
    store.storage.write(f"{store.storage.attempt_url(job_id, 1)}/weights.safetensors", b"weights")
    store.delete(job_id)

    with unmounted(disk):
        store.expiry.remove_expired(store._db.now() + 3600)
    store.expiry.remove_expired(store._db.now() + 3600)

    assert store.storage.sizes(job_id) == {} and store.expiry.deleted_at(job_id) is None


def test_no_code_is_taken_that_would_lie_below_the_folder(open_store, disk, tmp_path):
    store = open_store()
    require_mounted(store)
    own = tmp_path / "own"
    own.mkdir()
    (own / "train.py").write_text("def build(): ...")

    with unmounted(disk), pytest.raises(Unavailable, match="mount it"):
        store.code.add(of_folder(own), by=LOCAL)

    assert store.code.list(by=LOCAL).packages == ()


def test_a_driver_is_told_of_the_mark_that_its_machine_does_not_see_and_ends_without_a_verdict_on_the_job(
    open_store, disk
):
    store = open_store()
    require_mounted(store)
    mark = store.attempts.mark.url
    unmount(disk)
    store = open_store()
    with pytest.raises(Unavailable):
        require_mounted(store)

    job_id = store.add_job(SPEC)[0].id
    assert store.attempts.brief(job_id, store.attempts.begin(job_id).attempt).storage_mark == mark


def test_the_folder_beside_the_database_may_be_emptied(tmp_path, put_sqlite):
    settings = Settings(state_dir=tmp_path)
    put_sqlite(settings)
    store = Store.open(settings)
    require_mounted(store)

    shutil.rmtree(tmp_path / "results")
    require_mounted(store)

    assert list((tmp_path / "results").iterdir())
    store.close()
