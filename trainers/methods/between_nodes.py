"""The exchange of a configuration between nodes: the ranks of each add up densely, and their leaders compress."""

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.exchange import Exchange
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.two_level import Follower, TwoLevelExchange
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.levels import steered


def build(config: ExchangeConfig, buffer: GradientBuffer, node_links: NodeLinks, *, seed: int = 0) -> Exchange:
    """Return the exchange of `config` between nodes; what it draws at random follows from `seed`."""
    leading = steered.build(config, buffer, node_links.between, seed=seed) if node_links.leads else Follower()
    return TwoLevelExchange(leading, buffer, node_links)
