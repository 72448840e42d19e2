"""Keys, roles and the audit log as users see them."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field

from service.job.vocabulary import Vocabulary
from service.wire.base import Asked, View

DEFAULT_PROJECT = "default"
#: The pattern of names of keys, owners and projects.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@:+-]{0,79}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
#: An owner's name, which may be the subject of an OIDC token, such as `oidc:auth0|0123`.
MAX_OWNER_CHARS = 300
OWNER = rf"[A-Za-z0-9][A-Za-z0-9._@:+|/=~-]{{0,{MAX_OWNER_CHARS - 1}}}"


class Role(Vocabulary):
    """Permissions of a caller; each role has those of the roles before it."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Return the rank of the role; the least powerful is 0."""
        return list(Role).index(self)


#: The longest that the old secret of a rotated key is accepted.
MAX_GRACE_S = 30 * 86_400.0
#: From here on, a time may lie outside the calendar in UTC.
_TOO_LATE = datetime(9999, 1, 1, tzinfo=UTC)


def _to_come(moment: datetime) -> datetime:
    if not datetime.now(UTC) < moment < _TOO_LATE:
        raise ValueError(f"must be in the future, and before the year {_TOO_LATE.year}, got {moment.isoformat()}")
    return moment


class NewKey(Asked):
    """A key to be made."""

    name: Name = Field(description="what the key is for")
    owner: Annotated[str, Field(pattern=f"^{OWNER}$")] | None = Field(
        None, description="whose jobs are submitted with it; null: as `name`"
    )
    role: Role = Role.SUBMITTER
    project: Name = Field(DEFAULT_PROJECT, description="whose jobs it sees")
    expires_at: Annotated[AwareDatetime, AfterValidator(_to_come)] | None = None


class KeyView(View):
    """A key without its secret."""

    id: str
    name: str
    owner: str
    role: Role
    project: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="to the minute")


class IssuedKey(View):
    """A key with its secret, which is shown this once."""

    key: KeyView
    secret: str
    old_until: datetime | None = Field(
        None, description="of a rotated key: until when its old secret is accepted, too; null: it has ended"
    )


class Me(View):
    """The caller, as the service knows them."""

    name: str
    role: Role
    project: str
    key: str | None = Field(description="the id of their key; null: an OIDC issuer named them")
    may: tuple[str, ...] = Field((), description="what their role allows them to do to what is their own")
    release: str = Field("", description="of the service that answers")


class SignInCode(View):
    """A code that opens one session in a browser."""

    code: str
    expires_at: datetime


class SignIn(Asked):
    """The body of `POST /v1/sessions`."""

    code: str = Field(pattern=r"^[A-Za-z0-9_-]{1,200}$")


class AuditEntry(View):
    """A change that a user made, or that their role did not allow."""

    id: int
    at: datetime
    name: str = Field(description="who")
    key: str | None
    address: str = Field(description="from where; empty: on the service's own machine, without HTTP")
    action: str = Field(description="the operation, as this document names it; a clone is a `createJob`")
    target: str = Field(description="the job's or the key's id")
    outcome: str = Field(description="done, or refused; of refusals alike one a minute is written down")


class AuditPage(View):
    entries: tuple[AuditEntry, ...]
    next_cursor: int | None = None
