"""Processes that outlive their attempt are found and killed; live ones and those of other services are not."""

import tempfile
from contextlib import closing

import httpx2
import pytest

from service.control.attempts import attempt_named, submission_id
from service.control.ray_cluster.orphans import Orphans
from service.control.ray_cluster.ray_jobs import RayJobs
from service.control.store import Store
from service.errors import Unavailable
from service.job.spec import JobSpec
from service.settings import Settings

NOW = 1_800_000_000.0
LATER = NOW + 60
SPEC = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}})


class FakeRay:
    """A cluster with drivers that run until they are stopped."""

    def __init__(self):
        self.drivers = set()

    def live(self):
        return tuple(sorted(self.drivers))

    def stop(self, submission_id):
        self.drivers.remove(submission_id)


@pytest.fixture
def ray():
    return FakeRay()


@pytest.fixture
def store(tmp_path, put_sqlite):
    settings = Settings(state_dir=tmp_path / "state")
    put_sqlite(settings)
    store = Store.open(settings, clock=lambda: NOW)
    yield store
    store.close()


@pytest.fixture
def job_id(store):
    """A job whose first attempt was lost, and whose second runs."""
    job_id = store.add_job(SPEC)[0].id
    store.attempts.begin(job_id)
    store.attempts.lose(job_id, 1, reason="lost")
    store.attempts.begin(job_id)
    return job_id


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_driver_is_stopped_once_its_attempt_has_ended_for_a_while(store, job_id, ray):
    over, running = (store.attempts.one(job_id, number).submission_id for number in (1, 2))
    ray.drivers = {over, running}

    Orphans(store, lambda: ray).remove_expired(NOW + 1)  # it may be closing its workers
    assert len(ray.drivers) == 2
    Orphans(store, lambda: ray).remove_expired(LATER)

    assert ray.drivers == {running}


def test_a_driver_of_an_attempt_of_the_same_number_before_a_restore_is_stopped(store, job_id, ray):
    running = store.attempts.one(job_id, 2).submission_id
    ray.drivers = {running, f"wiretune-{job_id}-a2-0badcafe"}

    Orphans(store, lambda: ray).remove_expired(NOW)

    assert ray.drivers == {running}


@pytest.mark.parametrize(
    "foreign", ["wiretune-job-ff-a1", "wiretune-job-ff-a1-0f", "somebody-elses", "wiretune-job-ff-axe"]
)
def test_a_driver_of_another_service_is_left_alone(store, ray, foreign):
    ray.drivers = {foreign}

    Orphans(store, lambda: ray).remove_expired(LATER)

    assert ray.drivers == {foreign}


def test_the_folder_of_a_killed_driver_is_removed_and_that_of_a_live_one_stays(store, job_id, temporary):
    folders = [temporary / f"wiretune-tune-{number}" for number in range(4)]
    for folder, content in zip(folders, [f"{job_id}-a1", f"{job_id}-a2", "job-ff-a1", "mine"], strict=True):
        (folder / content).mkdir(parents=True)

    Orphans(store, lambda: None).remove_expired(LATER)

    assert [folder.exists() for folder in folders] == [False, True, True, True]


def test_what_a_killed_driver_of_a_deleted_job_left_is_found(store, job_id, ray, temporary):
    submissions = {store.attempts.one(job_id, number).submission_id for number in (1, 2)}
    store.attempts.lose(job_id, 2, reason="lost")
    store.cancel(job_id)
    store.delete(job_id)
    ray.drivers = set(submissions)
    (temporary / "wiretune-tune-1" / f"{job_id}-a2").mkdir(parents=True)

    Orphans(store, lambda: ray).remove_expired(NOW + 1)
    assert ray.drivers == submissions
    store.expiry.remove_expired(LATER)
    Orphans(store, lambda: ray).remove_expired(LATER)

    assert not ray.drivers and not list(temporary.iterdir())


def test_a_silent_ray_is_asked_again_at_the_next_look(store, job_id, ray):
    ray.drivers, orphans = {store.attempts.one(job_id, 1).submission_id}, Orphans(store, lambda: ray)
    ray.stop = lambda _: (_ for _ in ()).throw(Unavailable("silent"))
    with pytest.raises(Unavailable):
        orphans.remove_expired(LATER)
    del ray.stop

    orphans.remove_expired(LATER + 20)

    assert not ray.drivers


def test_a_clock_that_is_set_back_keeps_no_leftover(store, job_id, ray):
    orphans = Orphans(store, lambda: ray)
    orphans.remove_expired(LATER + 3600)
    ray.drivers = {store.attempts.one(job_id, 1).submission_id}

    orphans.remove_expired(LATER)

    assert not ray.drivers


def test_an_attempt_is_known_by_its_names_wherever_they_are():
    for name in (submission_id("job-0af", 12), "wiretune-job-0af-a12", "job-0af-a12"):
        assert attempt_named(name) == ("job-0af", 12)
    assert attempt_named("job-0af-a12-trial") is None


def test_of_rays_answer_only_the_drivers_that_have_not_ended_are_live():
    rows = [
        {"submission_id": "pending", "status": "PENDING"},
        {"submission_id": "running", "status": "RUNNING"},
        {"submission_id": "over", "status": "SUCCEEDED"},
        {"submission_id": None, "status": "RUNNING"},  # a script's own `ray.init`
    ]
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=rows))

    with closing(RayJobs("http://ray:8265", transport=transport)) as ray:
        assert ray.live() == ("pending", "running")
