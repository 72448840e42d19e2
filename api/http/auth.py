"""Authentication and permissions: one dependency for all routes that need a key.

A caller has a key, a session that the page opened with a key, or a token of the OIDC issuer. A running attempt has a
token that is valid for its own routes only.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Annotated

from fastapi import Depends, Path, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.http.operations import OperationRoute
from api.http.services import StoreOf, services_of
from service.control.access.keys import PREFIX
from service.control.access.rules import Action, Principal, may
from service.control.store import Store
from service.errors import Forbidden, NotFound, Unauthorized
from service.wire.records import MAX_WHOLE

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
#: The address in the audit log of a caller without an IPv4 or IPv6 address.
NO_ADDRESS = "unknown"

_key_scheme = HTTPBearer(auto_error=False, scheme_name="key", description="an API key (`wt_...`), or an OIDC token")
_token_scheme = HTTPBearer(auto_error=False, scheme_name="attempt", description="an attempt's own token")
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_key_scheme)]


def require_key(request: Request, store: StoreOf, given: _Credentials) -> Principal:
    """Return the caller, if their role allows the request.

    Raises `Unauthorized`, `TooManyRequests`, `Forbidden`, or `NotFound` for things that they may not see.
    """
    limits = services_of(request).limits
    address = address_of(request)
    session = None if given else request.cookies.get(cookie_name(request))
    if given is None and session is None:
        raise Unauthorized("send an API key: `Authorization: Bearer wt_...`; the first is in the state dir")
    find = partial(_holder, request, store, given.credentials) if given else partial(_visitor, request, store, session)
    try:
        known = find()
    except Unauthorized as refusal:
        limits.count_failure(address, refusal)
    caller = replace(known, address=address)
    limits.count_request(caller)
    request.state.find_caller, request.state.is_known = find, True
    _require_permission(request, store, caller)
    return caller


Caller = Annotated[Principal, Depends(require_key)]


def is_welcome(request: Request) -> Callable[[], bool]:
    """Return a function that checks whether the caller of a long answer is still admitted: keys and sessions end."""

    def ask() -> bool:
        try:
            request.state.find_caller()
        except Unauthorized:
            return False
        return True

    return ask


def address_of(request: Request) -> str:
    """Return the caller's IP address, or one fixed word for anything else, such as text from a proxy."""
    host = request.client.host if request.client else ""
    try:
        address = ip_address(host.partition("%")[0])  # an IPv6 zone may be any text
    except ValueError:
        return NO_ADDRESS
    return str(getattr(address, "ipv4_mapped", None) or address)  # a dual-stack server sees `::ffff:10.1.2.3`


def cookie_name(request: Request) -> str:
    """Return the name of the session's cookie. It contains the port: browsers share cookies between a host's ports."""
    port = _host(request).rpartition(":")[2]
    return f"wiretune-{port if port.isascii() and port.isdigit() else 'page'}"


def require_same_origin(request: Request) -> None:
    """Raise `Forbidden` unless our own page sent the request: other sites' scripts also send the cookie."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    ours = [f"{scheme}://{_host(request)}" for scheme in ("http", "https")]  # a proxy may terminate TLS
    # Old browsers, and those without TLS, do not send `Sec-Fetch-Site`.
    if site != "same-origin" and (site is not None or origin not in ours):
        raise Forbidden("this came from another site's page; a program sends a key: `Authorization: Bearer wt_...`")


def _host(request: Request) -> str:
    return request.headers.get("host", "")


def _holder(request: Request, store: Store, credentials: str) -> Principal:
    issuer = services_of(request).issuer
    if issuer is None or credentials.startswith(PREFIX):
        return store.keyring.holder(credentials)
    return issuer.principal(credentials)


def _visitor(request: Request, store: Store, session: str | None) -> Principal:
    if request.method not in _SAFE_METHODS:
        require_same_origin(request)
    # A forgotten tab keeps a stream open, and opens it again: that is no use of the session.
    return store.keyring.visitor(session or "", renews="text/event-stream" not in request.headers.get("accept", ""))


def _require_permission(request: Request, store: Store, caller: Principal) -> None:
    named, what = "", None
    for kind, owner_of, reading in (
        ("job", store.owner_of, Action.READ),
        ("key", store.keyring.owner_of, Action.READ_KEY),
        ("code", partial(store.code.owner_of, by=caller, project=request.query_params.get("project")), Action.READ),
    ):
        if kind in request.path_params:
            named = request.path_params[kind]
            what = owner_of(named)
            if not may(caller, reading, what):
                raise NotFound(f"there is no {kind} `{named}`")
    route = request.scope["route"]
    action = route.operation.action if isinstance(route, OperationRoute) else None  # undeclared: nobody may
    if action is None or not may(caller, action, what):
        store.keyring.note_refusal(route.operation_id or route.name, named, by=caller)
        raise Forbidden(f"your role here, {caller.role}, may not {action or 'do this'}")


def require_visible(jobs: Iterable[str], store: Store, caller: Principal) -> None:
    """Raise `NotFound` if the caller may not read one of these jobs, which the path does not name."""
    for named in jobs:
        if not may(caller, Action.READ, store.owner_of(named)):
            raise NotFound(f"there is no job `{named}`")


async def require_token(
    job: str,
    request: Request,
    store: StoreOf,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_token_scheme)],
) -> None:
    """Admit only the attempt in the path. Raises `Unauthorized` before anything else is checked.

    Async although it never waits: FastAPI would run a plain function in a thread.
    """
    number = request.path_params["number"]  # unparsed: a wrong number has no token
    if given is None or not store.attempts.check_token(job, number, given.credentials):
        raise Unauthorized(f"a token of attempt {number} of {job} is required")
    request.state.is_known = True


#: The number of an attempt, in the path.
Number = Annotated[int, Path(ge=1, le=MAX_WHOLE)]
