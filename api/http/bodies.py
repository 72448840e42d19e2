"""Reads request bodies; a route depends on what it reads, after the caller was let in."""

from typing import Any

from fastapi import Request
from starlette.exceptions import HTTPException

from api.documents import Model, checked, parse_json, parse_yaml
from search.config import Budget
from service.errors import InvalidJob, InvalidRequest
from service.job.spec import JobSpec
from service.wire.access import NewKey, SignIn
from service.wire.records import Batch, Lease
from service.wire.views import Changes

MAX_KEY_BYTES = 2**14
MAX_JOB_BYTES = 2**20
MAX_BATCH_BYTES = 8 * 2**20
CHANGES_TYPES = ("application/merge-patch+json", "application/json", "application/yaml")
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml")


async def job_spec(request: Request) -> JobSpec:
    """Return the job in the request's body. Raises `InvalidJob`."""
    return checked(JobSpec, await _document(request))


async def budget(request: Request) -> Budget:
    """Return the caps in the request's body. Raises `InvalidJob`."""
    return checked(Budget, parse_json(await _read(request, max_bytes=MAX_JOB_BYTES)))


async def changes(request: Request) -> dict[str, Any]:
    """Return the merge patch in the request's body. Raises `InvalidJob`."""
    return checked(Changes, await _document(request)).model_extra or {}


async def batch(request: Request) -> Batch:
    """Return the records in the request's body. Raises `InvalidJob`."""
    return checked(Batch, parse_json(await _read(request, max_bytes=MAX_BATCH_BYTES)))


async def lease(request: Request) -> Lease:
    """Return the heartbeat in the request's body. Raises `InvalidJob`."""
    return checked(Lease, parse_json(await _read(request, max_bytes=MAX_JOB_BYTES)))


async def new_key(request: Request) -> NewKey:
    """Return the key to be made. Raises `InvalidRequest`."""
    return _valid(NewKey, await _read(request, max_bytes=MAX_KEY_BYTES))


async def sign_in(request: Request) -> SignIn:
    """Return the code in the request's body. Raises `InvalidRequest`."""
    return _valid(SignIn, await _read(request, max_bytes=MAX_KEY_BYTES))


def _valid(model: type[Model], body: bytes) -> Model:
    try:
        return checked(model, parse_json(body))
    except InvalidJob as error:
        raise InvalidRequest(error.problems) from error


async def _document(request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await _read(request, max_bytes=MAX_JOB_BYTES)
    return parse_yaml(body) if kind in YAML_TYPES else parse_json(body)


async def _read(request: Request, *, max_bytes: int) -> bytes:
    """Return the whole body. Raises a 413 as soon as it is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise HTTPException(413, f"the body is longer than {max_bytes} bytes")
    return bytes(body)
