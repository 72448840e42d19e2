"""`/v1/code`: packages of user code, which jobs name by digest."""

from typing import Annotated

from fastapi import Depends, Path, Query, Response

from api.http import uploads
from api.http.auth import Caller, require_key
from api.http.dependencies import Slot
from api.http.operations import Body, Operation, OperationRouter
from api.http.services import StoreOf
from service.code_package import Package
from service.control.access.rules import Action
from service.errors import Busy, CodeInUse, TooMuchCode
from service.wire.base import MAX_PAGE
from service.wire.code import DIGEST, CodePage, CodeView

router = OperationRouter(prefix="/v1/code", tags=["code"], dependencies=[Depends(require_key)])

Digest = Annotated[str, Path(pattern=DIGEST)]
Project = Annotated[str | None, Query(description="the project that has it; default: your own, or else the oldest")]


@router.serves(
    "POST",
    "",
    Operation(
        id="createCode",
        action=Action.UPLOAD_CODE,
        errors=(Busy, TooMuchCode),
        body=Body(media_types=(uploads.MEDIA_TYPE,)),
        headers={201: ("Location",)},
    ),
    status_code=201,
)
def create_code(
    package: Annotated[Package, Depends(uploads.package)], store: StoreOf, caller: Caller, response: Response, _: Slot
) -> CodeView:
    """Store the files of a zip for jobs of the caller's project. Equal files have equal digests, however packed."""
    made = store.code.add(package, by=caller)
    response.headers["Location"] = f"/v1/code/{made.digest}"
    return made


@router.serves("GET", "", Operation(id="listCode", action=Action.READ))
def list_code(
    store: StoreOf,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[str | None, Query(max_length=1000, description="`next_cursor` of the page before")] = None,
) -> CodePage:
    """Return the packages that the caller may see, newest first."""
    return store.code.list(by=caller, limit=limit, cursor=cursor)


@router.serves("GET", "/{code}", Operation(id="getCode", action=Action.READ))
def get_code(code: Digest, store: StoreOf, caller: Caller, project: Project = None) -> CodeView:
    """Return the record of a package; 404 if it must be uploaded first."""
    return store.code.get(code, by=caller, project=project)


@router.serves(
    "DELETE",
    "/{code}",
    Operation(id="deleteCode", action=Action.DELETE_CODE, errors=(CodeInUse, Busy)),
    status_code=204,
)
def delete_code(code: Digest, store: StoreOf, caller: Caller, _: Slot, project: Project = None) -> None:
    """Delete a package that no job needs any more."""
    store.code.remove(code, by=caller, project=project)
