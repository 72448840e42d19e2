"""The parameters of LIEC-SGD: averaged when ranks meet, where steps before have led them apart."""

from trainers.exchange.step_result import DIVERGED, Exchanged, is_finite
from trainers.methods.exchange.liec_sgd.spec import LiecSgdConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.local_error import Drifting


class LiecSgd(Drifting):
    """The step that ranks meet in has one gradient for all, so averages before it and behind it are the same."""

    agrees = True

    def __init__(self, config: LiecSgdConfig, parts: PolicyParts) -> None:
        super().__init__(config, parts)
        self._node_links = parts.node_links

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        if self._since == 1:
            return outcome
        # Over the nodes, not the ranks: gradients are averaged like that, where nodes differ in size too.
        mean = self._iterate.read().div_(self._node_links.copies)
        self._node_links.all_reduce_sum(mean, {"parameters": mean.nbytes})
        if not is_finite(mean):
            return DIVERGED
        self._iterate.write(mean)
        return outcome
