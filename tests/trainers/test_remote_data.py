"""Data by URL: downloaded once per node, checked by hash, bounded in size, and never from forbidden places."""

import errno
import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pydantic import ValidationError

from trainers.spec.workloads import OwnWorkload, RemoteFile
from trainers.workload import NoData
from trainers.workloads import remote_data

CONTENT = {"/one": b"1" * 1000, "/two": b"2" * 1000, "/three": b"3" * 1000}


class Files(BaseHTTPRequestHandler):
    """Serves CONTENT; `/moved` leads to `/one`, `/torn` ends early, `/down`, `/late` and `/many` may pass."""

    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        content = CONTENT.get(self.path, b"torn")
        known = dict.fromkeys((*CONTENT, "/torn"), 200) | {"/moved": 302, "/down": 503, "/late": 408, "/many": 429}
        self.send_response(known.get(self.path.partition("?")[0], 404))
        self.send_header("Location", "/one")
        self.send_header("Content-Length", str(len(content) + 10 * (self.path == "/torn")))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A server of this machine, where the operator has allowed it, and an empty cache."""
    monkeypatch.setenv(remote_data.PRIVATE_VARIABLE, "true")
    monkeypatch.setenv(remote_data.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(remote_data, "_held", {})
    Files.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def remote(url: str, content: bytes = CONTENT["/one"]) -> RemoteFile:
    return RemoteFile(url=url, sha256=hashlib.sha256(content).hexdigest())


def got(file: RemoteFile) -> bytes:
    return Path(remote_data.fetched({"table": file})["table"]).read_bytes()


def cached(folder: Path) -> set[bytes]:
    return {each.read_bytes() for each in (folder / "cache").iterdir() if each.suffix == ""}


def test_a_file_is_downloaded_once_also_by_several_at_once(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(dict[str, Any]):  # as several processes are, which share no lock
        def get(self, *_: Any) -> None:
            return None

    monkeypatch.setattr(remote_data, "_held", Forgetful())
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(got, [remote(f"{server}/one")] * 8)) == {CONTENT["/one"]}

    assert Files.asked == ["/one"]


def test_a_redirect_is_followed(server: str) -> None:
    assert got(remote(f"{server}/moved")) == CONTENT["/one"]


def test_another_content_is_refused_by_name_and_not_kept(server: str, tmp_path: Path) -> None:
    with pytest.raises(NoData, match=r"`workload.data.table`: .*/two has another SHA-256 than the job says"):
        got(remote(f"{server}/two", CONTENT["/one"]))

    assert cached(tmp_path) == set()


def test_a_missing_file_is_refused_and_a_fault_of_the_server_may_pass(server: str, tmp_path: Path) -> None:
    with pytest.raises(NoData, match="answered 404"):
        got(remote(f"{server}/none"))
    for path, status in (("down", 503), ("late", 408), ("many", 429)):
        with pytest.raises(OSError, match=f"answered {status}"):
            got(remote(f"{server}/{path}"))
    with pytest.raises(OSError, match="ended after 4 of 14 bytes") as torn:
        got(remote(f"{server}/torn"))
    assert torn.value.errno == errno.EIO

    assert [each.suffix for each in (tmp_path / "cache").iterdir()] == [".lock"]


@pytest.mark.parametrize("path", ["none", "down"])
def test_an_error_names_no_query_of_a_url_as_it_may_be_a_signature(server: str, path: str) -> None:
    with pytest.raises((NoData, OSError)) as refusal:
        got(remote(f"{server}/{path}?sig=s3cret"))

    assert f"{server}/{path}" in str(refusal.value) and "s3cret" not in str(refusal.value)
    assert f"/{path}?sig=s3cret" in Files.asked


def test_what_a_killed_download_left_goes_with_the_next(server: str, tmp_path: Path) -> None:
    file = remote(f"{server}/one")
    (tmp_path / "cache").mkdir()
    left = tmp_path / "cache" / f"{file.sha256}.0000.partial"
    left.write_bytes(b"half")

    got(file)

    assert not left.exists()


def test_the_least_recently_used_file_goes_unless_it_is_in_use(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(remote_data.SIZE_VARIABLE, "0.0000025")  # 2,500 bytes
    for age, name in enumerate(("/one", "/two")):
        path = remote_data.fetched({"table": remote(f"{server}{name}", CONTENT[name])})["table"]
        os.utime(path, (age, age))
    os.close(remote_data._held.pop(Path(path)))  # its process has ended; that of the older one has not

    got(remote(f"{server}/three", CONTENT["/three"]))

    assert cached(tmp_path) == {CONTENT["/one"], CONTENT["/three"]}


def test_a_file_larger_than_the_cache_is_refused(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote_data.SIZE_VARIABLE, "0.0000005")

    with pytest.raises(NoData, match=r"`workload.data.table` has 1e-06 GB .*WIRETUNE_DATA_CACHE_GB"):
        got(remote(f"{server}/one"))


def test_plain_http_is_refused_unless_the_operator_allows_it(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(remote_data.PRIVATE_VARIABLE)

    with pytest.raises(NoData, match=r"only https:// and s3:// are allowed \(WIRETUNE_DATA_PRIVATE\)"):
        got(remote(f"{server}/one"))


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fe80::1", "::ffff:127.0.0.1"])
def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused(
    server: str, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.delenv(remote_data.PRIVATE_VARIABLE)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 443))])

    with pytest.raises(NoData, match=rf"data.example leads to {address}, which is not public"):
        got(remote("https://data.example/one"))


def test_a_file_on_s3_is_downloaded_with_the_nodes_own_key(server: str, s3: Any) -> None:
    fsspec.filesystem("s3").pipe_file("results/table", CONTENT["/one"])

    assert got(remote("s3://results/table")) == CONTENT["/one"]
    with pytest.raises(NoData, match="s3://results/none is not to be had"):
        got(remote("s3://results/none", b""))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"data": {"table": {"url": "ftp://host/file", "sha256": "0" * 64}}}, "must be https://HOST/PATH"),
        ({"data": {"table": {"url": "file:///etc/passwd", "sha256": "0" * 64}}}, "must be https://HOST/PATH"),
        ({"data": {"table": {"url": "https://me:key@host/file", "sha256": "0" * 64}}}, "holds a password"),
        ({"data": {"table": {"url": "https://host/file", "sha256": "0"}}}, "pattern"),
        ({"data": {"a b": {"url": "https://host/file", "sha256": "0" * 64}}}, "pattern"),
        (
            {"data": {"table": {"url": "https://host/file", "sha256": "0" * 64}}, "params": {"table": "x"}},
            "`params` and `data` both give `table`",
        ),
    ],
)
def test_what_cannot_be_data_is_refused_with_the_job(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        OwnWorkload.model_validate({"factory": "mine:make"} | fields)


def test_the_factory_gets_the_path(server: str) -> None:
    from trainers.workloads import own

    config = OwnWorkload(factory="own_models:of_table", data={"table": remote(f"{server}/one")})

    assert own.load(config).data_version == CONTENT["/one"].decode()[:10]
