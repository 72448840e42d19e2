"""`/v1/code`: packages of user code, which jobs name by digest."""

from typing import Annotated

from fastapi import Depends, Path, Query, Response

from api.http import uploads
from api.http.auth import Caller, require_key
from api.http.dependencies import DownloadOf, Slot
from api.http.downloads import sent
from api.http.etags import UNCHANGED, IfNoneMatch, unchanged
from api.http.operations import Body, Operation, OperationRouter, file
from api.http.ranges import FILE_HEADERS, PARTIAL, PartOf
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
    """Store the files of a zip for jobs of the caller's project. Equal files have equal digests, however packed.

    If the project has as many packages as it may, the one used longest ago that no unfinished job names is deleted: of
    the caller's own, or else of another owner's. One that was used within a day stays.
    """
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


@router.serves("GET", "/{code}", Operation(id="getCode", action=Action.READ, errors=(Busy,)))
def get_code(code: Digest, store: StoreOf, caller: Caller, _: Slot, project: Project = None) -> CodeView:
    """Return the record of a package; 404 if it must be uploaded first. A submitter of its project thereby uses it."""
    return store.code.get(code, by=caller, project=project)


@router.serves(
    "GET",
    "/{code}/content",
    Operation(id="getCodeContent", action=Action.READ, errors=(Busy,), headers=FILE_HEADERS),
    response_class=Response,
    responses=PARTIAL | UNCHANGED | file("application/octet-stream", "the zip"),
)
def get_code_content(
    code: Digest,
    store: StoreOf,
    caller: Caller,
    download: DownloadOf,
    part: PartOf,
    _: Slot,
    project: Project = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the files of a package as a zip."""
    found = store.code.open(code, by=caller, project=project)
    download.closing.callback(found.content.close)
    if (short := unchanged(found.etag, if_none_match)) is not None:
        return short
    return sent(found, part, f"code-{code.removeprefix('sha256:')[:12]}.zip", download)


@router.serves(
    "DELETE",
    "/{code}",
    Operation(id="deleteCode", action=Action.DELETE_CODE, errors=(CodeInUse, Busy)),
    status_code=204,
)
def delete_code(code: Digest, store: StoreOf, caller: Caller, _: Slot, project: Project = None) -> None:
    """Delete a package that no job needs any more."""
    store.code.remove(code, by=caller, project=project)
