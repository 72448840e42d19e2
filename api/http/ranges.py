"""Parts of files: a download that broke goes on behind what has come (RFC 9110, section 14)."""

import re
from typing import Annotated, Any

from fastapi import Depends, Header

from service.control.storage import StoredFile

PARTIAL: dict[int | str, dict[str, Any]] = {
    206: {
        "description": "the bytes of `Range`",
        "content": {"application/octet-stream": {"schema": {"type": "string"}}},
    }
}
#: One range with a beginning; a server may answer any other with the whole.
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})?")


class Part:
    """The bytes of a file that a request asks for."""

    def __init__(
        self,
        asked: Annotated[
            str | None, Header(alias="Range", description="`bytes=FIRST-` or `bytes=FIRST-LAST`; else all is sent")
        ] = None,
        if_range: Annotated[
            str | None, Header(alias="If-Range", description="the file's `ETag`: all is sent if it has another by now")
        ] = None,
    ) -> None:
        self._asked, self._if_range = _RANGE.fullmatch(asked or ""), if_range

    def of(self, found: StoredFile) -> range:
        """Return the places of the bytes to send: all of them where that part is empty, or was of another file."""
        whole = range(found.num_bytes)
        if self._asked is None or self._if_range not in (None, found.etag):
            return whole
        first, last = self._asked.groups()
        return whole[int(first) : None if last is None else int(last) + 1] or whole


PartOf = Annotated[Part, Depends()]


def content_range(part: range, num_bytes: int) -> dict[str, str]:
    """Return the header that says where a part of so many bytes lies; none for the whole."""
    if len(part) == num_bytes:
        return {}
    return {"Content-Range": f"bytes {part.start}-{part.stop - 1}/{num_bytes}"}
