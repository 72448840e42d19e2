"""Errors of calls to the service, and their construction from HTTP answers and errors."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2

from service.job.problems import Problem
from trainers import overload

_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_HUNG_UP = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)
#: The prefix of the service's problem types.
_PROBLEMS = "/problems/"
#: Raised while a call is turned into a request.
UNSAYABLE = (UnicodeEncodeError, httpx2.InvalidURL)


class ApiError(Exception):
    """The service refused a request; as text, the error gives the reason, field by field.

    `slug` is the kind of refusal, such as `queue-full`, for programs; it is empty if something else answered.
    `request_id` finds the request in the service's log.
    """

    def __init__(
        self,
        status: int,
        title: str,
        *,
        detail: str,
        errors: tuple[Problem, ...] = (),
        slug: str = "",
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.status, self.title, self.detail, self.errors = status, title, detail, errors
        self.slug, self.request_id, self.retry_after_s = slug, request_id, retry_after_s
        lines = [f"  {error}" for error in errors] or [f"  {detail}"]
        request = f", request {request_id}" if request_id and status >= 500 else ""
        super().__init__("\n".join([f"{title} (HTTP {status}{request})", *lines]))

    def is_about(self, parameter: str) -> bool:
        """Return whether the request was refused for this query parameter, which an older service may not know."""
        return any(error.pointer == f"/{parameter}" for error in self.errors)

    @property
    def document(self) -> dict[str, Any]:
        """The refusal as a problem document (RFC 9457)."""
        return {
            "type": problem_type(self.slug),
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "request_id": self.request_id,
            "errors": [each.model_dump(mode="json") for each in self.errors],
        }


def problem_type(slug: str) -> str:
    """Return the `type` of a problem document (RFC 9457)."""
    return f"{_PROBLEMS}{slug}" if slug else "about:blank"


class UnknownJob(LookupError):
    """No job fits a reference, or more than one does; the message lists the candidates."""


class Unreachable(Exception):
    """The service's URL does not answer, or not any more; `overload` of this machine may be why.

    If the answer was late, `waited_s` is how long it was waited for. With `has_answered` the service answered before,
    so the URL is right. Without `is_repeatable`, sending the request again may do its work twice. `idempotency_key` is
    that of the submitted job, if any.
    """

    def __init__(
        self,
        url: str,
        cause: Exception,
        overloaded: str | None = None,
        *,
        waited_s: float | None = None,
        has_answered: bool = False,
        is_repeatable: bool = True,
        idempotency_key: str | None = None,
    ) -> None:
        self.url, self.overload, self.idempotency_key = url, overloaded, idempotency_key
        self.was_sent = not isinstance(cause, _NOT_CONNECTED)
        self.may_be_queued = self.was_sent and idempotency_key is not None
        self.is_broken = has_answered and isinstance(cause, _HUNG_UP)
        what = f"the connection to {url} broke" if self.is_broken else f"no Wiretune service answers at {url}"
        said = f"{what}: {cause}{'' if has_answered else _hint(url, cause)}"
        if waited_s is not None:  # the service took the request, and works on it or hangs
            said = f"{url} did not answer within {waited_s:g} s"
        if self.was_sent and not is_repeatable:
            said += "; what was asked for may have been done: look, as with `wiretune show`, before you ask again"
        if self.may_be_queued:
            said += (
                "; the job may be queued: look with `wiretune list` before you submit it again, or do so with its "
                f"idempotency key (--idempotency-key), {idempotency_key}, with which it is queued once"
            )
        super().__init__(overload.explained(said, overloaded))


class DamagedDownload(Exception):
    """A file arrived with another SHA-256 than the service states. Download it again."""


def _hint(url: str, cause: Exception) -> str:
    """Return a hint at the likely cause; empty if `cause` already explains itself."""
    said, (scheme, _, place) = str(cause), url.partition("://")
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return "; if its certificate is one of your own, name the authority's file in SSL_CERT_FILE"
    if scheme == "https" and "SSL" in said:
        return f"; it may not speak TLS: try http://{place}"
    if scheme == "http" and isinstance(cause, _HUNG_UP):
        return f"; it may speak TLS: try https://{place}"
    return ""


def refusal(response: httpx2.Response) -> ApiError:
    """Return the error of a problem document, from the service or a proxy, or of any other text from a proxy."""
    retry_after = response.headers.get("retry-after", "")
    retry_after_s = float(retry_after) if retry_after.isdecimal() else None  # a date is ignored
    is_problem = response.headers.get("content-type", "") == "application/problem+json"
    document = response.json() if is_problem else {"detail": response.text[:500]}
    kind = document.get("type", "")
    return ApiError(
        response.status_code,
        document.get("title", response.reason_phrase),
        detail=document.get("detail", ""),
        errors=tuple(Problem.model_validate(each) for each in document.get("errors", ())),
        slug=kind.removeprefix(_PROBLEMS) if kind.startswith(_PROBLEMS) else "",
        request_id=document.get("request_id") or response.headers.get("x-request-id"),
        retry_after_s=retry_after_s,
    )


def another(url: str, path: str, response: httpx2.Response) -> ApiError:
    """Return the error for an answer that is not the service's: a redirect, or another server."""
    detail = f"what answers at {url} is no Wiretune service"
    if response.next_request is not None:
        found = str(response.next_request.url.copy_with(query=None, fragment=None))
        is_moved = found.endswith(path)
        moved = f"the service is at {found.removesuffix(path)}: give that as --url"
        detail = moved if is_moved else f"{detail}; it leads to {found}"
    return ApiError(response.status_code, "The URL is not the service's", detail=detail)


def unsayable(error: UnicodeEncodeError | httpx2.InvalidURL) -> ApiError:
    """Return the error for text that a request cannot encode: half a surrogate pair, or a header beyond ASCII."""
    if isinstance(error, httpx2.InvalidURL):
        return ApiError(422, "The request is not valid", detail=str(error), slug="invalid-request")
    wrong, near = error.object[error.start], error.object[max(0, error.start - 20) : error.end + 20]
    detail = f"text must be {error.encoding.upper()}, got {wrong!a} in {near!a}"
    return ApiError(422, "The request is not valid", detail=detail, slug="invalid-request")


def not_finite(content: Any, pointer: str = "") -> Iterator[Problem]:
    """Yield a problem for each number in `content` that JSON cannot express."""
    if isinstance(content, float) and not math.isfinite(content):
        yield Problem(pointer=pointer, message=f"must be a finite number, got {content}", value=str(content))
    elif isinstance(content, Mapping):
        for name, each in content.items():
            yield from not_finite(each, f"{pointer}/{name}")
    elif isinstance(content, list | tuple):
        for index, each in enumerate(content):
            yield from not_finite(each, f"{pointer}/{index}")
