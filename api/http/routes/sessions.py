"""`/v1/sign-in-codes`, `/v1/sessions`: sign a browser in to the page, without a key in any URL."""

from typing import Annotated

from fastapi import Depends, Request, Response

from api.http import bodies
from api.http.auth import Caller, address_of, cookie_name, require_key, require_same_origin
from api.http.operations import Body, Operation, OperationRouter
from api.http.services import StoreOf, services_of
from service.control.access.keyring import SESSION_S
from service.control.access.rules import Action
from service.errors import Forbidden, TooManyRequests, Unauthorized, Unavailable
from service.wire.access import SignIn, SignInCode

router = OperationRouter(prefix="/v1", tags=["sessions"])


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
    response.set_cookie(
        cookie_name(request),
        secret,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",
    )
    return response


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
