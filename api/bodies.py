"""Reads request bodies; a route depends on what it reads, after the caller was let in."""

from fastapi import Request
from starlette.exceptions import HTTPException

from api.documents import checked, parse_json, parse_yaml
from service.records import Batch, Lease
from service.spec import JobSpec

MAX_JOB_BYTES = 2**20
MAX_BATCH_BYTES = 8 * 2**20
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml")


async def job_spec(request: Request) -> JobSpec:
    """Return the job in the request's body. Raises `InvalidJob`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await _read(request, max_bytes=MAX_JOB_BYTES)
    return checked(JobSpec, parse_yaml(body) if kind in YAML_TYPES else parse_json(body))


async def batch(request: Request) -> Batch:
    """Return the records in the request's body. Raises `InvalidJob`."""
    return checked(Batch, parse_json(await _read(request, max_bytes=MAX_BATCH_BYTES)))


async def lease(request: Request) -> Lease:
    """Return the heartbeat in the request's body. Raises `InvalidJob`."""
    return checked(Lease, parse_json(await _read(request, max_bytes=MAX_JOB_BYTES)))


async def _read(request: Request, *, max_bytes: int) -> bytes:
    """Return the whole body. Raises a 413 as soon as it is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise HTTPException(413, f"the body is longer than {max_bytes} bytes")
    return bytes(body)
