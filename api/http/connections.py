"""Connections whose peer does not read are cut off.

What an answer writes waits in the connection's buffer, and with the buffer full the answer waits, too. Without a limit
a peer that has stopped reading would hold both, and whatever the answer holds, until the system gives it up.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

#: The buffer must have drained within this time: 48 KiB, so a link of 20 kbit/s is fast enough.
STALL_S = 20.0


class CutStalled(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, but for peers that stop reading."""

    stall_s = STALL_S
    _cut: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Wait for the peer to read, but not for ever: the buffer is full."""
        super().pause_writing()
        self._cut = self.loop.call_later(self.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the buffer has drained."""
        super().resume_writing()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None
