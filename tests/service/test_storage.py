"""A job's files on storage: existing, missing and forbidden ones."""

import builtins
import os
import shutil
import socket
from pathlib import Path

import fsspec
import pytest

from service.control import local_folder
from service.control.storage import Storage
from service.errors import NotFound, Unavailable


@pytest.fixture(params=["file://{}", "memory://{}", "s3://results{}"], ids=["file", "memory", "s3"])
def storage(request, tmp_path):
    if request.param.startswith("s3"):
        request.getfixturevalue("s3")
    return Storage(request.param.format(tmp_path))


def test_what_was_written_is_read_back(storage):
    url, content = f"{storage.attempt_url('job-1', 2)}/a/b", os.urandom(3_000_000)
    storage.write(url, content)

    found = storage.open("job-1", url)

    assert found.num_bytes == len(content)
    assert b"".join(found.chunks()) == content
    part = range(1_000_001, 2_999_999)
    assert b"".join(storage.open("job-1", url).chunks(part)) == content[part.start : part.stop]


def test_an_etag_changes_with_the_content(storage):
    url = storage.log_url("job-1", 1)

    def etag_of(content):
        found = storage.open("job-1", url)
        assert found.first(99) == content
        return found.etag

    storage.write(url, b"one")
    first, again = (etag_of(b"one") for _ in range(2))

    storage.write(url, b"two")

    assert first == again != etag_of(b"two")


@pytest.mark.parametrize("place", ["job-2/secret", "job-1/../job-2/secret", "job-1/none", "job-11/secret"])
def test_nothing_but_the_jobs_own_files_is_found(storage, place):
    storage.write(f"{storage.root}/{place.rpartition('/')[0].replace('job-1/../', '')}/secret", b"s")

    with pytest.raises(NotFound):
        storage.open("job-1", f"{storage.root}/{place}")


@pytest.mark.parametrize("name", ["file/below", "n" * 300, "/".join(["folder"] * 700)])
def test_what_no_storage_could_hold_is_not_there(tmp_path, name):
    storage = Storage(f"file://{tmp_path}")
    storage.write(f"{storage.job_url('job-1')}/file", b"s")

    with pytest.raises(NotFound, match="not on storage"):
        storage.open("job-1", storage.file_url("job-1", name))


def test_a_link_out_of_the_jobs_folder_is_not_followed(tmp_path):
    storage = Storage(f"file://{tmp_path}/results")
    (tmp_path / "secret").write_text("s")
    for name in ("job-1/attempt-1/weights.safetensors", "job-2/file"):
        link = tmp_path / "results" / name
        link.parent.mkdir(parents=True)
        link.symlink_to(tmp_path / "secret")
    (tmp_path / "results" / "job-1" / "folder").symlink_to(tmp_path / "results" / "job-2")

    for name in ("attempt-1/weights.safetensors", "folder/file"):
        with pytest.raises(NotFound, match="link"):
            storage.open("job-1", f"{storage.job_url('job-1')}/{name}")


@pytest.fixture
def linked(tmp_path):
    """A storage in which two jobs have put links to a folder outside: for their own folder, and for their log."""
    storage, outside = Storage(f"file://{tmp_path}/results"), tmp_path / "state"
    (outside / "inner").mkdir(parents=True)
    (outside / "secret").write_text("s")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "job-1").symlink_to(outside)
    (tmp_path / "results" / "job-2" / "attempt-1").mkdir(parents=True)
    (tmp_path / "results" / "job-2" / "attempt-1.log").symlink_to(outside)
    return storage


def test_a_link_in_the_place_of_a_jobs_folder_is_neither_listed_nor_removed(linked, tmp_path):
    linked.remove_job("job-1")
    with pytest.raises(NotFound, match="links are not followed"):
        linked.remove("job-1", [f"{tmp_path}/results/job-1/secret"])

    assert (linked.sizes("job-1"), linked.files("job-1")) == ({}, {})
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["inner", "secret"]


def test_nothing_is_written_through_a_link(linked, tmp_path):
    with pytest.raises(NotFound, match="links are not followed"):
        linked.write(linked.log_url("job-1", 1), b"log")
    linked.write(linked.log_url("job-2", 1), b"log")

    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["inner", "secret"]
    assert linked.open("job-2", linked.log_url("job-2", 1)).first(9) == b"log"


@pytest.fixture
def swapped(tmp_path, monkeypatch):
    """Returns a function that has a file or folder of `job-1` replaced by a link at the last moment.

    That moment is just before the service opens or removes a file whose name begins with `name`.
    """
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "secret").write_text("secret")

    def before(call, name, place):
        def swap_and_call(path, *arguments, **options):
            if os.path.basename(str(path)).startswith(name) and not place.is_symlink():
                place.rename(tmp_path / "moved")
                place.symlink_to(tmp_path / "state" if (tmp_path / "moved").is_dir() else tmp_path / "state" / "secret")
            return call(path, *arguments, **options)

        return swap_and_call

    def swapped(place, *, at):
        for module, name in ((builtins, "open"), (os, "open"), (os, "unlink"), (os, "remove")):
            call = before(getattr(module, name), at, tmp_path / "results" / "job-1" / place)
            monkeypatch.setattr(module, name, call)

    return swapped


@pytest.mark.parametrize("place", ["folder", "folder/secret"])
def test_a_link_that_comes_just_before_a_file_is_opened_is_not_followed(tmp_path, swapped, place):
    storage = Storage(f"file://{tmp_path}/results")
    storage.write(url := storage.file_url("job-1", "folder/secret"), b"public")
    swapped(place, at="secret")

    try:
        read = storage.open("job-1", url).first(9)
    except NotFound as refusal:
        read = str(refusal).encode()

    assert read == b"public" or b"links are not followed" in read


def test_a_link_that_comes_just_before_a_file_is_written_is_not_followed(tmp_path, swapped):
    storage = Storage(f"file://{tmp_path}/results")
    storage.write(storage.file_url("job-1", "folder/other"), b"")
    swapped("folder", at="log")

    storage.write(storage.file_url("job-1", "folder/log"), b"log")

    assert [path.name for path in (tmp_path / "state").iterdir()] == ["secret"]
    assert (tmp_path / "moved" / "log").read_bytes() == b"log"


def test_a_link_that_comes_just_before_a_file_is_removed_is_not_followed(tmp_path, swapped):
    storage = Storage(f"file://{tmp_path}/results")
    storage.write(storage.file_url("job-1", "folder/secret"), b"")
    swapped("folder", at="secret")

    storage.remove("job-1", [f"{tmp_path}/results/job-1/folder/secret"])

    assert (tmp_path / "state" / "secret").exists() and not (tmp_path / "moved" / "secret").exists()


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_only_a_plain_file_is_opened_and_nothing_keeps_its_reader_waiting(tmp_path, monkeypatch, kind):
    storage = Storage(f"file://{tmp_path}")
    (tmp_path / "job-1").mkdir()
    monkeypatch.chdir(tmp_path / "job-1")  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as bound:
        {"pipe": os.mkfifo, "socket": bound.bind, "folder": os.mkdir}[kind]("file")

        with pytest.raises(NotFound):
            storage.open("job-1", storage.file_url("job-1", "file"))


def test_a_folder_in_the_place_of_a_file_refuses_it(tmp_path):
    storage = Storage(f"file://{tmp_path}")
    (tmp_path / "job-1" / "attempt-1.log").mkdir(parents=True)

    with pytest.raises(NotFound, match="is a folder"):
        storage.write(storage.log_url("job-1", 1), b"log")

    assert os.listdir(tmp_path / "job-1") == ["attempt-1.log"]


@pytest.fixture
def ordinary_user(tmp_path, monkeypatch):
    """Run the test in `tmp_path` as somebody whom permissions stop, as root is stopped by none."""
    monkeypatch.chdir(tmp_path)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    yield
    if is_root:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="this system cannot enter a folder that it may not list")
def test_folders_that_nobody_may_list_are_written_to_and_read_and_cleared(tmp_path, request):
    for folder in (tmp_path / "job-1", tmp_path):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o333)
    request.getfixturevalue("ordinary_user")
    with pytest.raises(PermissionError):
        os.listdir(".")

    local_folder.write(".", ["job-1", "file"], b"content")
    with local_folder.open_file(".", ["job-1", "file"]) as file:
        assert file.read() == b"content"
    local_folder.remove_file(".", ["job-1", "file"])
    with pytest.raises(FileNotFoundError):
        local_folder.open_file(".", ["job-1", "file"])


def test_a_results_folder_that_is_a_link_is_read(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    storage = Storage(f"file://{tmp_path}/results")
    storage.write(url := storage.log_url("job-1", 1), b"log")

    assert b"".join(storage.open("job-1", url).chunks()) == b"log"


@pytest.mark.parametrize("root", ["file://{}", "memory://{}"], ids=["file", "memory"])  # S3 shows whole objects only
def test_a_write_that_fails_leaves_what_was_there(root, tmp_path, monkeypatch):
    storage = Storage(root.format(tmp_path))
    url = storage.log_url("job-1", 1)
    storage.write(url, b"before")
    filesystem, path = fsspec.url_to_fs(url)
    whole = type(filesystem).pipe_file

    def fails(*_):
        raise OSError("no space left on device")

    def half(self, target, content, **options):
        whole(self, target, content[:3], **options)
        fails()

    monkeypatch.setattr(type(filesystem), "pipe_file", half)
    monkeypatch.setattr(os, "fsync", fails)  # by which a local file that does not fit may fail
    with pytest.raises(Unavailable, match="no space left"):
        storage.write(url, b"afterwards")

    assert filesystem.cat_file(path) == b"before"
    assert len(storage.sizes("job-1")) == 1


@pytest.mark.parametrize("root", ["nonsense://x", "file:///dev/null"])
def test_a_storage_that_does_not_answer_is_said_to_be(root):
    with pytest.raises(Unavailable, match="WIRETUNE_STORAGE_URL"):
        Storage(root).write(f"{root}/job-1/file", b"")


def test_what_a_driver_has_as_an_error_of_its_own_is_a_refusal_that_stays_the_same(monkeypatch):
    class HttpError(Exception):
        """As gcsfs has it."""

    def fail(_, path, *args, **options):
        raise HttpError(f"503 backend error, {path}")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "pipe_file", fail)
    refusals = []
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"503 backend error.*check WIRETUNE_STORAGE_URL") as refused:
            Storage("memory://results").require_writable()
        refusals.append(str(refused.value))

    assert refusals[0] == refusals[1]


def test_removing_takes_the_files_named_and_the_folders_that_become_empty(storage):
    for name in ("a/1", "a/2", "b/c/3"):
        storage.write(f"{storage.job_url('job-1')}/{name}", b"123")
    sizes = storage.sizes("job-1")

    storage.remove("job-1", [path for path in sizes if not path.endswith("/2")])

    assert [Path(path).name for path in storage.sizes("job-1")] == ["2"]
    assert set(sizes.values()) == {3}


def test_a_job_without_a_folder_has_left_nothing(storage):
    assert storage.sizes("job-none") == {}


def test_room_is_asked_for_the_largest_checkpoints_that_are_written_at_once(tmp_path, monkeypatch):
    storage = Storage(f"file://{tmp_path}")
    urls = [f"{storage.attempt_url('job-1', 1)}/{size}" for size in (100, 300, 200)]
    for url in urls:
        storage.write(f"{url}/shared.safetensors", bytes(int(url.rpartition("/")[2])))
    gone = f"{storage.attempt_url('job-1', 1)}/gone"
    free = [500]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 0, free[0]))

    storage.require_room("job-1", [*urls, gone], at_once=2)
    storage.require_room("job-2", [], at_once=2)
    free[0] = 499

    storage.require_room("job-1", [*urls, gone], at_once=1)
    with pytest.raises(Unavailable, match="make room"):
        storage.require_room("job-1", [*urls, gone], at_once=2)


def test_a_storage_that_does_not_say_what_is_free_has_room():
    storage = Storage("memory://results")
    url = f"{storage.attempt_url('job-1', 1)}/000000-step-0"
    storage.write(f"{url}/shared.safetensors", bytes(100))

    storage.require_room("job-1", [url], at_once=1)
