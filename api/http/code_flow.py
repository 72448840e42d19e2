"""Sign in to the page at an OpenID Connect issuer: its authorization code flow, with PKCE (RFC 7636).

The browser's cookie holds what the two requests of a sign-in share, so the service stores nothing of one that is begun.
"""

import base64
import hashlib
import re
import secrets
import time
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from api.http.oidc import Issuer, client_of
from service.control.access.rules import Principal
from service.errors import Forbidden, Unauthorized, Unavailable
from service.settings import Settings

#: A sign-in takes at most so long, in seconds.
TRY_S = 600
_SIGNED = "HS256"
#: The pages of the service, see `main.js`. Anything else could lead to another site.
_PAGE = re.compile(r"/(\?[^\\\s]*)?")


def _page(to: str) -> str:
    """Return `to`, or the list of jobs if that is not a page of ours."""
    return to if _PAGE.fullmatch(to) else "/"


class SignInTry(NamedTuple):
    """A sign-in that a browser has begun.

    state: ties the issuer's answer to this browser.
    nonce: ties the issuer's token to this sign-in.
    verifier: ties the issuer's code to this sign-in.
    to: the page that it leads to.
    """

    state: str
    nonce: str
    verifier: str
    to: str

    @classmethod
    def to_page(cls, to: str) -> Self:
        """Begin a sign-in that leads to the page `to`."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(state, nonce, verifier, _page(to))

    @classmethod
    def read(cls, text: str, *, state: str, key: bytes) -> Self:
        """Return the sign-in in a cookie's text, signed with `key`.

        Raises Forbidden unless it is one that we began in time, and the issuer's `state` is its own.
        """
        try:
            claims = jwt.decode(text, OctKey.import_key(key), algorithms=[_SIGNED]).claims
            jwt.JWTClaimsRegistry(exp={"essential": True}, state={"essential": True, "value": state}).validate(claims)
        except (JoseError, ValueError) as error:
            refusal = "this browser did not begin this sign-in, or over ten minutes ago: begin it again"
            raise Forbidden(refusal) from error
        return cls(*(claims[name] for name in cls._fields))

    def text(self, *, key: bytes) -> str:
        """Return the sign-in as a cookie holds it: signed with `key`, so that only ours lead to the issuer."""
        return jwt.encode({"alg": _SIGNED}, {**self._asdict(), "exp": int(time.time()) + TRY_S}, OctKey.import_key(key))

    @property
    def challenge(self) -> str:
        """The digest of the verifier, which the issuer gets first."""
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")


class CodeFlow:
    """The two steps of a sign-in at `issuer`."""

    def __init__(self, settings: Settings, issuer: Issuer) -> None:
        self._settings, self._issuer = settings, issuer

    def address(self, sign_in: SignInTry, callback: str) -> str:
        """Return where the issuer asks people to sign in; its answer goes to `callback`. Raises Unavailable."""
        asked = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": callback,
            "scope": self._settings.oidc_scope,
            "state": sign_in.state,
            "nonce": sign_in.nonce,
            "code_challenge": sign_in.challenge,
            "code_challenge_method": "S256",
        }
        endpoint = self._issuer.endpoint("authorization_endpoint")
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    def visitor(self, sign_in: SignInTry, code: str, callback: str) -> Principal:
        """Exchange the issuer's code for whom it signed in. Raises Unauthorized, Forbidden or Unavailable."""
        answer = self._exchange(sign_in, code, callback)
        if not isinstance(answer.get("id_token"), str):
            raise Unauthorized(f"{self._settings.oidc_issuer} did not take the code: {str(answer.get('error'))[:200]}")
        return self._issuer.visitor(answer["id_token"], nonce=sign_in.nonce)

    def _exchange(self, sign_in: SignInTry, code: str, callback: str) -> dict[str, Any]:
        client, secret = self._settings.oidc_client_id, self._settings.oidc_client_secret.get_secret_value()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": callback,
            "client_id": client,
            "code_verifier": sign_in.verifier,
        }
        # RFC 6749, 2.3.1, has both quoted.
        auth = httpx2.BasicAuth(quote(client, safe=""), quote(secret, safe="")) if secret else httpx2.Auth()
        try:
            with client_of(self._settings.oidc_issuer) as http:
                answer = http.post(self._issuer.endpoint("token_endpoint"), data=form, auth=auth).json()
        except (httpx2.HTTPError, ValueError) as error:
            raise Unavailable(f"{self._settings.oidc_issuer} does not answer: {error}") from error
        return answer if isinstance(answer, dict) else {}
