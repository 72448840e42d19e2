"""Find, read, clear and add to the entries of a vector that some indices name; unused slots have no effect.

Indices `(k,)` are int32, distinct and ascending, as `Entries` says.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainers.exchange.kernels import operators
from trainers.exchange.kernels.entries import Entries


def places(hits: Tensor, capacity: int) -> Tensor:
    """Return the first indices `(k,)` of what is true in `hits` `(d,)`, in at most `capacity` slots."""
    if operators.needed_for(hits):
        return operators.places(hits, capacity)
    # Up to ten times as fast as torch's, where they are few.
    return torch.from_numpy(np.flatnonzero(hits.numpy())[:capacity].astype(np.int32))


def together(parts: Sequence[Entries], spans: Sequence[slice]) -> Entries:
    """Return the entries of a vector from those of its parts, which are at `spans`, in ascending order."""
    if len(parts) == 1:
        return parts[0]
    if operators.needed_for(parts[0].indices):
        return operators.together(parts, spans)
    used = [part.used(span.stop - span.start) for part, span in zip(parts, spans, strict=True)]
    return Entries(
        torch.cat([part.indices + span.start for part, span in zip(used, spans, strict=True)]),
        torch.cat([part.values for part in used]),
    )


def take(vector: Tensor, indices: Tensor) -> Entries:
    """Return the entries of `vector` `(d,)` at `indices`."""
    if operators.needed_for(vector):
        return operators.take(vector, indices)
    values = torch.zeros(len(indices))
    used = Entries(indices, values).used(len(vector))
    torch.index_select(vector, 0, used.indices, out=used.values)
    return Entries(indices, values)


def clear(vector: Tensor, indices: Tensor) -> None:
    """Set the entries of `vector` `(d,)` at `indices` to 0."""
    if operators.needed_for(vector):
        operators.clear(vector, indices)
    else:
        vector[Entries(indices, indices).used(len(vector)).indices] = 0.0


def scatter_add(out: Tensor, entries: Entries, scale: float = 1.0) -> None:
    """Add `scale` times `entries` to `out` `(d,)`, float32, in place; the product is rounded before it is added.

    The order within does not matter. The order of several payloads does: add them in the order of the ranks, and all
    ranks hold equal bits.
    """
    if operators.needed_for(out):
        operators.scatter_add(out, entries, scale)
        return
    from trainers.exchange.kernels import cpu

    assert len(entries.indices) == len(entries.values)
    indices, values = entries.used(len(out))
    cpu.scatter_add(out.numpy(), indices.numpy(), values.numpy(), np.float32(scale))
