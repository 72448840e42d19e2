"""AdaComp: send the entries that another step by the same gradient would make the largest of their bins.

Chen et al. (AAAI 2018).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from trainers.exchange.aggregate import Report
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels import operators
from trainers.exchange.kernels.compiled import compiled_later
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.scatter import take, together
from trainers.exchange.level import Level
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.selector import Count, next_capacities
from trainers.exchange.sparse import SparseExchange
from trainers.exchange.step_result import all_finite
from trainers.methods.exchange.adacomp.spec import AdaCompConfig
from trainers.traffic.buckets import Bucket


def select(corrected: Tensor, gradient: Tensor, *, bin_size: int, room: int) -> tuple[Entries, Tensor]:
    """Return the first entries to send of a layer, given as two `(d,)`, as far as there is `room`, and their number.

    A bin is a run of `bin_size` entries, the last one shorter. An entry is sent if |corrected + gradient| reaches the
    largest |corrected| of its bin; its value is the sign of `corrected` times the mean of the bins' largest. Of a bin
    of zeros nothing is sent, so there may be 0; there may also be d.
    """
    if operators.needed_for(corrected):
        hits, scale = select_by_torch(corrected, gradient, bin_size)
        indices, wanted = operators.places(hits, room), hits.sum(dtype=torch.int32)
    else:
        found, mean = _select(corrected.numpy(), gradient.numpy(), bin_size)
        indices, wanted = torch.from_numpy(found[:room]), torch.tensor(len(found), dtype=torch.int32)
        scale = torch.tensor(mean, dtype=torch.float32)
    return Entries(indices, torch.where(take(corrected, indices).values >= 0, scale, -scale)), wanted


def select_by_torch(corrected: Tensor, gradient: Tensor, bin_size: int) -> tuple[Tensor, Tensor]:
    """Return of each entry whether it is sent `(d,)`, and the magnitude of all values."""
    missing = -len(corrected) % bin_size
    bins, ahead = (pad(each, (0, missing)).view(-1, bin_size).abs() for each in (corrected, corrected + gradient))
    most = bins.amax(1)
    hits = (ahead >= most.unsqueeze(1)) & (most > 0).unsqueeze(1)
    return hits.flatten()[: len(corrected)], most.mean()


@compiled_later
def _select(
    corrected: NDArray[np.float32], gradient: NDArray[np.float32], bin_size: int
) -> tuple[NDArray[np.int32], float]:
    found, count, sum_of_most = np.empty(len(corrected), np.int32), 0, 0.0
    for start in range(0, len(corrected), bin_size):
        mine, step = corrected[start : start + bin_size], gradient[start : start + bin_size]
        most = np.float32(0.0)
        for i in range(len(mine)):
            most = max(most, abs(mine[i]))
        sum_of_most += float(most)
        for i in range(len(mine)):
            if abs(mine[i] + step[i]) >= most > 0:
                found[count] = start + i
                count += 1
    return found[:count].copy(), sum_of_most / -(-len(corrected) // bin_size)


class ByBins:
    """Selects the entries that stand out in their bins. The gradient decides how many; the memory keeps the rest."""

    threshold = None
    sends_all = False

    def __init__(self, config: AdaCompConfig, buckets: Sequence[Bucket]) -> None:
        self._config, self._sizes = config, [bucket.num_elements for bucket in buckets]
        self._capacities = [config.first_capacity(bucket) for bucket in buckets]

    def prepare(self, level: Level, buffer: Gradients, memory: Memory, connection: Connection) -> bool:
        return True

    def capacity(self, bucket: Bucket) -> int:
        return self._capacities[bucket.index]

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        corrected = memory.corrected(gradient, bucket.span)
        finite, (found, wanted) = all_finite(corrected), self._find(bucket, gradient, corrected, capacity)
        indices, values = sent = Entries(found.indices[:capacity], found.values[:capacity])
        memory.keep(bucket.span, Entries(indices, memory.take(bucket.span, indices).values - values))
        return Selection.of(sent, wanted, finite)

    def _find(self, bucket: Bucket, gradient: Tensor, corrected: Tensor, room: int) -> tuple[Entries, Tensor]:
        """Return entries of the bucket that qualify, among them the first `room`, and how many there are."""
        spans = [bucket.within(layer) for layer in bucket.layers]
        found, wanted = zip(
            *(
                select(corrected[span], gradient[span], bin_size=self._config.bin_size(layer), room=room)
                for layer, span in zip(bucket.layers, spans, strict=True)
            ),
            strict=True,
        )
        return together(found, spans), torch.stack(wanted).sum(dtype=torch.int32)

    def count(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> Count:
        return Count.of(self._find(bucket, gradient, memory.corrected(gradient, bucket.span), 0)[1], gradient)

    def observe(self, reports: Sequence[Report]) -> None:
        self._capacities = next_capacities(reports, self._sizes)

    def scalars(self) -> dict[str, Any]:
        return {"capacities": self._capacities}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._capacities = list(scalars["capacities"])


def build(config: AdaCompConfig, buffer: Gradients, connection: Connection, *, seed: int) -> SparseExchange:
    """Return the exchange of `config`."""
    return SparseExchange(config, ByBins(config, buffer.buckets), buffer, connection)
