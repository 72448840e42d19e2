"""Storage on a real S3 server: errors name the URL, the attempted action, and the remedy."""

import os
import signal
import subprocess
import sys

import fsspec
import pytest

from api.http.server import require_storage
from service.control.ray_cluster.worker_environment import inherited
from service.control.storage import Storage
from service.errors import NotFound, Unavailable
from service.settings import Settings
from trainers import filesystem

ROOT = "s3://results/team"


@pytest.fixture
def impatient(monkeypatch):
    """Ask S3 once, as is enough where it will not answer."""
    filesystem_class = fsspec.get_filesystem_class("s3")
    filesystem_class.clear_instance_cache()
    monkeypatch.setitem(filesystem._S3_OPTIONS["config_kwargs"], "retries", {"total_max_attempts": 1})
    yield
    filesystem_class.clear_instance_cache()


def settings_of(tmp_path, url=ROOT):
    return Settings(state_dir=tmp_path, storage_url=url)


def test_a_service_starts_on_a_bucket_that_it_can_write_read_and_clean(s3, tmp_path):
    require_storage(settings_of(tmp_path))

    assert fsspec.filesystem("s3").find("results") == []


def test_a_large_file_goes_in_parts_and_comes_back_whole(s3, monkeypatch):
    monkeypatch.setattr(filesystem, "_PART_BYTES", 5 << 20)
    content = os.urandom(12_000_000)
    storage = Storage(ROOT)
    url = f"{storage.attempt_url('job-1', 1)}/weights.safetensors"

    storage.write(url, content)

    assert sum(method == "PUT" and "partNumber=" in path for method, path in s3.requests) == 3
    assert b"".join(storage.open("job-1", url).chunks()) == content


def test_refusals_that_pass_are_not_noticed(s3):
    storage = Storage(ROOT)
    url = storage.log_url("job-1", 1)
    s3.fail("PUT", "503 Slow", "500 Internal Server Error")
    s3.fail("GET", "500 Internal Server Error")

    storage.write(url, b"log")

    assert b"".join(storage.open("job-1", url).chunks()) == b"log"


def test_a_wrong_key_is_refused_at_the_start_and_is_not_shown(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "never-shown")
    fsspec.get_filesystem_class("s3").clear_instance_cache()

    with pytest.raises(
        Unavailable, match=rf"cannot write {ROOT} on storage.*AWS_ACCESS_KEY_ID.*put, list and delete"
    ) as refused:
        require_storage(settings_of(tmp_path))

    assert "never-shown" not in str(refused.value)


def test_no_key_at_all_is_said(s3, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    fsspec.get_filesystem_class("s3").clear_instance_cache()

    with pytest.raises(Unavailable, match=r"cannot write .*credentials.*AWS_SHARED_CREDENTIALS_FILE"):
        require_storage(settings_of(tmp_path))


def test_a_key_in_a_file_is_enough(s3, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "key").write_text("[default]\naws_access_key_id = right\naws_secret_access_key = secret-of-right\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "key"))
    fsspec.get_filesystem_class("s3").clear_instance_cache()

    require_storage(settings_of(tmp_path))


def test_a_bucket_that_vanished_is_said_and_is_not_made_anew(s3):
    storage = Storage(ROOT)
    url = storage.log_url("job-1", 1)
    storage.write(url, b"log")
    fsspec.filesystem("s3", skip_instance_cache=True).rm("results", recursive=True)

    with pytest.raises(Unavailable, match=r"cannot write .*there is no bucket"):
        storage.write(url, b"log")
    with pytest.raises(NotFound, match="not on storage"):
        storage.open("job-1", url)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_away_is_said(s3, tmp_path):
    s3.close()

    with pytest.raises(Unavailable, match=rf"cannot write {ROOT}.*Could not connect.*AWS_ENDPOINT_URL"):
        require_storage(settings_of(tmp_path))


def test_a_process_that_is_killed_while_it_uploads_leaves_what_was_there(s3):
    storage = Storage(ROOT)
    url = storage.log_url("job-1", 1)
    storage.write(url, b"before")
    s3.hold("attempt-1.log")
    writing = f"from service.control.storage import Storage; Storage({ROOT!r}).write({url!r}, b'after')"
    process = subprocess.Popen([sys.executable, "-c", writing])
    assert s3.held.wait(60)

    process.send_signal(signal.SIGKILL)
    process.wait(10)

    assert b"".join(storage.open("job-1", url).chunks()) == b"before"
    assert list(storage.files("job-1")) == ["attempt-1.log"]


def test_what_others_write_is_seen_at_once(s3):
    storage = Storage(ROOT)
    storage.write(storage.log_url("job-1", 1), b"1")
    assert len(storage.files("job-1")) == 1

    # as another process would: through an instance of its own
    fsspec.filesystem("s3", skip_instance_cache=True).pipe_file("results/team/job-1/attempt-2.log", b"22")

    assert {name: about.num_bytes for name, about in storage.files("job-1").items()} == {
        "attempt-1.log": 1,
        "attempt-2.log": 2,
    }


@pytest.mark.parametrize(
    ("url", "said"),
    [("s3://me:hidden@bucket", "holds a key"), ("s3://", "without a bucket"), ("s3:///folder", "without a bucket")],
)
def test_a_url_with_a_key_or_without_a_bucket_is_refused_by_name(tmp_path, url, said):
    with pytest.raises(ValueError, match=said) as refused:
        settings_of(tmp_path, url)

    assert "hidden" not in str(refused.value)


def test_workers_get_the_keys_only_where_the_storage_needs_them(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "right")

    assert "AWS_ACCESS_KEY_ID" in inherited("", storage_url=ROOT)
    assert "AWS_ACCESS_KEY_ID" not in inherited("", storage_url="file:///results")
