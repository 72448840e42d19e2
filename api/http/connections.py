"""HTTP connections with deadlines for clients that send or read too slowly.

Uvicorn itself closes idle connections only. Without deadlines, a client that never completes its request, or never
reads its answer, would hold a connection and the answer's resources for ever.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.http import problems

_LOOK_S = 1.0
_AWAITING_BODY = {h11.CLIENT: h11.SEND_BODY, h11.SERVER: h11.SEND_RESPONSE}

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Limits for slow clients, in seconds and bytes per second."""

    request_s: float = 10.0  # for a request's headers, and for its body
    min_rate: float = 1000.0  # bytes received at this rate extend the time
    stall_s: float = 30.0  # without reading any of an answer
    idle_s: int = 75  # between two requests; a proxy's shorter limit then decides, and no request meets a closing end


class WatchedProtocol(H11Protocol):
    """A client's connection, checked every second."""

    deadlines = Deadlines()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the checks."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._phase: tuple[Any, ...] = ()
        self._num_received = 0
        self._num_untaken, self._taken_at = 0, self.loop.time()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the checks."""
        self._next_look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the received bytes."""
        self._num_received += len(data)
        super().data_received(data)

    def _look(self) -> None:
        self._next_look = self.loop.call_later(_LOOK_S, self._look)
        if fault := self._fault(self.loop.time()):
            log.debug("%s is cut off: %s", self.client, fault)
            if self.conn.states == _AWAITING_BODY and not self.transport.is_closing():
                self._answer_timeout(fault)
            else:
                self.transport.abort()  # `close` would wait until the client has read everything

    def _answer_timeout(self, fault: str) -> None:
        """Answer with 408, which the client may still read, and close; the next check aborts if it does not read."""
        self.flow.resume_reading()
        answer = problems.timeout(f"{fault[0].upper()}{fault[1:]}")
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=408, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _fault(self, now: float) -> str:
        """Return which deadline has passed at `now`; empty if none."""
        num_untaken = self.transport.get_write_buffer_size()
        if num_untaken == 0 or num_untaken < self._num_untaken:
            self._taken_at = now
        self._num_untaken = num_untaken
        if now - self._taken_at > self.deadlines.stall_s:
            return f"it took nothing of its answer for {self.deadlines.stall_s:g} s"
        is_idle = self.conn.their_state is h11.IDLE and self.cycle is not None and not self.conn.trailing_data[0]
        phase = (self.conn.their_state, self.cycle, is_idle)
        if phase != self._phase or self._is_awaited():
            self._phase, self._phase_at, self._num_received = phase, now, 0
        if is_idle:
            is_over = now - self._phase_at > self.deadlines.idle_s
            return f"it was idle for {self.deadlines.idle_s} s after its last request" if is_over else ""
        allowed_s = self.deadlines.request_s + self._num_received / self.deadlines.min_rate
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and now - self._phase_at > allowed_s:
            return f"its request was not complete after {allowed_s:.0f} s"
        return ""

    def _is_awaited(self) -> bool:
        """Return whether the service is the slow one: it has not asked for the body, or for more of it."""
        is_asked = self.cycle is not None and self.cycle.waiting_for_100_continue
        return self.conn.our_state is not h11.DONE and (is_asked or self.flow.read_paused)


def connection_class(deadlines: Deadlines) -> type[WatchedProtocol]:
    """Return a uvicorn protocol class with these deadlines."""
    return type("WatchedProtocol", (WatchedProtocol,), {"deadlines": deadlines})
