"""A real S3 server (moto's) in this process, which can fail for a moment or hold an upload."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "results"
KEY = {"AWS_ACCESS_KEY_ID": "right", "AWS_SECRET_ACCESS_KEY": "secret-of-right", "AWS_DEFAULT_REGION": "us-east-1"}
_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}, as the test wants it</Message></Error>"
_CODES = {"403 Forbidden": "AccessDenied", "500 Internal Server Error": "InternalError", "503 Slow": "SlowDown"}


class S3Server:
    """A server with one bucket, at `url`; only the key `right` may do anything."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._failing: list[tuple[str, str]] = []
        self.requests: list[tuple[str, str]] = []  # method and path with its query
        self.held, self.release = threading.Event(), threading.Event()
        self._held_name: str | None = None
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        s3_backends.reset()  # moto keeps the objects of all servers of a process

    def fail(self, method: str, *statuses: str) -> None:
        """Answer the next requests of `method` with `statuses`, such as `503 Slow`."""
        self._failing += [(method, status) for status in statuses]

    def hold(self, name: str) -> None:
        """Let no upload of a file of this name end until `release` is set; `held` says that one has come."""
        self._held_name = name
        self.held.clear()
        self.release.clear()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _answer(self, request: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        method, path = request["REQUEST_METHOD"], request["PATH_INFO"]
        self.requests.append((method, f"{path}?{request['QUERY_STRING']}"))
        if "Credential=right/" not in request.get("HTTP_AUTHORIZATION", ""):
            return _refuse(request, respond, "403 Forbidden")
        for each in self._failing:
            if each[0] == method:
                self._failing.remove(each)
                return _refuse(request, respond, each[1])
        if method == "PUT" and self._held_name is not None and path.endswith(self._held_name):
            self.held.set()
            self.release.wait(60)
        answer: Iterable[bytes] = self._moto(request, respond)
        return answer


def _refuse(request: dict[str, Any], respond: Callable[..., Any], status: str) -> Iterable[bytes]:
    request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
    respond(status, [("Content-Type", "application/xml"), ("Connection", "close")])
    return [_ERROR.format(code=_CODES[status]).encode()]


@contextmanager
def serving(set_variable: Callable[[str, str], None]) -> Iterator[S3Server]:
    """Give a server with an empty bucket, which this process and those that it starts reach as `s3://results`."""
    server = S3Server()
    try:
        for name, value in {**KEY, "AWS_ENDPOINT_URL": server.url}.items():
            set_variable(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # of the server before
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir(BUCKET)
        yield server
    finally:
        server.close()
