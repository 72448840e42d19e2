"""Request bodies. A route depends on its parsed body, which is read only after the caller is admitted.

Threads parse the bodies, so that a slow one delays nobody. Two run at a time, since each takes the interpreter from
the event loop for some milliseconds.
"""

from collections.abc import Callable, Sequence
from typing import Any

from anyio import to_thread
from fastapi import Request
from starlette.exceptions import HTTPException

from api.documents import Model, checked, parse_json, parse_yaml, require_no_nul
from api.http.services import services_of
from search.config import Budget
from service.errors import InvalidJob, InvalidRequest
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.prediction.predict import PredictionRequest
from service.wire.access import NewKey, SignIn
from service.wire.jobs import Changes, JobEdit
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


async def job_spec(request: Request) -> JobSpec:
    """Return the job in the request's body. Raises `InvalidJob`."""
    return await _checked(request, JobSpec, media_types=JOB_TYPES)


async def budget(request: Request) -> Budget:
    """Return the caps in the request's body. Raises `InvalidJob`."""
    return await _checked(request, Budget)


async def steer_request(request: Request) -> SteerRequest:
    """Return the steer in the request's body. Raises `InvalidJob`."""
    return await _checked(request, SteerRequest)


async def changes(request: Request) -> dict[str, Any]:
    """Return the merge patch in the request's body. Raises `InvalidJob`."""
    return (await _checked(request, Changes, media_types=CHANGES_TYPES)).model_extra or {}


async def job_edit(request: Request) -> JobEdit:
    """Return the edit of a job in the request's body. Raises `InvalidJob`."""
    return await _checked(request, JobEdit, media_types=CHANGES_TYPES)


async def batch(request: Request) -> Batch:
    """Return the records in the request's body; a driver's last words may contain NUL. Raises `InvalidJob`."""
    return await _checked(request, Batch, parse=parse_batch, max_bytes=MAX_BATCH_BYTES, is_of_driver=True)


async def lease(request: Request) -> Lease:
    """Return the heartbeat in the request's body. Raises `InvalidJob`."""
    return await _checked(request, Lease)


async def new_key(request: Request) -> NewKey:
    """Return the requested key from the body. Raises `InvalidRequest`."""
    return await _valid(request, NewKey)


async def quota_limits(request: Request) -> QuotaLimits:
    """Return the quota from the body. Raises `InvalidRequest`."""
    return await _valid(request, QuotaLimits)


async def prediction_request(request: Request) -> PredictionRequest:
    """Return the requested prediction from the body. Raises `InvalidRequest`."""
    return await _valid(request, PredictionRequest, max_bytes=MAX_JOB_BYTES)


async def sign_in(request: Request) -> SignIn:
    """Return the code in the request's body. Raises `InvalidRequest`."""
    return await _valid(request, SignIn)


async def nothing(request: Request) -> None:
    """Raise `InvalidRequest` for a body, since its sender would think that it was read. `{}` is allowed."""
    said = b""
    async for chunk in request.stream():
        said += chunk.translate(None, b" \t\r\n")
        if not _SAYS_NOTHING.startswith(said):
            break
    if said not in (b"", _SAYS_NOTHING):
        raise InvalidRequest([Problem(pointer="", message=_NO_BODY)])


async def _valid(request: Request, model: type[Model], *, max_bytes: int = MAX_KEY_BYTES) -> Model:
    try:
        return await _checked(request, model, max_bytes=max_bytes)
    except InvalidJob as error:
        raise InvalidRequest(error.problems) from error


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
    text = await _read(request, max_bytes=max_bytes)

    def read() -> Model:
        content = parse(text)
        found = checked(model, content, is_of_driver=is_of_driver)
        if not is_of_driver:
            require_no_nul(content)
        return found

    return await to_thread.run_sync(read, limiter=services_of(request).parsers)


async def _read(request: Request, *, max_bytes: int) -> bytes:
    """Return the whole body. Raises a 413 as soon as it is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise HTTPException(413, f"the body is longer than {max_bytes} bytes")
    return bytes(body)
