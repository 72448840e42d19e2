"""Packages of users' code, as the API shows them."""

from datetime import datetime

from pydantic import Field

from service.wire.base import View

DIGEST = r"^sha256:[0-9a-f]{64}$"


class CodeView(View):
    """A package of code that jobs of its project may name."""

    digest: str = Field(description="of the names and contents of its files")
    owner: str
    project: str
    num_bytes: int = Field(description="unpacked")
    num_files: int
    created_at: datetime
    used_at: datetime = Field(
        description="when it was last uploaded, named by a new job, or asked for in place of an upload"
    )
    in_use: bool = Field(description="a job that is not over names it")


class CodePage(View):
    packages: tuple[CodeView, ...]
    next_cursor: str | None = None
