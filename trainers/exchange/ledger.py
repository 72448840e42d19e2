"""Bytes this rank sent, by purpose, and the seconds that its collectives took."""

from collections.abc import Callable, Mapping

from trainers.segment import Purpose


class Ledger:
    """Counts bytes until `take`. `payload` is the purpose that an exchange's data is billed as, such as parameters."""

    def __init__(self, payload: Purpose = "gradient") -> None:
        self._bytes: dict[Purpose, int] = {}
        self.payload = payload
        self.total = 0  # bytes of all purposes since the beginning; `take` does not reset it
        self.wire_s = 0.0  # seconds inside collectives since the beginning: waiting for peers, sending, pacing

    def charge(self, parts: Mapping[Purpose, int], sent: Callable[[int], int]) -> None:
        """Charge a tensor of `parts` (bytes by purpose); `sent` maps its bytes to bytes on the wire."""
        total = 0
        for purpose, num_bytes in parts.items():
            # By differences, so that the purposes add up to what the whole tensor costs.
            charged = sent(total + num_bytes) - sent(total)
            billed = self.payload if purpose == "gradient" else purpose
            self._bytes[billed] = self._bytes.get(billed, 0) + charged
            self.total += charged
            total += num_bytes

    def take(self) -> dict[Purpose, int]:
        """Return the bytes by purpose since the last call."""
        taken, self._bytes = self._bytes, {}
        return taken
