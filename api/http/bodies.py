"""Request bodies. A route depends on its parsed body, which is read only after the caller is admitted.

Threads parse the bodies, so that a slow one delays nobody. Two run at a time, since each takes the interpreter from
the event loop for some milliseconds.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from anyio import to_thread
from fastapi import Request
from starlette.exceptions import HTTPException

from api.documents import Model, checked, parse_json, parse_yaml, require_no_nul
from api.http.services import services_of
from service.errors import InvalidJob, InvalidRequest
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.prediction.predict import PredictionRequest
from service.wire.access import NewKey, SignIn
from service.wire.jobs import Changes, Extension, JobEdit
from service.wire.queue import QuotaLimits
from service.wire.records import Batch, Lease
from service.wire.steering import SteerRequest

MAX_KEY_BYTES = 2**14
MAX_JOB_BYTES = 2**20
#: For a batch: 80,000 points of a metric, or a controller's state after a thousand searches.
MAX_BATCH_BYTES, MAX_BATCH_VALUES = 8 * 2**20, 250_000
NUM_PARSERS = 2
JSON_TYPE, YAML_TYPES = "application/json", ("application/yaml", "application/x-yaml", "text/yaml")
JOB_TYPES = (JSON_TYPE, YAML_TYPES[0])
CHANGES_TYPES = ("application/merge-patch+json", *JOB_TYPES)
_SAYS_NOTHING = b"{}"
_NO_BODY = "this call takes no body; where it has parameters, they go into the URL, such as `?workers=3`"


def read(
    model: type[Model],
    *,
    media_types: Sequence[str] = (JSON_TYPE,),
    max_bytes: int = MAX_JOB_BYTES,
    refuses_as: type[InvalidRequest] = InvalidJob,
) -> Callable[[Request], Awaitable[Model]]:
    """Return a dependency that reads a `model` from the request's body. It raises `refuses_as`."""

    async def body(request: Request) -> Model:
        try:
            return await _checked(request, model, media_types=media_types, max_bytes=max_bytes)
        except InvalidJob as error:
            raise refuses_as(error.problems) from error

    return body


job_spec = read(JobSpec, media_types=JOB_TYPES)
job_edit = read(JobEdit, media_types=CHANGES_TYPES)
extension = read(Extension)
steer_request = read(SteerRequest)
lease = read(Lease)
prediction_request = read(PredictionRequest, refuses_as=InvalidRequest)
new_key = read(NewKey, max_bytes=MAX_KEY_BYTES, refuses_as=InvalidRequest)
quota_limits = read(QuotaLimits, max_bytes=MAX_KEY_BYTES, refuses_as=InvalidRequest)
quota_edit = read(QuotaLimits, media_types=CHANGES_TYPES, max_bytes=MAX_KEY_BYTES, refuses_as=InvalidRequest)
sign_in = read(SignIn, max_bytes=MAX_KEY_BYTES, refuses_as=InvalidRequest)


async def changes(request: Request) -> dict[str, Any]:
    """Return the merge patch in the request's body. Raises `InvalidJob`."""
    return (await _checked(request, Changes, media_types=CHANGES_TYPES)).model_extra or {}


async def batch(request: Request) -> Batch:
    """Return the records in the request's body; a driver's last words may contain NUL. Raises `InvalidJob`."""
    return await _checked(request, Batch, parse=parse_batch, max_bytes=MAX_BATCH_BYTES, is_of_driver=True)


async def nothing(request: Request) -> None:
    """Raise `InvalidRequest` for a body, since its sender would think that it was read. `{}` is allowed."""
    said = b""
    async for chunk in request.stream():
        said += chunk.translate(None, b" \t\r\n")
        if not _SAYS_NOTHING.startswith(said):
            break
    if said not in (b"", _SAYS_NOTHING):
        raise InvalidRequest([Problem(pointer="", message=_NO_BODY)])


def parse_batch(text: bytes) -> Any:
    """Return the content of a driver's batch. Raises `InvalidJob`."""
    return parse_json(text, max_values=MAX_BATCH_VALUES, is_of_driver=True)


def media_type(request: Request) -> str:
    """Return the media type that the request states; empty if it states none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_media_type(request: Request, allowed: Sequence[str]) -> None:
    """Raise a 415 if the body has another media type."""
    if (kind := media_type(request)) not in allowed:
        given = f"`{kind}`" if kind else "none"
        raise HTTPException(415, f"`Content-Type` must be {' or '.join(allowed)}, got {given}")


async def _checked(
    request: Request,
    model: type[Model],
    *,
    media_types: Sequence[str] = (JSON_TYPE,),
    parse: Callable[[bytes], Any] = parse_json,
    max_bytes: int = MAX_JOB_BYTES,
    is_of_driver: bool = False,
) -> Model:
    kind = media_type(request)
    if kind in YAML_TYPES and YAML_TYPES[0] in media_types:
        parse = parse_yaml
    elif kind:  # without a media type, JSON is assumed
        require_media_type(request, media_types)
    text = await _text(request, max_bytes=max_bytes)

    def parsed() -> Model:
        content = parse(text)
        found = checked(model, content, is_of_driver=is_of_driver)
        if not is_of_driver:
            require_no_nul(content)
        return found

    return await to_thread.run_sync(parsed, limiter=services_of(request).parsers)


async def _text(request: Request, *, max_bytes: int) -> bytes:
    """Return the whole body. Raises a 413 as soon as it is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise HTTPException(413, f"the body is longer than {max_bytes} bytes")
    return bytes(body)
