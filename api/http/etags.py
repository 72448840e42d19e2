"""Conditional requests (RFC 9110, 13.1): send only what has changed, and act only on what has not."""

import hashlib
import re
from typing import Annotated

from fastapi import Depends, Header, Response
from fastapi.exceptions import RequestValidationError

from api.http.operations import Answers

IfNoneMatch = Annotated[str | None, Header()]
UNCHANGED: Answers = {304: {"description": "unchanged since `If-None-Match`"}}


#: One quoted tag or several. Our own hold a version.
_TAGS = re.compile(r'(?:W/)?"[^"]*"(?:\s*,\s*(?:W/)?"[^"]*")*')
_OURS = re.compile(r'"([0-9]{1,18})"')


def seen_versions(
    if_match: Annotated[
        str | None,
        Header(
            json_schema_extra={"pattern": rf"^\s*(\*|{_TAGS.pattern})\s*$"},
            description="`ETag`s of the job: 412 if it has another by now",
        ),
    ] = None,
) -> frozenset[int] | None:
    """Return the versions in `If-Match`; None means any, as without the header.

    Weak tags (RFC 9110, section 13.1.1) and foreign tags match no version. Raises a 422 for malformed tags.
    """
    if if_match is None or (tags := if_match.strip()) == "*":
        return None
    if not _TAGS.fullmatch(tags):
        message = 'must be the `ETag` of the job, its version in quotes such as "7", several with commas, or *'
        raise RequestValidationError([{"loc": ("header", "If-Match"), "msg": message, "input": if_match}])
    found = (_OURS.fullmatch(tag.strip()) for tag in tags.split(","))
    return frozenset(int(tag[1]) for tag in found if tag)


SeenVersions = Annotated[frozenset[int] | None, Depends(seen_versions)]


def etag_of(version: int) -> str:
    """Return the `ETag` of a job at that version."""
    return f'"{version}"'


def etag_made_of(version: str, *others: object) -> str:
    """Return the `ETag` of an answer made from something with that version, and from `others`."""
    return f'"{version}-{hashlib.sha256(repr(others).encode()).hexdigest()[:8]}"'


def unchanged(etag: str, if_none_match: str | None) -> Response | None:
    """Return a 304 if the caller already has `etag`; None if the answer must be sent."""
    known = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    return Response(status_code=304, headers={"ETag": etag}) if known & {etag, "*"} else None
