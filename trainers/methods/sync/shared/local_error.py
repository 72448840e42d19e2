"""Policies for exchanges whose ranks drift apart: each rank applies by itself what it does not send.

Gradients are exchanged in every step. The exchange decides what is sent, and the policy what happens to the parameters.
Both count the steps of a period. Its last step reduces the differences: by an error reset (CSER) or an average
(LIEC-SGD).
"""

from torch import Tensor

from trainers.exchange.step_result import Exchanged
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.local import Local
from trainers.spec.two_way import DriftingConfig


class Drifting(Local):
    """Never averages parameters: the exchange itself keeps the ranks near each other (CSER)."""

    agrees = False

    def __init__(self, config: DriftingConfig, parts: PolicyParts) -> None:
        exchange = parts.exchange()
        super().__init__(config.period, parts.iterate, gradients=exchange, exchange=exchange)

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        return outcome

    def tensors(self) -> dict[str, Tensor]:
        return {}
