"""Divide a model into fragments: whole tensors, as even as these allow. Pure Python."""

from collections.abc import Sequence


def divide(sizes: Sequence[int], num_fragments: int) -> list[list[int]]:
    """Return the tensors of each fragment, by their place in `sizes`, in order; each is in exactly one.

    The largest one comes first, and each to the fragment that is smallest so far. Equal ones, such as the layers of a
    transformer, are dealt out in turn, so that neighbours meet apart. Of more fragments than tensors some are empty.
    """
    fragments: list[list[int]] = [[] for _ in range(num_fragments)]
    totals = [0] * num_fragments
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        smallest = totals.index(min(totals))
        fragments[smallest].append(index)
        totals[smallest] += sizes[index]
    return [sorted(fragment) for fragment in fragments]
