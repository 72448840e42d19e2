"""Rate limits: of requests per key, and of wrong keys and failed sign-ins per address. Each process counts its own."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from service.control.access.rules import Principal
from service.errors import TooManyRequests, Unauthorized, WiretuneError

FAILURES_PER_MINUTE = 20


class Limits:
    """Counts requests in windows of a minute. Thread-safe.

    Args:
        requests_per_minute: the most that a key, or the subject of a token, may make.
    """

    def __init__(self, requests_per_minute: int) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._requests = RateLimitItemPerMinute(requests_per_minute, namespace="requests")
        self._failures = RateLimitItemPerMinute(FAILURES_PER_MINUTE, namespace="failures")
        # Counted apart: a program with an old key must keep nobody at its address from signing in.
        self._sign_ins = RateLimitItemPerMinute(FAILURES_PER_MINUTE, namespace="sign-ins")

    def count_request(self, caller: Principal) -> None:
        """Count a request of `caller`. Raises `TooManyRequests`."""
        self._count(self._requests, caller.key_id or caller.name, "requests of this key")

    def count_failure(self, address: str, refusal: Unauthorized) -> NoReturn:
        """Count a wrong key from `address`. Raises `refusal`, or `TooManyRequests` after too many.

        A right key from there is still admitted: many people may share an address, and keys cannot be guessed.
        """
        self._count(self._failures, address, "wrong keys from this address")
        raise refusal

    @contextmanager
    def sign_in(self, address: str) -> Iterator[None]:
        """Admit a sign-in at the issuer, and count it if it fails. Raises `TooManyRequests` after too many failures."""
        if not self._limiter.test(self._sign_ins, address):
            raise self._excess(self._sign_ins, address, "failed sign-ins from this address")
        try:
            yield
        except WiretuneError:
            self._limiter.hit(self._sign_ins, address)
            raise

    def _count(self, limit: RateLimitItem, whose: str, what: str) -> None:
        if not self._limiter.hit(limit, whose):
            raise self._excess(limit, whose, what)

    def _excess(self, limit: RateLimitItem, whose: str, what: str) -> TooManyRequests:
        wait_s = math.ceil(self._limiter.get_window_stats(limit, whose).reset_time - time.time())
        message = f"over {limit.amount} {what} in a minute; try again in {max(1, wait_s)} s"
        return TooManyRequests(message, retry_after_s=max(1, wait_s))
