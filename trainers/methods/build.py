"""From the configuration of a method to what runs it."""

from typing import cast

from trainers.exchange.connection import Connection
from trainers.exchange.exchange import Exchange
from trainers.exchange.gradients import Gradients, Pooled, Watched
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.two_level import Follower, TwoLevelExchange
from trainers.methods import registry
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.levels.steered import LayerExchange, SteeredExchange, level_policy
from trainers.spec.exchange import ExchangeBase, SteeredConfig
from trainers.spec.levels import AccordionConfig, WarmupConfig


def between_nodes(config: ExchangeConfig, buffer: Gradients, node_links: NodeLinks, *, seed: int = 0) -> Exchange:
    """Return the exchange of `config` between nodes: the ranks of each add up densely, and their leaders compress.

    `buffer` has this rank's own gradients. What it draws at random follows from `seed`.
    """
    return of_pooled(config, Pooled(buffer, node_links), node_links, seed=seed)


def of_pooled(config: ExchangeBase, pooled: Gradients, node_links: NodeLinks, *, seed: int) -> Exchange:
    """Return the exchange of `config` between nodes, of gradients that are `pooled` in each."""
    leading = steered(config, pooled, node_links.between, seed=seed) if node_links.leads else Follower()
    return TwoLevelExchange(leading, pooled, node_links)


def steered(config: ExchangeBase, buffer: Gradients, connection: Connection, *, seed: int = 0) -> Exchange:
    """Return the exchange that `config` describes, with what changes its level."""
    if isinstance(config, SteeredConfig) and isinstance(config.levels, WarmupConfig | AccordionConfig):
        policy = level_policy(config, buffer)
        inner = exchange(config, Watched(buffer, policy.watch), connection, seed=seed)
        return SteeredExchange(config, cast(LayerExchange, inner), policy, connection)
    return exchange(config, buffer, connection, seed=seed)  # whose level is chosen elsewhere


def exchange(config: ExchangeBase, buffer: Gradients, connection: Connection, *, seed: int = 0) -> Exchange:
    """Return the exchange that `config` describes; what it draws at random follows from `seed`."""
    build = registry.get("exchange", config.kind).load()
    built: Exchange = build(config, buffer, connection, seed=seed)
    return built
