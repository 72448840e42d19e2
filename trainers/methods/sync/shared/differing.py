"""Compare the ranks' tensors by checksums, and average those that differ."""

from collections.abc import Mapping

import torch
from torch import Tensor

from trainers.exchange.node_links import NodeLinks
from trainers.methods.sync.shared.screen import parts_of_means
from trainers.spec.sync import SyncBase

#: The integer type by the bytes of a tensor's entry. Integer sums are exact, on any device.
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Numbers of a tensor that are added up at once, so that it may fill the device.
_CHUNK = 1 << 20
#: Odd, to lose no bit by a product, with bits all over: 2**64 over the golden ratio.
_ODD = 0x9E3779B97F4A7C15 - 2**64


def means_of_differing(
    tensors: Mapping[str, Tensor], config: SyncBase, node_links: NodeLinks, *, over: int
) -> dict[str, Tensor]:
    """Return the means over `over` ranks of the floating-point `tensors` that differ between them; collective.

    Tensors that are equal on all ranks, such as a large frozen base model, are not sent.
    """
    names = differing({name: each for name, each in tensors.items() if each.is_floating_point()}, node_links)
    parts = parts_of_means(config, node_links, [[tensors[name]] for name in names], over=over)
    shares = {name: part / number for name, ([part], number) in zip(names, parts, strict=True)}
    means: dict[str, Tensor] = {}
    for dtype in dict.fromkeys(each.dtype for each in shares.values()):
        alike = {name: each for name, each in shares.items() if each.dtype == dtype}
        means |= zip(alike, node_links.average([*alike.values()], "state", over=1), strict=True)
    return means


def differing(tensors: Mapping[str, Tensor], node_links: NodeLinks) -> list[str]:
    """Return the names of those that have another `_sum_of_bits` on some rank than on the first; collective."""
    if not tensors:
        return []
    mine = torch.stack([_sum_of_bits(each).cpu() for each in tensors.values()])
    first = mine.clone()
    node_links.tell(first)
    differ = (mine != first).float()
    node_links.all_reduce_sum(differ, {"control": differ.nbytes})
    return [name for name, number in zip(tensors, differ.tolist(), strict=True) if number]


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """Return the sum of the bits of each entry, times a weight of its place: a plain one ignores the order."""
    entries = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = entries.view(INTEGERS[entries.itemsize]).flatten()
    # Mixed, as weights in proportion to the places let mirrored swaps cancel.
    weights = _mixed(torch.arange(min(len(bits), _CHUNK), device=bits.device) * _ODD) * _ODD | 1
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for chunk in torch.split(bits, _CHUNK):
        total = total * _ODD + (_mixed(chunk.long()) * weights[: len(chunk)]).sum()
    return total


def _mixed(words: Tensor) -> Tensor:
    """Return 64-bit `words` whose high bits count in the low ones, too: a product may lose the high ones."""
    return words ^ (words >> 32)
