"""One bit per entry: signSGD by majority vote (Bernstein et al., ICML 2018), and the scaled sign of EF-signSGD
(Karimireddy et al., ICML 2019)."""

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.codes import add_levels, add_levels_between
from trainers.exchange.message import Message
from trainers.exchange.quantized import QuantizedExchange
from trainers.exchange.quantizer import Averaging, CodedPayload, Segments, edges_of, sign_codes
from trainers.methods.exchange.signsgd.spec import SignSgdConfig
from trainers.traffic.buckets import Bucket
from trainers.traffic.sizes import CodedLayout


class MajoritySign:
    """Sends signs; the workers' majority decides each entry, +1 or -1. The step's length is the learning rate's matter.

    A draw is 0: as a sign it would move every entry with an even vote the same way. No memory: a sign alone
    approximates no vector.
    """

    uses_memory = False

    def __init__(self, segments: Segments, layout: CodedLayout) -> None:
        self._form, self.num_bytes = CodedPayload(layout), layout.num_bytes

    def encode(self, values: Tensor, payload: Tensor, generator: torch.Generator) -> None:
        self._form.write_codes(sign_codes(values), payload)

    def add_decoded(self, payload: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
        add_levels(self._form.codes(payload), out.new_tensor([2.0 * factor]), out, group=len(out), zero=0.5)

    def combine(self, total: Tensor, num_workers: int) -> None:
        total.sign_()


class ScaledSign(Averaging):
    """Sends signs and each layer's mean magnitude: (||p||_1 / d) sign(p)."""

    uses_memory = True

    def __init__(self, segments: Segments, layout: CodedLayout) -> None:
        self._segments, self._form, self.num_bytes = segments, CodedPayload(layout), layout.num_bytes
        self._edges = edges_of(segments)

    def encode(self, values: Tensor, payload: Tensor, generator: torch.Generator) -> None:
        scales = self._form.scales(payload)
        for index, (start, stop) in enumerate(self._segments):
            scales[index] = torch.linalg.vector_norm(values[start:stop], 1) / (stop - start)
        self._form.write_codes(sign_codes(values), payload)

    def add_decoded(self, payload: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
        steps = 2.0 * factor * self._form.scales(payload)
        add_levels_between(self._form.codes(payload), steps, out, edges=self._edges, zero=0.5)


class MajorityVote(QuantizedExchange):
    """An exchange of `MajoritySign`, in which zeros vote + and - by turns.

    One bit has no zero, and entries without a gradient (padding rows, unused layers) are zero on all workers in every
    step. With one sign for all zeros they would march away. Neighbouring workers vote against each other, and each
    against its own last vote.
    """

    def _encoded(self, bucket: Bucket, gradient: Tensor, loss: Tensor) -> Message:
        turn = 1.0 if (self._connection.rank + self._taken) % 2 == 0 else -1.0
        return super()._encoded(bucket, gradient.masked_fill_(gradient == 0.0, turn), loss)


def build(config: SignSgdConfig, buffer: Gradients, connection: Connection, *, seed: int) -> QuantizedExchange:
    """Return the exchange of `config`."""
    if not config.feedback:
        return MajorityVote(config, MajoritySign, buffer, connection, seed=seed)
    return QuantizedExchange(config, ScaledSign, buffer, connection, seed=seed)
