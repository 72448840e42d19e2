"""Uploads of code: written to a temporary file as they arrive, then checked in a thread, few at a time."""

from tempfile import SpooledTemporaryFile

from anyio import to_thread
from fastapi import Request
from starlette.exceptions import HTTPException

from api.http import bodies
from api.http.auth import Caller
from api.http.services import services_of
from service.code_package import MAX_ZIP_BYTES, CodeRefused, Package, of_zip
from service.errors import Forbidden, InvalidRequest
from service.job.problems import Problem

MEDIA_TYPE = "application/zip"
_MEMORY_BYTES = 1 << 20


async def package(request: Request, caller: Caller) -> Package:
    """Return the checked package in the request's body.

    Raises `Forbidden`, before reading anything, if the service runs no user code; `Busy`; `InvalidRequest`.
    """
    services = services_of(request)
    if not services.user_code:
        remedy = "start it with WIRETUNE_USER_CODE=true if you trust all who have a key"
        raise Forbidden(f"this service runs no code of its users: {remedy}")
    bodies.require_media_type(request, (MEDIA_TYPE,))
    with services.uploads.begin(caller), SpooledTemporaryFile(_MEMORY_BYTES) as file:
        num_bytes = 0
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > MAX_ZIP_BYTES:
                raise HTTPException(413, f"the zip is longer than {MAX_ZIP_BYTES} bytes")
            await to_thread.run_sync(file.write, chunk)
        try:
            return await to_thread.run_sync(of_zip, file, limiter=services.checks)
        except CodeRefused as error:
            raise InvalidRequest([Problem(pointer="", message=str(error))]) from error
