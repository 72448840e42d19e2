"""The parts that both clients share: address and key, requests and answers."""

import logging
import math
import os
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import datetime, timedelta
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar
from urllib.parse import quote

import httpx2

from api.calls import IDEMPOTENCY_KEY, Call, T, reading
from api.downloads import CheckedFile
from api.failures import UNSAYABLE, ApiError, Unreachable, another, not_finite, refusal, unsayable
from api.local_service import KEY_NAME, running_server
from api.retries import AWAY_S, PATIENCE_S, Patience, Restarts, StreamFailures
from service.settings import Settings
from service.wire.access import SignInCode
from service.wire.events import Event
from trainers import overload

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
#: A key, `@` and a file that contains it, the path of that file, or a function that returns the key.
Key = str | Path | Callable[[], str]
#: The variable that names a file with the key.
KEY_FILE = "WIRETUNE_API_KEY_FILE"

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: Only a proxy sends these, when the service behind it does not answer.
_OF_PROXIES = (502, 504)
#: The service closes idle connections after 5 s. This client closes them earlier, so that no request is cut off.
_LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=2.0)
#: Without configured logging, Python prints its warnings to standard error.
_log = logging.getLogger("wiretune.client")
#: An event stream sends a keep-alive every 15 s. After this much silence it is dead.
_SILENCE_S = 45.0
read_event = reading(Event.model_validate_json)


def with_scheme(url: str) -> str:
    """Return `url` with a scheme and without a trailing slash: `http` for this machine, `https` for any other."""
    url = url.rstrip("/")
    if "://" in url:
        return url
    return f"{'http' if is_loopback(f'http://{url}') else 'https'}://{url}"


def is_loopback(url: str) -> bool:
    """Return whether `url` is on this machine; such a URL bypasses the environment's proxies."""
    return httpx2.URL(url).host in _LOOPBACK


def located(url: str | None, key: Key | None) -> tuple[str, Key]:
    """Return the URL and the key: as given, else of the environment, else of the service that runs on this machine.

    Raises Unreachable if there is no URL and no service runs here, and LocalServerError if that cannot be asked.
    """
    url = os.environ.get("WIRETUNE_URL") or None if url is None else url
    key = _key_of_environment() if key is None else key
    if url is not None:
        return url, "" if key is None else key
    settings = Settings()
    server = running_server(settings)
    if server is None:
        here = "no service runs on this machine: start one with `wiretune serve`, give `url`, or set WIRETUNE_URL"
        raise Unreachable(f"http://{settings.host}:{settings.port}", httpx2.ConnectError(here))
    return server.url, settings.state_dir / KEY_NAME if key is None else key


def _key_of_environment() -> Key | None:
    if key := os.environ.get("WIRETUNE_API_KEY"):
        return key
    return Path(file) if (file := os.environ.get(KEY_FILE)) else None


def key_reader(key: Key) -> Callable[[], str]:
    """Return a function that reads the key where it is. That one raises OSError if a file cannot be read."""
    if isinstance(key, str) and not key.startswith("@"):
        given = key
        return lambda: given
    if isinstance(key, str | Path):
        file = (Path(key[1:]) if isinstance(key, str) else key).expanduser()
        return lambda: file.read_text(encoding="utf-8").strip()
    return key


class KeyAuth(httpx2.Auth):
    """Sends the key with every request. After a 401 it reads the key again and, if it was rotated, repeats the request.

    Raises ApiError for a key that no header can hold.
    """

    def __init__(self, key: Key) -> None:
        self._read = key_reader(key)
        self._key = _ascii(self._read())

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        sent = self._key
        response = yield _with_key(request, sent)
        if response.status_code != 401:
            return
        with suppress(OSError, UnicodeDecodeError):  # the file is being replaced; the refusal says enough
            self._key = _ascii(self._read()) or sent  # an empty file is about to be written
        if self._key != sent:
            yield _with_key(request, self._key)


def _with_key(request: httpx2.Request, key: str) -> httpx2.Request:
    request.headers["Authorization"] = f"Bearer {key}".rstrip()  # without a key, the refusal says what to do
    return request


def _ascii(key: str) -> str:
    if wrong := [(each, at) for at, each in enumerate(key, start=1) if not each.isascii()]:
        detail = f"a key is ASCII, as `wt_...`; got {wrong[0][0]!a} at character {wrong[0][1]}"
        raise ApiError(401, "A valid key is required", detail=detail, slug="unauthorized")
    return key


class BaseClient:
    """The state that both clients share."""

    def __init__(
        self,
        url: str | None = None,
        key: Key | None = None,
        *,
        timeout_s: float = 10.0,
        retry_s: float = PATIENCE_S,
        away_s: float = AWAY_S,
    ) -> None:
        url, key = located(url, key)
        try:
            self.url = with_scheme(url)
            self._is_local = is_loopback(self.url)
            httpx2.URL(self.url).raw_host.decode().encode("idna")  # refuses empty and long labels, as connecting does
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise Unreachable(url, error) from error
        self._retry_s, self._away_s = retry_s, max(retry_s, away_s) if retry_s > 0 else 0.0
        self._has_answered, self._is_away = False, False
        self._options: dict[str, Any] = {
            "base_url": self.url,
            "auth": KeyAuth(key),
            "timeout": timeout_s,
            "limits": _LIMITS,
            "trust_env": not self._is_local,
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    def _checked(self, call: Call[Any], response: httpx2.Response) -> httpx2.Response:
        if response.status_code in _OF_PROXIES:
            said = f"a proxy says {response.status_code} {response.reason_phrase}"
            raise self._unreachable(call, httpx2.HTTPStatusError(said, request=response.request, response=response))
        if is_answer(call, response):
            self._has_answered, self._is_away = True, False
            return response
        if response.is_success or response.is_redirect:
            raise another(self.url, call.path, response)
        self._has_answered = True
        raise refusal(response)

    def _unreachable(self, call: Call[Any], error: httpx2.HTTPError) -> Unreachable:
        """Return the failure; on this machine, overload may explain a timeout."""
        is_late = self._is_local and isinstance(error, httpx2.TimeoutException)
        overloaded = overload.here() if is_late else None
        return Unreachable(
            self.url,
            error,
            overloaded,
            waited_s=error.request.extensions["timeout"]["read"] if isinstance(error, httpx2.ReadTimeout) else None,
            has_answered=self._has_answered,
            is_repeatable=call.is_repeatable,
            idempotency_key=call.headers.get(IDEMPOTENCY_KEY),
        )

    def _link(self, code: SignInCode, job_id: str | None) -> str:
        query = "" if job_id is None else f"?job={quote(job_id)}"
        return f"{self.url}/{query}#code={code.code}"  # browsers do not send the fragment

    def _patience(self, call: Call[Any], within_s: float = math.inf, *, is_waiting: bool = False) -> Patience:
        return Patience(
            call,
            self._away_s if is_waiting else self._retry_s,
            within_s=within_s,
            has_answered=self._has_answered,
            note_absence=self._note_absence,
        )

    def _note_absence(self, away_s: float) -> None:
        """Log that the service is away, only once for all waiting calls."""
        if not self._is_away:
            self._is_away = True
            since = datetime.now() - timedelta(seconds=away_s)
            _log.warning("the service at %s is away since %s; jobs go on; trying again", self.url, f"{since:%H:%M:%S}")

    def _stream_options(self, call: Call[Any]) -> dict[str, Any]:
        timeout = httpx2.Timeout(_SILENCE_S, connect=self._options["timeout"])
        return {"params": call.params, "headers": call.headers, "timeout": timeout}

    def _stream_failures(self, call: Call[Any]) -> StreamFailures:
        return StreamFailures(lambda: self._patience(call, is_waiting=True))

    def _file(self, call: Call[Any], out: BinaryIO) -> CheckedFile:
        return CheckedFile(call, out, Restarts(out, lambda: self._patience(call)))


def is_answer(call: Call[Any], response: httpx2.Response) -> bool:
    """Return whether the call succeeded with the content type that the service sends for it."""
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return response.is_success and (response.status_code == 204 or kind == call.media_type)


def request(http: httpx2.Client | httpx2.AsyncClient, call: Call[Any]) -> httpx2.Request:
    """Return the HTTP request of a call. Raises ApiError if its values cannot be encoded."""
    given = {"params": call.params, "headers": call.headers, "json": call.json, "content": call.content}
    given["timeout"] = _timeout(http.timeout, call)
    try:
        return http.build_request(call.method, call.path, **given)
    except UNSAYABLE as error:
        raise unsayable(error) from error
    except ValueError:  # JSON has neither NaN nor infinity
        errors = tuple(not_finite(call.json))
        if not errors:
            raise
    detail = "not all of its numbers are finite"
    raise ApiError(422, "The request is not valid", detail=detail, errors=errors, slug="invalid-request")


def _timeout(usual: httpx2.Timeout, call: Call[Any]) -> httpx2.Timeout:
    """Return the client's timeout, with which it waits longer for an answer where the call asks for that."""
    read = None if usual.read is None else max(usual.read, call.timeout_s)
    return httpx2.Timeout(connect=usual.connect, read=read, write=usual.write, pool=usual.pool)


def with_self(method: F) -> F:
    """Make `help` show the parameters of the call after `self`."""
    described = signature(method)
    parameters = [Parameter("self", Parameter.POSITIONAL_ONLY), *described.parameters.values()]
    method.__signature__ = described.replace(parameters=parameters)  # type: ignore[attr-defined]
    return method


def described_by(describe: Callable[P, Call[T]], *args: P.args, **kwargs: P.kwargs) -> Call[T]:
    try:
        return describe(*args, **kwargs)
    except UnicodeEncodeError as error:  # from a name quoted in the path
        raise unsayable(error) from error
