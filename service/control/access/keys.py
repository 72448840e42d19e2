"""Secrets: the server's own, users' keys (stored as digests), and attempts' tokens (not stored)."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from service.errors import Unavailable
from service.settings import SECRETS_DIR

#: The prefix of every key, which distinguishes it from other services' tokens.
PREFIX = "wt_"
_NUM_BYTES = 32
_MIN_CHARS = 32


def new_key() -> str:
    """Return a fresh key for a user."""
    return PREFIX + secrets.token_urlsafe(_NUM_BYTES)


def given_key() -> str | None:
    """Return the operator's first key, from a file in `WIRETUNE_SECRETS_DIR`; None if there is none.

    It is not read from a variable: `WIRETUNE_API_KEY` is a client's, perhaps for another service. Raises Unavailable
    for a weak key.
    """
    folder = os.environ.get(SECRETS_DIR)
    if not folder or not (file := Path(folder) / "wiretune_api_key").exists():
        return None
    key = file.read_text().strip()
    if not key.startswith(PREFIX) or len(key) < len(PREFIX) + _MIN_CHARS:
        raise Unavailable(f"{file} holds no key; allowed: `{PREFIX}` and at least {_MIN_CHARS} random characters")
    return key


def digest(key: str) -> str:
    """Return the digest that is stored of a key. A key has 256 random bits, so guesses cannot reverse its SHA-256."""
    return hashlib.sha256(key.encode()).hexdigest()


def server_secret(state_dir: Path) -> bytes:
    """Return `WIRETUNE_SECRET`, or the state dir's secret, created on first use and readable only by its owner.

    It may be a file of `WIRETUNE_SECRETS_DIR`, too.
    """
    if given := os.environ.get("WIRETUNE_SECRET"):
        return given.encode()
    if (folder := os.environ.get(SECRETS_DIR)) and (mounted := Path(folder) / "wiretune_secret").exists():
        return mounted.read_bytes().strip()
    path = state_dir / "secret"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(_NUM_BYTES))
    return path.read_bytes()


def write_private(path: Path, text: str) -> None:
    """Write `path` atomically, and never readable by others."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def attempt_token(secret: bytes, job_id: str, number: int | str) -> str:
    """Return the token for one attempt's reports: an HMAC-SHA256, which can be computed again after a crash."""
    return hmac.new(secret, f"{job_id}|{number}".encode(), hashlib.sha256).hexdigest()


def storage_id(secret: bytes) -> str:
    """Return the name of the service's storage. It is the same at each replica and does not reveal the secret."""
    return hmac.new(secret, b"storage", hashlib.sha256).hexdigest()[:16]


def sign_in_key(secret: bytes) -> bytes:
    """Return the key that signs what a browser holds while it signs in at the issuer; the same at each replica."""
    return hmac.new(secret, b"sign-in", hashlib.sha256).digest()
