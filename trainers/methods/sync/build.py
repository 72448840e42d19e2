"""Build the sync policy that a configuration describes."""

from trainers.methods import registry
from trainers.methods.exchange.auto import policy as auto
from trainers.methods.exchange.auto.spec import AutoConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import SyncPolicy


def build(parts: PolicyParts) -> SyncPolicy:
    """Return the policy of the replica's configuration. It starts from the parameters of the moment."""
    config = parts.config
    if isinstance(config.exchange, AutoConfig):
        return auto.build(config.exchange, parts)
    policy: SyncPolicy = registry.get("sync", config.sync.kind).load()(config.sync, parts)
    return policy
