"""Tokens of an OpenID Connect issuer: verified with its published keys and mapped to roles."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from pydantic import TypeAdapter, ValidationError

from service.control.access.rules import Principal
from service.errors import Forbidden, Unauthorized, Unavailable
from service.settings import Settings
from service.wire.access import DEFAULT_PROJECT, MAX_OWNER_CHARS, NAME_PATTERN, Name

ALGORITHMS = ("RS256", "ES256")
#: Keys are fetched again after this time ...
REFRESH_S = 600.0
#: ... and used up to this age while the issuer does not answer.
MAX_AGE_S = 3600.0
#: Tokens with unknown keys cause a fetch at most this often.
MIN_AGE_S = 10.0
#: How long a caller waits while another fetches the keys; then it uses the present ones.
PATIENCE_S = 0.5
_LEEWAY_S = 30
_TIMEOUT_S = 5.0
_PROJECT: TypeAdapter[str] = TypeAdapter(Name)


class Issuer:
    """The issuer in the settings. Thread-safe; contacts the issuer only from the first token on.

    Args:
        settings: with `oidc_issuer`.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._lock = threading.Lock()
        self._keys, self._about = KeySet([]), dict[str, Any]()
        self._fetched_at = self._asked_at = -math.inf
        self._failure: Exception | None = None

    def principal(self, token: str) -> Principal:
        """Return the caller that a token names. Raises `Unauthorized`, `Forbidden` (no role), or `Unavailable`."""
        return self._principal(self._claims(token, aud=self._settings.oidc_audience))

    def visitor(self, id_token: str, *, nonce: str) -> Principal:
        """Return whom an ID token names that was made for this service and this `nonce`. Raises the same."""
        client = self._settings.oidc_client_id
        claims = self._claims(id_token, aud=client, nonce=nonce)
        if claims.get("azp", client) != client:
            raise Unauthorized(f"this token of {self._settings.oidc_issuer} was made for `{claims['azp']}`")
        return self._principal(claims)

    def endpoint(self, name: str) -> str:
        """Return an address from the issuer's discovery document. Raises `Unavailable`."""
        self._current(REFRESH_S)
        try:
            return _https(self._about[name], self._settings.oidc_issuer)
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"{self._settings.oidc_issuer} has no `{name}` to sign in with: {error}") from error

    def _claims(self, token: str, **of_use: str) -> dict[str, Any]:
        """Return a token's claims, if it is valid and says what its use requires."""
        known = {"iss": self._settings.oidc_issuer, **of_use}
        options: Any = {name: {"essential": True, "value": value} for name, value in known.items()}
        options |= {name: {"essential": True} for name in ("exp", "sub")}
        try:
            claims = self._verified(token)
            jwt.JWTClaimsRegistry(leeway=_LEEWAY_S, **options).validate(claims)
        except (JoseError, ValueError) as error:
            raise Unauthorized(f"this token of {self._settings.oidc_issuer} is not valid: {error}") from error
        return claims

    def _verified(self, token: str) -> dict[str, Any]:
        """Return the claims of a token signed with one of the issuer's keys."""
        keys = self._current(REFRESH_S)
        try:
            return jwt.decode(token, keys, algorithms=ALGORITHMS).claims
        except (JoseError, ValueError) as error:  # its key may be newer than ours
            if self._lock.locked():
                raise Unavailable(f"the keys of {self._settings.oidc_issuer} are being fetched") from error
            if keys is self._keys and self._clock() - self._asked_at < MIN_AGE_S:
                raise
        return jwt.decode(token, self._current(MIN_AGE_S), algorithms=ALGORITHMS).claims

    def _current(self, max_age_s: float) -> KeySet:
        """Return the issuer's keys: at most `max_age_s` old if the issuer answers soon, else older ones."""
        has_keys = self._clock() - self._fetched_at < MAX_AGE_S
        if not self._lock.acquire(timeout=PATIENCE_S if has_keys else -1):
            return self._keys  # another caller is fetching, and these may suffice
        try:
            now = self._clock()
            if now - self._fetched_at < max_age_s:
                return self._keys
            if now - self._asked_at >= MIN_AGE_S:
                self._asked_at = now
                try:
                    self._about, self._keys = _fetch(self._settings.oidc_issuer)
                    self._fetched_at = now
                except (httpx2.HTTPError, JoseError, ValueError, KeyError, TypeError) as error:
                    self._failure = error
            if now - self._fetched_at < MAX_AGE_S:
                return self._keys
            raise Unavailable(f"the keys of {self._settings.oidc_issuer} are not to be had: {self._failure}")
        finally:
            self._lock.release()

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        settings = self._settings
        held = claims.get(settings.oidc_claim, [])
        groups = held if isinstance(held, list) else [held]
        roles = [role for group, role in settings.oidc_roles.items() if group in groups]
        if not roles:
            raise Forbidden(f"no `{settings.oidc_claim}` of this token has a role here (WIRETUNE_OIDC_ROLES)")
        project = claims.get(settings.oidc_project_claim) if settings.oidc_project_claim else DEFAULT_PROJECT
        if not isinstance(project, str) or not project:
            raise Forbidden(f"this token names no project in `{settings.oidc_project_claim}`")
        try:
            _PROJECT.validate_python(project)
        except ValidationError as error:
            claim = settings.oidc_project_claim
            raise Forbidden(f"`{claim}` of this token is {project!r}; a project must match {NAME_PATTERN}") from error
        name = f"oidc:{claims['sub']}"
        if len(name) > MAX_OWNER_CHARS:
            raise Forbidden(f"`{name[:40]}...` has {len(name)} characters; an owner has at most {MAX_OWNER_CHARS}")
        return Principal(name=name, role=max(roles, key=lambda role: role.rank), project=project)


def client_of(issuer: str) -> httpx2.Client:
    """Return a client for requests to the issuer. Settings allow plain `http` on loopback only."""
    return httpx2.Client(timeout=_TIMEOUT_S, trust_env=urlsplit(issuer).scheme != "http")


def _https(address: str, issuer: str) -> str:
    """Return an address of the issuer's, unless it is less safe than the issuer itself; raises ValueError."""
    if urlsplit(address).scheme not in ("https", urlsplit(issuer).scheme):
        raise ValueError(f"{address} is not https")
    return address


def _fetch(issuer: str) -> tuple[dict[str, Any], KeySet]:
    """Fetch the issuer's discovery document, and the keys that it leads to."""
    with client_of(issuer) as http:
        about = http.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration").raise_for_status().json()
        if about["issuer"] != issuer:
            raise ValueError(f"it calls itself {about['issuer']}")
        keys = http.get(_https(about["jwks_uri"], issuer)).raise_for_status().json()
        return about, KeySet.import_key_set(keys)
