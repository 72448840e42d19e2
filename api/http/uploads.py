"""Uploads of code: written to a temporary file as they come, checked in a thread, few at a time."""

from tempfile import SpooledTemporaryFile

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from starlette.exceptions import HTTPException

from api.http import bodies
from api.http.auth import Caller
from api.http.shares import Shares
from service.errors import Forbidden, InvalidRequest
from service.job.problems import Problem
from service.wire.code import MAX_ZIP_BYTES, CodeRefused, Package, of_zip

MEDIA_TYPE = "application/zip"
_MAX_UPLOADS = 8
_NUM_CHECKS = 1  # at a time: each unpacks up to 100 MB and packs them again
_MEMORY_BYTES = 1 << 20


class Uploads:
    """The uploads under way."""

    def __init__(self) -> None:
        self.shares, self.checks = Shares(_MAX_UPLOADS, "uploads of code"), CapacityLimiter(_NUM_CHECKS)


async def package(request: Request, caller: Caller) -> Package:
    """Return the checked package in the request's body.

    Raises `Forbidden` where the service runs no code of users, before anything is read; `Busy`, `InvalidRequest`.
    """
    if not request.app.state.user_code:
        remedy = "start it with WIRETUNE_USER_CODE=true if you trust all who have a key"
        raise Forbidden(f"this service runs no code of its users: {remedy}")
    bodies.require_media_type(request, (MEDIA_TYPE,))
    uploads: Uploads = request.app.state.uploads
    with uploads.shares.begin(caller), SpooledTemporaryFile(_MEMORY_BYTES) as file:
        num_bytes = 0
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > MAX_ZIP_BYTES:
                raise HTTPException(413, f"the zip is longer than {MAX_ZIP_BYTES} bytes")
            await to_thread.run_sync(file.write, chunk)
        try:
            return await to_thread.run_sync(of_zip, file, limiter=uploads.checks)
        except CodeRefused as error:
            raise InvalidRequest([Problem(pointer="", message=str(error))]) from error
