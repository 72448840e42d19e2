"""An unmounted storage folder is not mistaken for an empty one."""

import shutil

import pytest

from api.cli import doctor
from api.http.server import require_mounted
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


@pytest.mark.parametrize("num_attempts", [0, 1])
def test_no_attempt_begins_on_a_folder_that_has_lost_its_mark_and_it_does_once_that_is_back(
    open_store, settings, disk, tmp_path, num_attempts
):
    store, clock = open_store(), Clock()
    require_mounted(store)
    reconciler = assemble(store, settings, api_url="http://x", cluster=FakeCluster(FakeRay()), clock=clock).reconciler
    job_id = store.add_job(SPEC)[0].id
    if num_attempts:
        reconciler.tick(clock())
        store.attempts.lose(job_id, 1, reason="the machine was restarted")
    disk.rename(tmp_path / "not mounted")
    disk.mkdir()

    clock.now += 5
    reconciler.tick(clock())
    waiting = store.job(job_id)
    disk.rmdir()
    (tmp_path / "not mounted").rename(disk)
    clock.now += 11
    reconciler.tick(clock())

    assert (waiting.state, waiting.attempt) == (JobState.QUEUED, num_attempts) and "mount it" in waiting.reason
    assert (store.job(job_id).state, store.job(job_id).attempt) == (JobState.STARTING, num_attempts + 1)


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
