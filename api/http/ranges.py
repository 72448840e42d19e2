"""Parts of files, by which a broken download resumes (RFC 9110, section 14)."""

import re
from typing import Annotated

from fastapi import Depends, Header, Request
from starlette.exceptions import HTTPException

from api.http.allowed import is_bare
from api.http.operations import Answers, refusal
from service.control.storage import StoredFile

PARTIAL: Answers = {
    206: {
        "description": "the bytes of `Range`",
        "content": {"application/octet-stream": {"schema": {"type": "string"}}},
    },
    416: refusal("The file ends before the first byte of `Range` (`range-not-satisfiable`)"),
}
_OF_FILE = ("ETag", "Content-Disposition", "Repr-Digest", "Accept-Ranges")
#: The headers of a file's answers, by status.
FILE_HEADERS = {200: _OF_FILE, 206: (*_OF_FILE, "Content-Range"), 304: ("ETag",), 416: ("Content-Range",)}
#: One range with a beginning. For any other form a server may send the whole file.
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})?")


class Part:
    """The bytes of a file that a request asks for."""

    def __init__(
        self,
        request: Request,
        asked: Annotated[
            str | None, Header(alias="Range", description="`bytes=FIRST-` or `bytes=FIRST-LAST`; else all is sent")
        ] = None,
        if_range: Annotated[
            str | None, Header(alias="If-Range", description="the file's `ETag`: all is sent if it has another by now")
        ] = None,
    ) -> None:
        self.is_bare = is_bare(request)  #: a HEAD ignores `Range` (RFC 9110, section 14.2)
        self._asked = None if self.is_bare else _RANGE.fullmatch(asked or "")
        self._if_range = if_range

    def of(self, found: StoredFile) -> range:
        """Return the range of bytes to send: the whole file without a valid `Range`, or if `If-Range` names another.

        Raises a 416 if the file ends before the part: the client already has the whole file. With `If-Range` the
        whole file is sent instead (RFC 9110, section 13.2.2).
        """
        whole = range(found.num_bytes)
        if self._asked is None or self._if_range not in (None, found.etag):
            return whole
        first, last = self._asked.groups()
        if int(first) >= found.num_bytes and self._if_range is None:
            message = f"`Range` begins at byte {first}, and the file has {found.num_bytes} bytes"
            raise HTTPException(416, message, headers={"Content-Range": f"bytes */{found.num_bytes}"})
        return whole[int(first) : None if last is None else int(last) + 1] or whole


PartOf = Annotated[Part, Depends()]


def content_range(part: range, num_bytes: int) -> dict[str, str]:
    """Return the `Content-Range` header of a part; empty for the whole file."""
    if len(part) == num_bytes:
        return {}
    return {"Content-Range": f"bytes {part.start}-{part.stop - 1}/{num_bytes}"}
