"""`/v1/keys`, `/v1/me`, `/v1/audit`: API keys, the caller, and the log of changes."""

from typing import Annotated, Literal

from fastapi import Depends, Query, Request, Response

from api.http import bodies
from api.http.auth import Caller, require_key
from api.http.operations import Body, Operation, OperationRouter
from api.http.services import StoreOf
from service.control.access.audit import AuditFilter
from service.control.access.rules import Action, may_do
from service.errors import KeyGone
from service.wire.access import MAX_GRACE_S, MAX_OWNER_CHARS, AuditPage, IssuedKey, KeyView, Me, NewKey
from service.wire.base import MAX_PAGE

router = OperationRouter(prefix="/v1", tags=["keys"], dependencies=[Depends(require_key)])

#: The longest target is a quota's, `project NAME`.
Word = Annotated[str | None, Query(min_length=1, max_length=len("project ") + MAX_OWNER_CHARS)]
Outcome = Literal["done", "refused"]
_EXAMPLE = {"name": "ci", "role": "submitter", "project": "default"}


@router.serves("GET", "/me", Operation(id="getMe", action=Action.READ))
def get_me(caller: Caller, request: Request) -> Me:
    """Return the caller's name, role and project, and the service's release."""
    return Me(
        name=caller.name,
        role=caller.role,
        project=caller.project,
        key=caller.key_id,
        may=may_do(caller),
        release=request.app.version,
    )


@router.serves(
    "POST",
    "/keys",
    Operation(
        id="createKey",
        action=Action.CREATE_OWN_KEY,
        body=Body(model=NewKey, example=_EXAMPLE),
        headers={201: ("Location",)},
    ),
    status_code=201,
)
def create_key(
    new: Annotated[NewKey, Depends(bodies.new_key)], store: StoreOf, caller: Caller, response: Response
) -> IssuedKey:
    """Make a key. Only this answer contains its secret.

    Admins make any key. Others make keys of their own owner and project, with a role that is no higher than theirs, and
    that last no longer than the key, the session or the rotated secret that makes them. An owner has at most 100 such
    keys in a project.
    """
    issued = store.keyring.create(new, by=caller)
    response.headers["Location"] = f"/v1/keys/{issued.key.id}"
    return issued


@router.serves("GET", "/keys", Operation(id="listKeys", action=Action.READ))
def list_keys(store: StoreOf, caller: Caller) -> tuple[KeyView, ...]:
    """Return the caller's keys, or all keys for an admin; oldest first."""
    return store.keyring.list(by=caller)


@router.serves("GET", "/keys/{key}", Operation(id="getKey", action=Action.READ_KEY))
def get_key(key: str, store: StoreOf) -> KeyView:
    """Return one key, without its secret."""
    return store.keyring.get(key)


@router.serves(
    "POST",
    "/keys/{key}:rotate",
    Operation(id="rotateKey", action=Action.CHANGE_KEY, errors=(KeyGone,)),
    dependencies=[Depends(bodies.nothing)],
)
def rotate_key(
    key: str,
    store: StoreOf,
    caller: Caller,
    grace_s: Annotated[float, Query(ge=0, le=MAX_GRACE_S, description="accept the old secret this much longer")] = 0.0,
) -> IssuedKey:
    """Give a key a new secret, which only this answer contains. The old one and its sessions end at once.

    With `grace_s` the old secret is accepted for so many seconds more; only the sessions end.
    """
    return store.keyring.rotate(key, by=caller, grace_s=grace_s)


@router.serves(
    "POST",
    "/keys/{key}:revoke",
    Operation(id="revokeKey", action=Action.CHANGE_KEY),
    dependencies=[Depends(bodies.nothing)],
)
def revoke_key(key: str, store: StoreOf, caller: Caller) -> KeyView:
    """Revoke a key and its sessions for good."""
    return store.keyring.revoke(key, by=caller)


@router.serves("GET", "/audit", Operation(id="listAudit", action=Action.READ_AUDIT))
def list_audit(
    store: StoreOf,
    name: Annotated[Word, Query(description="the name of the user")] = None,
    action: Annotated[Word, Query(description="the operation, as this document names it")] = None,
    target: Annotated[Word, Query(description="the id of a job or key, or a quota: `project NAME`")] = None,
    outcome: Annotated[Outcome | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[int | None, Query(ge=1, lt=2**63, description="`next_cursor` of the page before")] = None,
) -> AuditPage:
    """Return what users changed, and what their roles did not allow; newest first."""
    where = AuditFilter(name=name, action=action, target=target, outcome=outcome)
    return store.keyring.audit(where, limit=limit, cursor=cursor)
