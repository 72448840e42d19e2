"""The message that a rank sends to all others for a bucket: its loss (one word), then a payload of bytes."""

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.traffic.sizes import WORD_BYTES


class Message:
    """A message to fill: `loss` `(1,)` float32, and `payload` `(num_bytes,)` uint8, zeros at first.

    A rank whose values are not finite sends NaN as its loss.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._words = torch.zeros(WORD_BYTES + num_bytes, dtype=torch.uint8, device=device)
        self.loss, self.payload = self._words[:WORD_BYTES].view(torch.float32), self._words[WORD_BYTES:]

    def gathered(self, connection: Connection) -> tuple[Tensor, Tensor]:
        """Return the payloads of all ranks `(N, num_bytes)`, and their losses `(N,)`."""
        rows = connection.all_gather(self._words, {"control": WORD_BYTES, "gradient": len(self.payload)})
        return rows[:, WORD_BYTES:], rows[:, :WORD_BYTES].contiguous().view(torch.float32).flatten()
