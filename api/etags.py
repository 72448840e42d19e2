"""Conditional requests: an answer that has not changed is not sent again (RFC 9110, section 13.1.2)."""

from typing import Annotated, Any

from fastapi import Header, Response

IfNoneMatch = Annotated[str | None, Header()]
UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "unchanged since `If-None-Match`"}}


def unchanged(etag: str, if_none_match: str | None) -> Response | None:
    """Return the short answer if the caller holds what `etag` names; None: send it."""
    known = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    return Response(status_code=304, headers={"ETag": etag}) if known & {etag, "*"} else None
