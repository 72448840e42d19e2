"""Ranks that exchange gradients in every step and yet drift apart, as each applies what it does not send.

The exchange says what goes on the wire, and a policy what becomes of the parameters. Ranks meet in the last step of a
period, which both sides count.
"""

from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.exchange.step_result import Exchanged
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.averaging import Iterate
from trainers.methods.sync.shared.local import Local
from trainers.spec.two_way import DriftingConfig


class Drifting(Local):
    """Parameters are each rank's own for ever: the exchange itself keeps them near each other (CSER)."""

    agrees = False

    def __init__(self, config: DriftingConfig, iterate: Iterate, *, exchange: Exchange) -> None:
        super().__init__(config.period, iterate, gradients=exchange, exchange=exchange)

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        return outcome

    def tensors(self) -> dict[str, Tensor]:
        return {}


def build(config: DriftingConfig, parts: PolicyParts) -> Drifting:
    """Return the policy of an exchange that needs no more than that."""
    return Drifting(config, parts.iterate, exchange=parts.exchange())
