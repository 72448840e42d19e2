"""The state to evaluate and export: the same on all ranks, even if they train apart."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.exchange.node_links import NodeLinks
from trainers.methods.sync.policy import SyncPolicy
from trainers.methods.sync.shared.differing import means_of_differing
from trainers.methods.sync.shared.screen import parts_of_means
from trainers.snapshot import RandomState
from trainers.training import feed, model
from trainers.training.parts import TrainingParts


@dataclass(frozen=True)
class EvaluatedState:
    """The averages that an optimizer keeps, means of what differs between the ranks, and the buffers that go with both.

    All ranks ask at the same step; nothing of the training changes.
    """

    parts: TrainingParts
    sync: SyncPolicy
    node_links: NodeLinks
    may_differ: bool  # the parameters of the ranks, at any step

    def tensors(self, step: int, rank: int, *, num_present: int, averaged: bool) -> dict[str, Tensor]:
        """Return it by name, as it is before number `step`, on rank `rank` of `num_present`; collective.

        `averaged` gives the average of the weights in place of the weights, if there is one yet.
        """
        self.sync.settle()
        config, net = self.parts.config, self.parts.model
        # Ranks train apart under local updates, and nodes under an exchange that lets them drift.
        copies = self.node_links.copies if config.exchange.drifts else num_present
        average = self.parts.average.weights() if averaged else {}
        parameters = (average or self._together(copies)) | self._means_of_frozen(copies)
        own = {name: buffer.clone() for name, buffer in net.named_buffers()}  # a forward pass may change them
        buffers = own | self._statistics(parameters, step, rank, are_others=bool(average))
        kept = {name: buffers[name] for name in model.persistent_buffers(net)}  # others are scratch or constants
        return parameters | buffers | means_of_differing(kept, config.sync, self.node_links, over=num_present)

    def _together(self, copies: int) -> dict[str, Tensor]:
        """Return what the optimizer has to be evaluated, or, where that of the ranks may differ, its mean."""
        parameters = self.parts.optimizer.evaluated()
        if not self.sync.is_apart:
            return parameters
        [(parts, over)] = parts_of_means(self.parts.config.sync, self.node_links, [[*parameters.values()]], over=copies)
        return dict(zip(parameters, self.node_links.average(parts, "state", over=over), strict=True))

    def _means_of_frozen(self, copies: int) -> dict[str, Tensor]:
        """Return the means of the frozen parameters that differ between the ranks, as those of an averaged teacher do.

        They also do where ranks that trained apart have just met: what is trained alone is averaged there.
        """
        if not self.may_differ:
            return {}
        trained, held = self.parts.optimizer.parameters, self.parts.parameters.tensors()
        frozen = {name: each for name, each in held.items() if name not in trained}
        return means_of_differing(frozen, self.parts.config.sync, self.node_links, over=copies)

    @torch.no_grad()
    def _statistics(
        self, parameters: dict[str, Tensor], step: int, rank: int, *, are_others: bool
    ) -> dict[str, Tensor]:
        """Return BatchNorm's statistics of the evaluated `parameters`; none if these are the trained ones.

        They are taken from the batches that training sees next, a pure function of (seed, step, rank), and the
        model's own stay as they are.
        """
        are_others = are_others or self.parts.optimizer.averages or self.sync.is_apart
        layers = model.norms_that_track(self.parts.model) if are_others else []
        if not layers:
            return {}
        # Copies of all: `loss` may change frozen parameters in place, and trained ones.
        tensors = {**self.parts.parameters.tensors(), **parameters, **dict(self.parts.model.named_buffers())}
        scratch = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        random = RandomState(feed.seed_of((self.parts.config.seed, step, rank)), self.parts.passes.device)
        lent = model.lent(self.parts.model, scratch)
        with lent, model.counting_anew(layers), random.scope(), torch.enable_grad():  # `loss` may take gradients
            for index in range(model.NUM_BATCHES):
                ahead, micro = divmod(index, self.parts.config.accumulate)
                self.parts.passes.forward(feed.Place(step + ahead, rank, micro))
        return {name: scratch[name] for name in model.norm_statistics(self.parts.model, layers)}
