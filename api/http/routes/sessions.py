"""`/v1/sign-in-codes`, `/v1/sessions`, `/v1/sign-in`: sign a browser in to the page, without a key in any URL."""

from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse

from api.http import bodies
from api.http.auth import Caller, address_of, cookie_name, require_key, require_same_origin
from api.http.code_flow import TRY_S, CodeFlow, SignInTry
from api.http.operations import Body, Operation, OperationRouter
from api.http.services import StoreOf, services_of
from service.control.access.keyring import MAX_SESSION_S, SESSION_S
from service.control.access.rules import Action
from service.errors import Forbidden, NotFound, TooManyRequests, Unauthorized, Unavailable
from service.wire.access import SignIn, SignInCode

router = OperationRouter(prefix="/v1", tags=["sessions"])
_PATH = "/v1/sign-in"


@router.serves("POST", "/sign-in-codes", Operation(id="createSignInCode", action=Action.READ), status_code=201)
def create_sign_in_code(store: StoreOf, caller: Caller) -> SignInCode:
    """Return a code that opens one session in a browser, within five minutes."""
    return store.keyring.add_code(by=caller)


@router.serves(
    "POST",
    "/sessions",
    Operation(
        id="createSession",
        action=None,
        errors=(Unauthorized, Forbidden, TooManyRequests, Unavailable),
        body=Body(model=SignIn, example={"code": "from POST /v1/sign-in-codes"}),
        headers={204: ("Set-Cookie",)},
    ),
    status_code=204,
    dependencies=[Depends(require_same_origin)],
)
def create_session(given: Annotated[SignIn, Depends(bodies.sign_in)], store: StoreOf, request: Request) -> Response:
    """Exchange a code for a session. The answer sets its cookie, which the page's scripts cannot read."""
    limits = services_of(request).limits
    address = address_of(request)
    try:
        secret = store.keyring.open_session(given.code, address=address)
    except Unauthorized as refusal:
        limits.count_failure(address, refusal)
    response = Response(status_code=204)
    _keep(response, request, secret, max_age_s=MAX_SESSION_S)
    return response


def _keep(response: Response, request: Request, secret: str, *, max_age_s: float) -> None:
    """Have the browser keep a session's secret; the session may end before the cookie."""
    response.set_cookie(
        cookie_name(request),
        secret,
        max_age=int(max_age_s),
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",
    )


# Routes of the page alone, as issuers add parameters of their own.


@router.get("/sign-in", include_in_schema=False)
def begin_sign_in(request: Request, to: str = "/") -> Response:
    """Send the browser to the issuer; it comes back to `to`, a page of ours."""
    flow = _flow(request)
    sign_in = SignInTry.to_page(to)
    response = RedirectResponse(flow.address(sign_in, _callback(request)), 303)
    response.set_cookie(
        _try_cookie(request),
        sign_in.text(key=services_of(request).store.sign_in_key),
        max_age=TRY_S,
        path=_PATH,
        httponly=True,
        samesite="lax",  # sent when the issuer's page leads back here
        secure=request.scope["scheme"] == "https",
    )
    return response


@router.get("/sign-in/callback", include_in_schema=False)
def end_sign_in(request: Request, store: StoreOf, state: str = "", code: str = "", error: str = "") -> Response:
    """Exchange the issuer's code for a session, and lead to the page.

    Raises `Forbidden` for a sign-in that this browser did not begin, and if the issuer refused.
    """
    flow, address = _flow(request), address_of(request)
    begun = SignInTry.read(request.cookies.get(_try_cookie(request), ""), state=state, key=store.sign_in_key)
    if error or not code:
        raise Forbidden(f"the issuer did not sign you in: {error[:200] or 'it sent no code'}")
    with services_of(request).limits.sign_in(address):
        visitor = replace(flow.visitor(begun, code, _callback(request)), address=address)
    response = RedirectResponse(begun.to, 303)
    response.delete_cookie(_try_cookie(request), path=_PATH)
    _keep(response, request, store.keyring.open_session_of(visitor), max_age_s=SESSION_S)
    return response


def _flow(request: Request) -> CodeFlow:
    services = services_of(request)
    if services.issuer is None or not services.store.settings.oidc_client_id:
        raise NotFound("this service signs nobody in at an issuer: its operator sets WIRETUNE_OIDC_CLIENT_ID")
    return CodeFlow(services.store.settings, services.issuer)


def _callback(request: Request) -> str:
    return str(request.url.replace(path=f"{_PATH}/callback", query=""))


def _try_cookie(request: Request) -> str:
    return f"{cookie_name(request)}-sign-in"


@router.serves(
    "DELETE",
    "/sessions",
    Operation(id="deleteSession", action=Action.READ),
    status_code=204,
    dependencies=[Depends(require_key)],
)
def delete_session(store: StoreOf, request: Request) -> Response:
    """End the session of the request's cookie."""
    name = cookie_name(request)
    store.keyring.close_session(request.cookies.get(name, ""))
    response = Response(status_code=204)
    response.delete_cookie(name, httponly=True, samesite="strict", secure=request.scope["scheme"] == "https")
    return response
