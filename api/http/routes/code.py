"""`/v1/code`: packages of users' code, which jobs name by their digest."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from api.http import uploads
from api.http.auth import Caller, StoreOf, require_key
from api.http.openapi import CALLING, DELETING_CODE, HOLDING, UPLOADING, refusals, uploading
from service.wire.code import DIGEST, CodeView, Package

router = APIRouter(prefix="/v1/code", tags=["code"], dependencies=[Depends(require_key)])

Digest = Annotated[str, Path(pattern=DIGEST)]


@router.post(
    "",
    status_code=201,
    operation_id="createCode",
    responses=refusals(*UPLOADING),
    openapi_extra=uploading(uploads.MEDIA_TYPE),
)
def create_code(
    package: Annotated[Package, Depends(uploads.package)], store: StoreOf, caller: Caller, response: Response
) -> CodeView:
    """Keep a zip's files for jobs of the caller's project. The same files give the same digest, however packed."""
    made = store.code.add(package, by=caller)
    response.headers["Location"] = f"/v1/code/{made.digest}"
    return made


@router.get("", operation_id="listCode", responses=refusals(*CALLING))
def list_code(store: StoreOf, caller: Caller) -> tuple[CodeView, ...]:
    """Return the packages that the caller sees, newest first."""
    return store.code.list(by=caller)


@router.get("/{code}", operation_id="getCode", responses=refusals(*HOLDING))
def get_code(code: Digest, store: StoreOf, caller: Caller) -> CodeView:
    """Return what is known of a package: whether it needs to be uploaded."""
    return store.code.get(code, by=caller)


@router.delete("/{code}", status_code=204, operation_id="deleteCode", responses=refusals(*DELETING_CODE))
def delete_code(code: Digest, store: StoreOf, caller: Caller) -> None:
    """Delete a package that no job needs any more."""
    store.code.remove(code, by=caller)
