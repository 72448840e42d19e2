"""Takes the state of a rank that is evaluated and exported: one of all ranks, also where these train apart."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainers.exchange.node_links import NodeLinks
from trainers.methods.optimizer.optimizers import Optimizer
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.policy import SyncPolicy
from trainers.methods.sync.shared.screen import parts_of_means
from trainers.snapshot import RandomState, Tensors
from trainers.training import feed, model
from trainers.training.passes import Passes

#: Whole numbers of as many bytes as a number of a tensor, to add up its bits.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Numbers of a tensor that are added up at once, so that it may fill the device.
_CHUNK = 1 << 20
#: Odd, to lose no bit by a product, with bits all over: 2**64 over the golden ratio.
_ODD = 0x9E3779B97F4A7C15 - 2**64


@dataclass(frozen=True)
class EvaluatedState:
    """The averages that an optimizer keeps, means of what differs between the ranks, and the buffers that go with both.

    All ranks ask at the same step; nothing of the training changes.
    """

    config: ReplicaConfig
    model: nn.Module
    parameters: Tensors  # all of the model, frozen ones included
    optimizer: Optimizer
    passes: Passes
    sync: SyncPolicy
    node_links: NodeLinks
    may_differ: bool  # the parameters of the ranks, at any step

    def tensors(self, step: int, rank: int, *, num_present: int) -> dict[str, Tensor]:
        """Return it by name, as it is before number `step`, on rank `rank` of `num_present`; collective."""
        self.sync.settle()
        # Ranks train apart under local updates, and nodes under an exchange that lets them drift.
        copies = self.node_links.copies if self.config.exchange.drifts else num_present
        parameters = self._together(copies) | self._means_of_frozen(copies)
        own = {name: buffer.clone() for name, buffer in self.model.named_buffers()}  # a forward pass may change them
        buffers = own | self._statistics(parameters, step, rank)
        kept = {name: buffers[name] for name in model.persistent_buffers(self.model)}  # others are scratch or constants
        return parameters | buffers | self._means_of_differing(kept, over=num_present)

    def _together(self, copies: int) -> dict[str, Tensor]:
        """Return what the optimizer has to be evaluated, or, where that of the ranks may differ, its mean."""
        parameters = self.optimizer.evaluated()
        if not self.sync.is_apart:
            return parameters
        [(parts, over)] = parts_of_means(self.config.sync, self.node_links, [[*parameters.values()]], over=copies)
        return dict(zip(parameters, self.node_links.average(parts, "state", over=over), strict=True))

    def _means_of_frozen(self, copies: int) -> dict[str, Tensor]:
        """Return the means of the frozen parameters that differ between the ranks, as those of an averaged teacher do.

        They also do where ranks that trained apart have just met: what is trained alone is averaged there.
        """
        trained, held = self.optimizer.parameters, self.parameters.tensors()
        frozen = {name: each for name, each in held.items() if name not in trained}
        return self._means_of_differing(frozen, over=copies) if self.may_differ else {}

    @torch.no_grad()
    def _statistics(self, parameters: dict[str, Tensor], step: int, rank: int) -> dict[str, Tensor]:
        """Return BatchNorm's statistics of the evaluated `parameters`; none if these are the trained ones.

        They are taken from the batches that training sees next, a pure function of (seed, step, rank), and the
        model's own stay as they are.
        """
        are_others = self.optimizer.averages or self.sync.is_apart
        layers = model.norms_that_track(self.model) if are_others else []
        if not layers:
            return {}
        # Copies of all: `loss` may change frozen parameters in place, and trained ones.
        tensors = {**self.parameters.tensors(), **parameters, **dict(self.model.named_buffers())}
        scratch = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        random = RandomState(feed.seed_of((self.config.seed, step, rank)), self.passes.device)
        with model.lent(self.model, scratch), model.counting_anew(layers), random.scope():
            for index in range(model.NUM_BATCHES):
                ahead, micro = divmod(index, self.config.accumulate)
                self.passes.loss(feed.Place(step + ahead, rank, micro))
        return {name: scratch[name] for name in model.norm_statistics(self.model, layers)}

    def _means_of_differing(self, tensors: dict[str, Tensor], *, over: int) -> dict[str, Tensor]:
        """Return the means over `over` ranks of the floating-point `tensors` that differ between them.

        Nothing is sent of what is equal everywhere, such as a frozen base model, which may be large.
        """
        names = self._differing({name: each for name, each in tensors.items() if each.is_floating_point()})
        parts = parts_of_means(self.config.sync, self.node_links, [[tensors[name]] for name in names], over=over)
        shares = {name: part / number for name, ([part], number) in zip(names, parts, strict=True)}
        means: dict[str, Tensor] = {}
        for dtype in dict.fromkeys(each.dtype for each in shares.values()):
            alike = {name: each for name, each in shares.items() if each.dtype == dtype}
            means |= zip(alike, self.node_links.average([*alike.values()], "state", over=1), strict=True)
        return means

    def _differing(self, tensors: dict[str, Tensor]) -> list[str]:
        """Return the names of those that have another `_sum_of_bits` on some rank than on the first; collective."""
        if not tensors:
            return []
        mine = torch.stack([_sum_of_bits(each) for each in tensors.values()]).cpu()
        first = mine.clone()
        self.node_links.tell(first)
        differ = (mine != first).float()
        self.node_links.all_reduce_sum(differ, {"control": differ.nbytes})
        return [name for name, number in zip(tensors, differ.tolist(), strict=True) if number]


def _sum_of_bits(tensor: Tensor) -> Tensor:
    """Return the sum of the bits of each entry, times a weight of its place: a plain one ignores the order."""
    bits = tensor.view(_BITS[tensor.itemsize]).flatten()
    # Mixed, as weights in proportion to the places let mirrored swaps cancel.
    weights = _mixed(torch.arange(min(len(bits), _CHUNK), device=bits.device) * _ODD) * _ODD | 1
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for chunk in torch.split(bits, _CHUNK):
        total = total * _ODD + (_mixed(chunk.long()) * weights[: len(chunk)]).sum()
    return total


def _mixed(words: Tensor) -> Tensor:
    """Return 64-bit `words` whose high bits count in the low ones, too: a product may lose the high ones."""
    return words ^ (words >> 32)
