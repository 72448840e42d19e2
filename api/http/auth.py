"""Who may call: users with a key, and a running attempt with a token that is good for its own door only."""

from typing import Annotated

from fastapi import Depends, Path, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.control.store import Store
from service.errors import Unauthorized
from service.wire.records import MAX_WHOLE

_key_scheme = HTTPBearer(auto_error=False, scheme_name="key", description="an API key (`wt_...`)")
_token_scheme = HTTPBearer(auto_error=False, scheme_name="attempt", description="an attempt's own token")


async def get_store(request: Request) -> Store:
    """Return the store that the app was created with. Async: FastAPI sends all else through a thread."""
    store: Store = request.app.state.store
    return store


StoreOf = Annotated[Store, Depends(get_store)]


def require_key(store: StoreOf, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_key_scheme)]) -> None:
    """Let only holders of an API key pass. Raises `Unauthorized`."""
    if given is None:
        raise Unauthorized("send an API key: `Authorization: Bearer wt_...`; the first is in the state dir")
    if not store.check_key(given.credentials):
        raise Unauthorized("this API key is not known here")


def require_token(
    job: str,
    request: Request,
    store: StoreOf,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_token_scheme)],
) -> None:
    """Let only the attempt of the path pass. Raises `Unauthorized`, before anything else is looked at."""
    number = request.path_params["number"]  # as it is written: no token is of anything but an attempt's number
    if given is None or not store.check_token(job, number, given.credentials):
        raise Unauthorized(f"a token of attempt {number} of {job} is required")


#: An attempt of the path.
Number = Annotated[int, Path(ge=1, le=MAX_WHOLE)]
