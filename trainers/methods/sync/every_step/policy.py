"""Synchronous SGD: the trivial policy."""

from trainers.exchange.exchange import Exchange
from trainers.exchange.step_result import Exchanged
from trainers.methods import registry
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import PolicyBase, StateParts, SyncPolicy, Update


class EveryStep(PolicyBase):
    """Gradients are exchanged in every step: parameters are equal, and nothing is left to do."""

    is_apart = False

    def __init__(self, exchange: Exchange) -> None:
        self.gradients = self.exchange = exchange

    def advance(self, outcome: Exchanged, update: Update) -> Exchanged:
        return outcome

    def divide(self, trained: StateParts) -> tuple[StateParts, StateParts]:
        return trained, {}


def build(config: EveryStepConfig, parts: PolicyParts) -> SyncPolicy:
    """Return the policy, or that of an exchange under which parameters drift."""
    exchange = parts.config.exchange
    if not exchange.drifts:
        return EveryStep(parts.exchange())
    policy: SyncPolicy = registry.get("exchange", exchange.kind).load_policy()(exchange, parts)
    return policy
