"""Uploaded user code: stored once per project, named by jobs, and run as a package of its own."""

import io
import json
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api import calls
from api.cli import clean_command, main
from api.client import Client
from api.failures import ApiError
from api.http import uploads
from api.http.app import create_app
from api.local_service import Server
from service.code_package import MAX_ZIP_BYTES, Package, of_folder, of_zip
from service.control.access.rules import LOCAL, Principal
from service.control.storage import Storage
from service.control.storage_mark import StorageMark
from service.control.store import Store
from service.errors import TooMuchCode, Unavailable
from service.job.spec import JobSpec
from service.job.states import JobState
from service.settings import Settings
from service.wire.access import NewKey, Role
from tests.api.conftest import serving
from tests.support.patience import PATIENCE_S
from tests.support.read_only import read_only
from trainers.spec.workloads import OwnWorkload

ZIP = {"Content-Type": "application/zip"}


def zipped(**modules: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in modules.items():
            archive.writestr(f"{name}.py", text)
    return out.getvalue()


def package(text: str = "def build(): ...") -> Package:
    return of_zip(io.BytesIO(zipped(train=text)))


def job_of(digest: str) -> dict[str, Any]:
    return {"workload": {"factory": "train:build", "code": digest}, "budget": {"steps": 10}}


def key_of(store: Store, owner: str, project: str = "red", role: Role = Role.SUBMITTER) -> dict[str, str]:
    issued = store.keyring.create(NewKey(name=owner, project=project, role=role), by=LOCAL)
    return {"Authorization": f"Bearer {issued.secret}"}


@pytest.fixture
def http(store: Store, key: str) -> Iterator[TestClient]:
    headers = {"Authorization": f"Bearer {key}"}
    with TestClient(create_app(store, user_code=True), headers=headers, raise_server_exceptions=False) as client:
        yield client


def test_the_same_files_are_kept_once_however_they_are_packed(http: TestClient, store: Store) -> None:
    texts = {"train": "import net", "net": "x = 1"}

    first = http.post("/v1/code", content=zipped(**texts), headers=ZIP)
    again = http.post("/v1/code", content=zipped(**dict(reversed(texts.items()))), headers=ZIP)

    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() | {"used_at": None} == again.json() | {"used_at": None}
    digest = first.json()["digest"]
    assert first.headers["location"] == f"/v1/code/{digest}"
    assert [each["digest"] for each in http.get("/v1/code").json()["packages"]] == [digest]
    assert http.get(f"/v1/code/{digest}").json()["num_files"] == 2
    assert [entry.action for entry in store.keyring.audit(limit=5).entries].count("createCode") == 1


@pytest.mark.parametrize(
    ("content", "headers", "status", "slug"),
    [
        (b"PK", ZIP, 422, "invalid-request"),
        (bytes(MAX_ZIP_BYTES + 1), ZIP, 413, "content-too-large"),
        (b"{}", {"Content-Type": "application/json"}, 415, "unsupported-media-type"),
    ],
    ids=["no zip", "too long", "no zip's type"],
)
def test_what_is_no_package_is_refused_and_not_kept(
    http: TestClient, settings: Settings, content: bytes, headers: dict[str, str], status: int, slug: str
) -> None:
    answer = http.post("/v1/code", content=content, headers=headers)

    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{slug}")
    assert http.get("/v1/code").json()["packages"] == []
    assert not list(settings.state_dir.rglob("code"))


def test_code_is_for_who_may_submit_where_the_service_runs_code_of_users(store: Store, http: TestClient) -> None:
    strict = TestClient(create_app(store))

    refused = strict.post("/v1/code", content=zipped(train=""), headers=ZIP | key_of(store, "anna"))
    viewer = http.post("/v1/code", content=zipped(train=""), headers=ZIP | key_of(store, "vera", role=Role.VIEWER))
    allowed = http.post("/v1/code", content=zipped(train=""), headers=ZIP | key_of(store, "anna"))

    assert (refused.status_code, viewer.status_code, allowed.status_code) == (403, 403, 201)
    assert "WIRETUNE_USER_CODE" in refused.json()["detail"]


def test_a_job_names_code_of_its_own_project_alone(http: TestClient, store: Store) -> None:
    digest = store.code.add(package(), by=Principal(name="anna", role=Role.SUBMITTER, project="red")).digest
    missing = f"sha256:{'0' * 64}"
    anna, carl = key_of(store, "anna"), key_of(store, "carl", "blue")

    for path in ("/v1/jobs:validate", "/v1/jobs"):
        foreign, unknown = (
            http.post(path, json=job_of(each), headers=headers) for each, headers in ((digest, carl), (missing, anna))
        )
        assert (foreign.status_code, unknown.status_code) == (422, 422)
        assert foreign.json()["errors"][0] | {"value": None} == unknown.json()["errors"][0] | {"value": None}
        assert foreign.json()["errors"][0]["pointer"] == "/workload/code"
        assert http.post(path, json=job_of(digest), headers=anna).is_success
    assert http.get(f"/v1/code/{digest}", headers=carl).status_code == 404
    assert http.get("/v1/code", headers=carl).json()["packages"] == []


def test_a_job_imports_from_one_place(http: TestClient) -> None:
    both = job_of(package().digest)
    both["workload"]["path"] = "/opt/models"

    answer = http.post("/v1/jobs", json=both)

    assert answer.status_code == 422 and "`path` and `code`" in answer.json()["errors"][0]["message"]


def test_code_is_deleted_once_no_job_needs_it(http: TestClient, store: Store, settings: Settings) -> None:
    made = store.code.add(package(), by=LOCAL)
    job_id = http.post("/v1/jobs", json=job_of(made.digest)).json()["id"]
    address = f"/v1/code/{made.digest}"

    in_use = http.delete(address)
    http.post(f"/v1/jobs/{job_id}:cancel")
    deleted = http.delete(address)
    retried = http.post(f"/v1/jobs/{job_id}:retry")

    assert (in_use.status_code, in_use.json()["type"]) == (409, "/problems/code-in-use")
    assert job_id in in_use.json()["detail"]
    assert deleted.status_code == 204 and http.get(address).status_code == 404
    assert not Storage(settings.resolved_storage_url).has_code("default", made.digest)
    assert retried.status_code == 422 and "upload it" in retried.json()["detail"]
    assert store.job(job_id).state is JobState.CANCELLED


def test_another_projects_copy_of_the_same_code_stays(http: TestClient, store: Store) -> None:
    anna, carl = (Principal(name=name, role=Role.SUBMITTER, project=name) for name in ("anna", "carl"))
    for by in (anna, carl):
        store.code.add(package(), by=by)

    store.code.remove(package().digest, by=anna)

    assert [each.project for each in store.code.list(by=LOCAL).packages] == ["carl"]
    assert store.add_job(JobSpec.model_validate(job_of(package().digest)), by=carl)[1]


def test_code_that_cannot_be_deleted_keeps_its_file(store: Store, settings: Settings) -> None:
    store.code.add(package(), by=LOCAL)

    with read_only(store), pytest.raises(Unavailable):
        store.code.remove(package().digest, by=LOCAL)

    assert Storage(settings.resolved_storage_url).has_code("default", package().digest)


def test_a_file_that_storage_does_not_remove_goes_later_and_before_the_code_is_uploaded_again(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, digest = Storage(settings.resolved_storage_url), store.code.add(package(), by=LOCAL).digest
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "remove_code", away)
        store.code.remove(digest, by=LOCAL)
        store.expiry.remove_expired(time.time())
    assert store.code.list(by=LOCAL).packages == () and storage.has_code("default", digest)
    with pytest.raises(Unavailable, match="about to go"):
        store.code.add(package(), by=LOCAL)

    store.expiry.remove_expired(time.time())

    assert not storage.has_code("default", digest)
    store.code.add(package(), by=LOCAL)
    assert storage.has_code("default", digest)


def away(*_: Any, **__: Any) -> None:
    raise Unavailable("the storage is away")


def test_code_that_is_uploaded_again_while_its_file_is_removed_keeps_its_file(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {store.code.add(package(text), by=LOCAL).digest: text for text in ("x = 1", "x = 2")}
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "remove_code", away)
        for digest in texts:
            store.code.remove(digest, by=LOCAL)
    remove, removed = Storage.remove_code, list[str]()

    def interrupted(storage: Storage, project: str, digest: str) -> None:
        remove(storage, project, digest)
        removed.append(digest)
        if len(removed) == 1:
            store.code.remove_expired()  # of another replica
            for text in texts.values():
                store.code.add(package(text), by=LOCAL)

    monkeypatch.setattr(Storage, "remove_code", interrupted)
    store.code.remove_expired()

    for digest in texts:
        assert Storage(settings.resolved_storage_url).has_code("default", digest)


def test_code_whose_file_a_late_deletion_took_is_to_be_uploaded_again(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, remove, digest = Storage(settings.resolved_storage_url), Storage.remove_code, package().digest
    store.code.add(package(), by=LOCAL)

    def late(self: Storage, *named: str) -> None:
        monkeypatch.setattr(Storage, "remove_code", remove)
        store.code.remove_expired()  # of another replica, which takes the order over, and does it
        store.code.add(package(), by=LOCAL)
        remove(self, *named)

    monkeypatch.setattr(Storage, "remove_code", late)
    store.code.remove(digest, by=LOCAL)

    assert (store.code.list(by=LOCAL).packages, storage.has_code("default", digest)) == ((), False)
    store.code.add(package(), by=LOCAL)
    assert storage.has_code("default", digest)


def test_no_write_waits_for_the_storage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    for name in ("write", "has_code", "remove_code"):
        act = getattr(Storage, name)
        monkeypatch.setattr(
            Storage, name, lambda *each, act=act: (threads.add(threading.current_thread().name), act(*each))[1]
        )

    store.code.add(package(), by=LOCAL)
    store.code.remove(package().digest, by=LOCAL)

    assert threads == {threading.current_thread().name}


def test_code_that_is_deleted_while_it_is_uploaded_again_has_its_file(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, write = Storage(settings.resolved_storage_url), Storage.write
    store.code.add(package(), by=LOCAL)

    def write_then_lose(self: Storage, url: str, content: bytes) -> None:
        write(self, url, content)
        monkeypatch.setattr(Storage, "write", write)
        store.code.remove(package().digest, by=LOCAL)

    monkeypatch.setattr(Storage, "write", write_then_lose)

    store.code.add(package(), by=LOCAL)

    assert storage.has_code("default", package().digest)


def test_a_request_names_the_project_whose_package_it_means(http: TestClient, store: Store) -> None:
    for name in ("red", "blue", "default"):
        store.code.add(package(), by=Principal(name="ci", role=Role.SUBMITTER, project=name))
    address, ci = f"/v1/code/{package().digest}", key_of(store, "ci")

    hidden = [http.request(verb, f"{address}?project=blue", headers=ci).status_code for verb in ("GET", "DELETE")]
    seen = http.get(f"{address}?project=red").json()["project"]
    missing = http.delete(f"{address}?project=green").status_code
    deleted = http.delete(f"{address}?project=red").status_code

    assert (hidden, seen, missing, deleted) == ([404, 404], "red", 404, 204)
    assert {each.project for each in store.code.list(by=LOCAL).packages} == {"blue", "default"}


@pytest.fixture
def ago(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """A function that sets the store's clock to that many hours before now."""
    yield lambda hours: monkeypatch.setattr(store._db, "now", lambda: time.time() - hours * 3600)


def test_in_a_full_project_the_code_used_longest_ago_makes_room_unless_a_job_needs_it(
    store: Store, http: TestClient, ago: Callable[[float], None]
) -> None:
    store.code._max_packages = 2
    anna, carl = key_of(store, "anna"), key_of(store, "carl", "blue")

    def upload(text: str, headers: dict[str, str]) -> str:
        answer = http.post("/v1/code", content=zipped(train=text), headers=ZIP | headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["digest"])

    ago(60)
    first, second, other = upload("a = 1", anna), upload("b = 1", anna), upload("c = 1", carl)
    ago(50)
    assert upload("a = 1", anna) == first  # which makes the second one the one used longest ago
    ago(25)
    third = upload("c = 1", anna)
    assert (kept(store, "red"), kept(store, "blue")) == ({first, third}, {other})
    assert [store.storage.has_code("red", each) for each in (first, second, third)] == [True, False, True]

    jobs = [http.post("/v1/jobs", json=job_of(each), headers=anna).json()["id"] for each in (first, third)]
    ago(0)
    refused = http.post("/v1/code", content=zipped(train="d = 1"), headers=ZIP | anna)
    store.cancel(jobs[1])
    fourth = upload("d = 1", anna)

    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/too-much-code")
    assert "WIRETUNE_CODE_PACKAGES" in refused.json()["detail"]
    assert kept(store, "red") == {first, fourth}


def kept(store: Store, project: str) -> set[str]:
    return {each.digest for each in store.code.list(by=LOCAL).packages if each.project == project}


def test_code_used_within_a_day_makes_no_room_also_if_its_upload_was_skipped(
    store: Store, http: TestClient, ago: Callable[[float], None]
) -> None:
    store.code._max_packages = 1
    anna = Principal(name="anna", role=Role.SUBMITTER, project="red")
    ago(48)
    digest = store.code.add(package("a = 1"), by=anna).digest
    ago(23)
    assert http.get(f"/v1/code/{digest}", headers=key_of(store, "anna", role=Role.VIEWER)).is_success
    assert http.get(f"/v1/code/{digest}", headers=key_of(store, "carl")).is_success
    ago(0)
    with pytest.raises(TooMuchCode, match="within a day"):
        store.code.add(package("b = 1"), by=anna)
    ago(-2)
    store.code.add(package("b = 1"), by=anna)

    assert kept(store, "red") == {package("b = 1").digest}


def test_an_upload_deletes_one_package_at_most_and_of_ones_own_if_there_is_one(
    store: Store, ago: Callable[[float], None]
) -> None:
    anna, carl = (Principal(name=name, role=Role.SUBMITTER, project="red") for name in ("anna", "carl"))
    ago(50)
    others = [store.code.add(package(f"carl = {n}"), by=carl).digest for n in range(2)]
    ago(49)
    store.code.add(package("anna = 1"), by=anna)
    ago(0)
    store.code._max_packages = 1  # the operator lowers it

    new = [store.code.add(package(f"new = {n}"), by=anna).digest for n in range(2)]

    assert kept(store, "red") == {others[1], *new}


def test_a_folder_that_is_not_mounted_has_lost_no_code(
    store: Store, http: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = store.code.add(package(), by=LOCAL).digest
    with monkeypatch.context() as patch:
        patch.setattr(StorageMark, "require", away)
        patch.setattr(Storage, "has_code", lambda *_: False)
        asked = http.get(f"/v1/code/{digest}").status_code
        store.code.remove(digest, by=LOCAL)
        store.code.remove_expired()
    assert (asked, store.storage.has_code("default", digest)) == (503, True)

    store.code.remove_expired()

    assert not store.storage.has_code("default", digest)


def test_code_that_the_storage_has_lost_is_to_be_uploaded_again_and_is_by_the_client(
    store: Store, key: str, tmp_path: Path
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("def build(): ...")
    with serving(create_app(store, user_code=True)) as url, Client(url, key) as client:
        digest = client.upload_code(folder)
        store.storage.remove_code("default", digest)  # such as by a move to another storage

        with pytest.raises(ApiError, match="upload it again"):
            client.code(digest)
        client.upload_code(folder)

        assert store.storage.has_code("default", digest) and client.code(digest).digest == digest


def test_the_command_line_lists_code_gives_it_back_and_deletes_it(
    store: Store, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, out = store.code.add(package("x = 1"), by=LOCAL).digest, tmp_path / "code.zip"
    short = digest.removeprefix("sha256:")[:12]

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main.app, ["code", *arguments])

    with serving(create_app(store, user_code=True)) as url:
        monkeypatch.setenv("WIRETUNE_URL", url)
        monkeypatch.setenv("WIRETUNE_API_KEY", key)
        assert short in run("list").stdout
        assert run("get", short, "--out", str(out)).exit_code == 0
        assert run("get", "0000").exit_code == 2
        assert f"removed {digest}" in run("delete", short).stdout
        assert json.loads(run("list", "--json").stdout) == {"packages": []}

    assert of_zip(io.BytesIO(out.read_bytes())).digest == digest


def test_only_who_sees_the_project_may_download_its_code(store: Store, http: TestClient) -> None:
    digest = store.code.add(package(), by=Principal(name="anna", role=Role.SUBMITTER, project="red")).digest
    vera, carl = (key_of(store, name, project, Role.VIEWER) for name, project in (("vera", "red"), ("carl", "blue")))

    seen, hidden = (http.get(f"/v1/code/{digest}/content", headers=headers) for headers in (vera, carl))

    assert of_zip(io.BytesIO(seen.content)).digest == digest and seen.headers["etag"]
    assert hidden.status_code == 404


def test_packages_are_listed_in_pages_each_once(store: Store, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(store._db, "now", iter([3.0, 1.0, 2.0, 2.0, 2.0]).__next__)
        made = [store.code.add(package(f"x = {number}"), by=LOCAL) for number in range(5)]
    with serving(create_app(store)) as url, Client(url, key) as client:
        monkeypatch.setattr("api.client.MAX_PAGE", 2)
        listed = list(client.iter_code())
        with pytest.raises(ApiError, match="cursor"):
            client.list_code(cursor="x")

    assert len({each.digest for each in listed}) == len(made)
    assert [each.created_at.timestamp() for each in listed] == [3.0, 2.0, 2.0, 2.0, 1.0]


@pytest.mark.parametrize(("place", "name"), [(uploads, "of_zip"), (Storage, "write")], ids=["checked", "stored"])
def test_while_an_upload_is_checked_or_stored_others_are_answered(
    store: Store, key: str, monkeypatch: pytest.MonkeyPatch, place: object, name: str
) -> None:
    done, has_come, is_answered = getattr(place, name), threading.Event(), threading.Event()

    def held(*given: Any) -> Any:
        has_come.set()
        assert is_answered.wait(PATIENCE_S), "nobody was answered until an upload was done with"
        return done(*given)

    monkeypatch.setattr(place, name, held)
    with serving(create_app(store, user_code=True)) as url, Client(url, key) as client, ThreadPoolExecutor(1) as pool:
        upload = pool.submit(client.send, calls.upload_code(package()))
        assert has_come.wait(PATIENCE_S)
        assert httpx2.get(f"{url}/healthz", timeout=PATIENCE_S, trust_env=False).is_success
        is_answered.set()

    assert upload.result().digest == package().digest


@pytest.mark.parametrize("is_served", [True, False], ids=["by the service", "in the database"])
def test_clean_removes_code_that_no_job_has_needed_for_days(
    store: Store, settings: Settings, key: str, monkeypatch: pytest.MonkeyPatch, is_served: bool
) -> None:
    monkeypatch.setattr(store._db, "now", lambda: time.time() - 3 * 86_400)
    old, needed = (store.code.add(package(text), by=LOCAL).digest for text in ("old = 1", "needed = 1"))
    monkeypatch.setattr(store._db, "now", time.time)
    young = store.code.add(package("young = 1"), by=LOCAL).digest
    monkeypatch.setattr(store._db, "now", lambda: time.time() - 3 * 86_400)
    store.add_job(JobSpec.model_validate(job_of(needed)))
    monkeypatch.setattr(store._db, "now", time.time)

    with serving(create_app(store)) as url:
        if is_served:
            monkeypatch.setattr(clean_command, "running_server", lambda settings: Server(url, key))
        else:
            store.close()
        said = CliRunner().invoke(main.app, ["clean", "--yes", "--older-than", "2", "--json"])

    assert said.exit_code == 0, said.stderr
    assert [each["code"] for each in json.loads(said.stdout)["leftovers"]] == [old]
    storage = Storage(settings.resolved_storage_url)
    assert [storage.has_code("default", each) for each in (old, needed, young)] == [False, True, True]


@pytest.mark.parametrize("is_served", [True, False], ids=["by the service", "in the database"])
def test_clean_leaves_the_same_code_to_a_project_that_still_needs_it(
    store: Store, settings: Settings, key: str, monkeypatch: pytest.MonkeyPatch, is_served: bool
) -> None:
    monkeypatch.setattr(store._db, "now", lambda: time.time() - 3 * 86_400)
    store.code.add(package(), by=Principal(name="ci", role=Role.SUBMITTER, project="red"))
    monkeypatch.setattr(store._db, "now", time.time)
    store.code.add(package(), by=LOCAL)

    with serving(create_app(store)) as url:
        if is_served:
            monkeypatch.setattr(clean_command, "running_server", lambda settings: Server(url, key))
        else:
            store.close()
        said = CliRunner().invoke(main.app, ["clean", "--yes", "--older-than", "2", "--json"])

    assert said.exit_code == 0, said.stderr
    assert [each["project"] for each in json.loads(said.stdout)["leftovers"]] == ["red"]
    storage = Storage(settings.resolved_storage_url)
    assert [storage.has_code(project, package().digest) for project in ("red", "default")] == [False, True]


def test_the_command_line_uploads_a_folder_and_submits_its_job(store: Store, key: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("def build(): ...")
    (folder / "rows.csv").write_text("1,2")
    file = tmp_path / "job.yaml"
    file.write_text('workload: {factory: "train:build"}\nbudget: {steps: 10}\n')
    with serving(create_app(store, user_code=True)) as url:
        options = ["--code", str(folder), "--exclude", "*.csv", "--url", url, "--key", key]
        done = CliRunner().invoke(main.app, ["submit", str(file), *options])
        (folder / "link.py").symlink_to(folder / "train.py")
        refused = CliRunner().invoke(main.app, ["submit", str(file), *options])

    assert done.exit_code == 0, done.stderr
    workload = store.job(done.stdout.strip()).spec.workload
    assert isinstance(workload, OwnWorkload) and workload.code == package().digest
    assert refused.exit_code == 2 and "is a link" in refused.stderr


def test_a_folder_is_uploaded_where_the_service_lacks_it(store: Store, key: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("def build(): ...")
    (folder / "rows.csv").write_text("1,2")
    with serving(create_app(store, user_code=True)) as url, Client(url, key) as client:
        digest = client.upload_code(folder, exclude=["*.csv"])
        first = client.code(digest)
        again = client.upload_code(folder, exclude=["*.csv"])
        job = client.submit(job_of(digest))
        with pytest.raises(ApiError, match="needs"):
            client.delete_code(digest)
        job.cancel()
        client.delete_code(digest)
        left = client.list_code().packages

    assert digest == again == of_folder(folder, ["*.csv"]).digest
    assert (first.num_files, left) == (1, ())


def test_code_that_another_project_has_is_uploaded_for_ones_own(store: Store, key: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def build(): ...")
    store.code.add(package(), by=Principal(name="ci", role=Role.SUBMITTER, project="red"))
    with serving(create_app(store, user_code=True)) as url, Client(url, key) as client:  # an admin sees all projects
        digest = client.upload_code(tmp_path, exclude=["state"])
        job = client.submit(job_of(digest))

    assert store.job(job.id).project == "default"
