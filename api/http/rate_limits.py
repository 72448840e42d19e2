"""Limits of requests, per key, and of wrong keys, per address; counted in this process alone."""

import math
import time
from typing import NoReturn

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from service.control.access.rules import Principal
from service.errors import TooManyRequests, Unauthorized

FAILURES_PER_MINUTE = 20


class Limits:
    """Counts requests in windows of a minute. Thread-safe.

    Args:
        requests_per_minute: that a key, or the subject of a token, may make.
    """

    def __init__(self, requests_per_minute: int) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._requests = RateLimitItemPerMinute(requests_per_minute, namespace="requests")
        self._failures = RateLimitItemPerMinute(FAILURES_PER_MINUTE, namespace="failures")

    def count_request(self, caller: Principal) -> None:
        """Count a request of `caller`. Raises `TooManyRequests`."""
        self._count(self._requests, caller.key_id or caller.name, "requests of this key")

    def count_failure(self, address: str, refusal: Unauthorized) -> NoReturn:
        """Count a wrong key from `address` and raise `refusal`, or `TooManyRequests` where there were too many.

        A right key from there is let in all the same: many people may share an address, and a key is not guessed.
        """
        self._count(self._failures, address, "wrong keys from this address")
        raise refusal

    def _count(self, limit: RateLimitItem, whose: str, what: str) -> None:
        if self._limiter.hit(limit, whose):
            return
        wait_s = math.ceil(self._limiter.get_window_stats(limit, whose).reset_time - time.time())
        message = f"over {limit.amount} {what} in a minute; try again in {max(1, wait_s)} s"
        raise TooManyRequests(message, retry_after_s=max(1, wait_s))
