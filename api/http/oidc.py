"""Bearer tokens of an OpenID Connect issuer: verified with its published keys and mapped to roles."""

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
        self._keys = KeySet([])
        self._fetched_at = self._asked_at = -math.inf
        self._failure: Exception | None = None
        options: Any = {
            "iss": {"essential": True, "value": settings.oidc_issuer},
            "aud": {"essential": True, "value": settings.oidc_audience},
            "exp": {"essential": True},
            "sub": {"essential": True},
        }
        self._claims = jwt.JWTClaimsRegistry(leeway=_LEEWAY_S, **options)

    def principal(self, token: str) -> Principal:
        """Return the caller that a token names. Raises `Unauthorized`, `Forbidden` (no role), or `Unavailable`."""
        try:
            claims = self._verified(token)
            self._claims.validate(claims)
        except (JoseError, ValueError) as error:
            raise Unauthorized(f"this token of {self._settings.oidc_issuer} is not valid: {error}") from error
        return self._principal(claims)

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
                    self._keys, self._fetched_at = _fetch(self._settings.oidc_issuer), now
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


def _fetch(issuer: str) -> KeySet:
    """Fetch the issuer's keys by way of its discovery document."""
    is_local = urlsplit(issuer).scheme == "http"  # settings allow this on loopback only
    with httpx2.Client(timeout=_TIMEOUT_S, trust_env=not is_local) as http:
        about = http.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration").raise_for_status().json()
        if about["issuer"] != issuer:
            raise ValueError(f"it calls itself {about['issuer']}")
        if urlsplit(about["jwks_uri"]).scheme not in ("https", urlsplit(issuer).scheme):
            raise ValueError(f"its keys are at {about['jwks_uri']}, which is not https")
        return KeySet.import_key_set(http.get(about["jwks_uri"]).raise_for_status().json())
