"""`/v1/sign-in-codes`, `/v1/sessions`: how a browser signs in to the page without a key in any URL."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from api.http import bodies
from api.http.auth import Caller, address_of, cookie_name, require_key, require_same_origin
from api.http.openapi import CALLING, body, error_answers
from api.http.services import StoreOf, services_of
from service.control.access.keyring import SESSION_S
from service.errors import Unauthorized
from service.wire.access import SignIn, SignInCode

router = APIRouter(prefix="/v1", tags=["sessions"])


@router.post("/sign-in-codes", status_code=201, operation_id="createSignInCode", responses=error_answers(*CALLING))
def create_sign_in_code(store: StoreOf, caller: Caller) -> SignInCode:
    """Return a code that opens one session in a browser, within five minutes."""
    return store.keyring.add_code(by=caller)


@router.post(
    "/sessions",
    status_code=204,
    operation_id="createSession",
    dependencies=[Depends(require_same_origin)],
    responses=error_answers(*CALLING),
    openapi_extra=body("SignIn", example={"code": "from POST /v1/sign-in-codes"}),
)
def create_session(given: Annotated[SignIn, Depends(bodies.sign_in)], store: StoreOf, request: Request) -> Response:
    """Use up a code; the answer sets the session's cookie, which the page's scripts cannot read."""
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


@router.delete(
    "/sessions",
    status_code=204,
    operation_id="deleteSession",
    dependencies=[Depends(require_key)],
    responses=error_answers(*CALLING),
)
def delete_session(store: StoreOf, request: Request) -> Response:
    """End the session of the cookie that came along."""
    name = cookie_name(request)
    store.keyring.close_session(request.cookies.get(name, ""))
    response = Response(status_code=204)
    response.delete_cookie(name, httponly=True, samesite="strict", secure=request.scope["scheme"] == "https")
    return response
