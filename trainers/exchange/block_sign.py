"""One bit per entry and one magnitude per block: the code of the exchanges that compress both ways."""

import torch
from torch import Tensor

from trainers.exchange.kernels.codes import add_levels
from trainers.exchange.quantizer import CodedPayload, sign_codes
from trainers.traffic.sizes import CodedLayout


class BlockSign:
    """Sends signs and the mean magnitude of each `block` neighbouring entries, whatever layer they are of."""

    def __init__(self, layout: CodedLayout, block: int) -> None:
        self._block, self._form, self.num_bytes = block, CodedPayload(layout), layout.num_bytes

    def encode(self, values: Tensor, payload: Tensor) -> None:
        scales, num_whole = self._form.scales(payload), len(values) // self._block
        whole, rest = values.tensor_split([num_whole * self._block])
        torch.linalg.vector_norm(whole.view(num_whole, self._block), 1, dim=1, out=scales[:num_whole])
        scales[:num_whole] /= self._block
        if len(rest):
            scales[-1] = torch.linalg.vector_norm(rest, 1) / len(rest)
        self._form.write_codes(sign_codes(values), payload)

    def add_decoded(self, payload: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
        steps = 2.0 * factor * self._form.scales(payload)
        add_levels(self._form.codes(payload), steps, out, group=self._block, zero=0.5)
