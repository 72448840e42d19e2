"""Exact top-k."""

from torch import Tensor


def largest(values: Tensor, count: int) -> Tensor:
    """Return the indices `(k,)` (int32, ascending) of the `count` largest magnitudes of `values` `(d,)`, no zeros."""
    places = values.nonzero().flatten()
    if len(places) > count:
        places = places[values[places].abs().topk(count, sorted=False).indices].sort().values
    return places.int()
