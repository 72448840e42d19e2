"""The reconciler uploads the code that a job names to Ray, once, and nothing else."""

import io
import threading
import zipfile

import httpx2
import pytest

from service.code_package import of_zip
from service.control.access.rules import LOCAL, Principal, Role
from service.control.processes import wait_until
from service.control.ray_cluster.ray_jobs import RayJobs
from service.control.reconciling import calls, submission
from service.control.reconciling.assembly import assemble
from service.control.storage import Storage
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.settings import Settings
from tests.support.fake_ray import Clock, FakeCluster, FakeRay
from tests.support.patience import PATIENCE_S

READ_CODE = Storage.read_code


def package(text):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("train.py", text)
    return of_zip(out)


@pytest.fixture
def settings(tmp_path):
    return Settings(state_dir=tmp_path, user_code=True, max_attempts=1)


@pytest.fixture
def store(settings, put_sqlite):
    put_sqlite(settings)
    opened = Store.open(settings, clock=Clock())
    yield opened
    opened.close()


@pytest.fixture
def ray():
    return FakeRay(cpus=8)


@pytest.fixture
def cluster(ray):
    return FakeCluster(ray)


@pytest.fixture
def tick(store, settings, cluster):
    clock = Clock()
    reconciler = assemble(store, settings, api_url="http://127.0.0.1:8470", cluster=cluster, clock=clock).reconciler

    def tick():
        clock.now += 1.0
        reconciler.tick(clock.now)

    return tick


def add(store, digest, *, by=LOCAL):
    body = {"workload": {"factory": "train:build", "code": digest}, "budget": {"steps": 1}}
    return store.add_job(JobSpec.model_validate(body), by=by)[0].id


def test_each_job_runs_in_the_package_that_it_names(store, ray, tick):
    versions = [store.code.add(package(text), by=LOCAL) for text in ("x = 1", "x = 2")]
    jobs = [add(store, each.digest) for each in versions]
    plain = store.add_job(JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}}))[0].id

    tick()
    tick()

    named = [ray.package_of[store.attempts.one(job, 1).submission_id] for job in jobs]
    assert [of_zip(io.BytesIO(ray.packages[name])).digest for name in named] == [each.digest for each in versions]
    assert ray.package_of[store.attempts.one(plain, 1).submission_id] is None and len(ray.packages) == 2


def test_code_that_ray_has_is_not_sent_again(store, ray, tick, monkeypatch):
    made = store.code.add(package("x = 1"), by=LOCAL)
    sent = []
    monkeypatch.setattr(ray, "upload", lambda name, content: sent.append(name) or ray.packages.update({name: content}))
    for _ in range(2):
        add(store, made.digest)

    tick()
    tick()

    assert len(ray.jobs) == 2 and len(sent) == 1


@pytest.mark.parametrize("content", [package("stolen = 1").content, b"no zip", None], ids=["another", "broken", "gone"])
def test_code_that_was_changed_on_storage_does_not_run(store, settings, ray, tick, content):
    made = store.code.add(package("x = 1"), by=LOCAL)
    job, storage = add(store, made.digest), Storage(settings.resolved_storage_url)
    storage.remove_code("default", made.digest)
    if content is not None:
        storage.write(storage.code_url("default", made.digest), content)

    tick()
    tick()

    assert store.job(job).state is JobState.FAILED and "code" in store.job(job).reason
    assert not ray.packages and not ray.jobs


@pytest.fixture
def given(monkeypatch):
    """Has the storage give code; until then it is silent."""
    given = threading.Event()
    monkeypatch.setattr(Storage, "read_code", lambda *asked: given.wait(PATIENCE_S) and READ_CODE(*asked))
    monkeypatch.setattr(calls, "PATIENCE_S", 0.05)
    yield given
    given.set()


def test_a_storage_that_does_not_give_code_holds_up_no_round(store, ray, tick, given):
    job = add(store, store.code.add(package("x = 1"), by=LOCAL).digest)

    tick()
    tick()
    assert store.job(job).state is JobState.STARTING and "has not given the job's code" in store.job(job).reason
    assert not ray.jobs
    given.set()

    assert wait_until(lambda: tick() or ray.jobs, timeout_s=PATIENCE_S)
    assert list(ray.package_of.values()) == list(ray.packages)


def uploads():
    """Return the threads that take code from storage to Ray."""
    return [each for each in threading.enumerate() if each.name == "wiretune-code"]


def join(threads):
    for thread in threads:
        thread.join(PATIENCE_S)


def begin_and_cancel(store, tick, digest):
    """Have a job wait for its code, and cancel it; return the thread that still uploads that."""
    job = add(store, digest)
    tick()
    store.cancel(job)
    tick()
    return uploads()


def begin(store, tick, digest):
    """Begin a job, and have its code, if it can be had, uploaded."""
    job = add(store, digest)
    tick()
    join(uploads())
    tick()
    return job


def test_an_upload_that_ended_after_its_job_counts_for_no_other_ray(store, cluster, tick, given):
    digest = store.code.add(package("x = 1"), by=LOCAL).digest
    left = begin_and_cancel(store, tick, digest)
    given.set()
    join(left)
    cluster.ray = later = FakeRay(cpus=8)  # the first one was idle, and ended

    begin(store, tick, digest)

    assert list(later.package_of.values()) == list(later.packages) != []


def test_code_that_was_gone_for_an_earlier_job_is_asked_for_again(store, settings, ray, tick, given):
    made, storage = package("x = 1"), Storage(settings.resolved_storage_url)
    digest = store.code.add(made, by=LOCAL).digest
    storage.remove_code("default", digest)
    left = begin_and_cancel(store, tick, digest)
    given.set()
    join(left)
    storage.write(storage.code_url("default", digest), made.content)

    job = begin(store, tick, digest)

    assert store.job(job).state is JobState.STARTING and ray.packages


def test_code_that_another_project_has_lost_is_there_for_ones_own(store, settings, ray, tick, given):
    blue = Principal(name="anna", role=Role.SUBMITTER, project="blue")
    made = package("x = 1")
    for owner in (LOCAL, blue):
        store.code.add(made, by=owner)
    Storage(settings.resolved_storage_url).remove_code("default", made.digest)
    add(store, made.digest)
    kept = add(store, made.digest, by=blue)

    tick()
    asked = uploads()
    given.set()
    join(asked)
    tick()

    assert len(asked) == 2 and store.job(kept).state is JobState.STARTING
    assert store.attempts.one(kept, 1).submission_id in ray.jobs


def test_an_upload_that_never_ends_keeps_the_code_from_no_later_attempt(store, ray, tick, given, monkeypatch):
    digest = store.code.add(package("x = 1"), by=LOCAL).digest
    monkeypatch.setattr(submission, "_HANGS_S", 0.0)
    (hangs,) = begin_and_cancel(store, tick, digest)
    monkeypatch.setattr(Storage, "read_code", READ_CODE)

    add(store, digest)
    tick()
    join(each for each in uploads() if each is not hangs)
    tick()

    assert ray.jobs and hangs.is_alive()


def test_a_package_goes_to_ray_over_its_jobs_api():
    asked = []

    def answer(request):
        asked.append((request.method, request.url.path, request.content))
        return httpx2.Response(404 if request.method == "GET" else 200, json={})

    ray = RayJobs("http://head:8265", "token", transport=httpx2.MockTransport(answer))

    has = ray.has_package("_ray_pkg_a.zip")
    ray.upload("_ray_pkg_a.zip", b"zip")
    ray.submit("id", entrypoint="python", env_vars={}, package="_ray_pkg_a.zip")

    assert not has
    place = "/api/packages/gcs/_ray_pkg_a.zip"
    assert asked[:2] == [("GET", place, b""), ("PUT", place, b"zip")]
    assert b'"working_dir":"gcs://_ray_pkg_a.zip"' in asked[2][2].replace(b" ", b"")
