"""Ranks that exchange gradients in every step and yet drift apart, as each applies what it does not send.

Their exchanges (`trainers.methods.exchange`: `cser`, `liec_sgd`) say what goes on the wire; this module says what
becomes of the parameters. Ranks meet in the last step of a period, which both sides count.
"""

from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.step_result import DIVERGED, Exchanged, is_finite
from trainers.methods.exchange.liec_sgd.spec import LiecSgdConfig
from trainers.methods.sync.averaging import Iterate
from trainers.methods.sync.local import Local
from trainers.methods.sync.policy import Update
from trainers.spec.two_way import DriftingConfig


class Drifting(Local):
    """Parameters are each rank's own for ever: the exchange itself keeps them near each other (CSER)."""

    agrees = False

    def __init__(self, config: DriftingConfig, iterate: Iterate, *, exchange: Exchange) -> None:
        super().__init__(config, iterate, gradients=exchange, exchange=exchange)

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        return outcome

    def tensors(self) -> dict[str, Tensor]:
        return {}


class LiecSgd(Drifting):
    """Averages the parameters when they meet, where steps before have led them apart (LIEC-SGD).

    The step that they meet in has one gradient for all, so averages before it and behind it are the same.
    """

    agrees = True

    def __init__(self, config: LiecSgdConfig, iterate: Iterate, node_links: NodeLinks, *, exchange: Exchange) -> None:
        super().__init__(config, iterate, exchange=exchange)
        self._node_links = node_links

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
