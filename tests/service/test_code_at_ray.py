"""The reconciler gives Ray the code that a job names, once, and only what was uploaded."""

import io
import threading
import zipfile

import httpx2
import pytest

from service.code_package import of_zip
from service.control.access.rules import LOCAL
from service.control.processes import wait_until
from service.control.ray_cluster.ray_jobs import RayJobs
from service.control.reconciling import submission
from service.control.reconciling.assembly import assemble
from service.control.storage import Storage
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.settings import Settings
from tests.support.fake_ray import Clock, FakeCluster, FakeRay
from tests.support.patience import PATIENCE_S


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
def tick(store, settings, ray):
    clock = Clock()
    reconciler = assemble(
        store, settings, api_url="http://127.0.0.1:8470", cluster=FakeCluster(ray), clock=clock
    ).reconciler

    def tick():
        clock.now += 1.0
        reconciler.tick(clock.now)

    return tick


def add(store, digest):
    body = {"workload": {"factory": "train:build", "code": digest}, "budget": {"steps": 1}}
    return store.add_job(JobSpec.model_validate(body))[0].id


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


def test_a_storage_that_does_not_give_code_holds_up_no_round(store, ray, tick, monkeypatch):
    job = add(store, store.code.add(package("x = 1"), by=LOCAL).digest)
    given, read_code = threading.Event(), Storage.read_code
    monkeypatch.setattr(Storage, "read_code", lambda *asked: given.wait(PATIENCE_S) and read_code(*asked))
    monkeypatch.setattr(submission, "_PATIENCE_S", 0.05)

    tick()
    tick()
    assert store.job(job).state is JobState.STARTING and "has not given the job's code" in store.job(job).reason
    assert not ray.jobs
    given.set()

    assert wait_until(lambda: tick() or ray.jobs, timeout_s=PATIENCE_S)
    assert list(ray.package_of.values()) == list(ray.packages)


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
