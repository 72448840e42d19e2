"""Transfers under way, counted for all callers together and for each one."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from service.control.access.rules import Principal
from service.errors import Busy

#: One caller may use at most this part (1 / n) of the total.
_SHARE = 4


class Shares:
    """Counts the transfers under way: at most `most` in all, and a quarter of that per caller. `num` is the total.

    Args:
        most: the most at a time.
        what: what they are, for messages.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what, self.num = most, what, 0
        self._most_of_one = max(1, most // _SHARE)
        self._of_each: Counter[str] = Counter()

    @contextmanager
    def begin(self, caller: Principal) -> Iterator[None]:
        """Count one more transfer of `caller`. Raises Busy if there are too many."""
        whose = caller.key_id or caller.name
        if self.num >= self._most:
            raise Busy(f"{self.num} {self._what} are under way, which is the most; try again")
        if (num := self._of_each[whose]) >= self._most_of_one:
            raise Busy(f"{num} {self._what} of this key are under way, which is the most of one key; try again")
        self.num += 1
        self._of_each[whose] += 1
        try:
            yield
        finally:
            self.num -= 1
            self._of_each[whose] -= 1
            if not self._of_each[whose]:
                del self._of_each[whose]
