"""From the configuration of a method to what runs it."""

from typing import cast

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.exchange import Exchange
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.two_level import Follower, TwoLevelExchange
from trainers.methods import registry
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.levels.steered import LayerExchange, SteeredExchange
from trainers.spec.exchange import ExchangeBase, SteeredConfig
from trainers.spec.levels import AccordionConfig, WarmupConfig


def between_nodes(config: ExchangeConfig, buffer: GradientBuffer, node_links: NodeLinks, *, seed: int = 0) -> Exchange:
    """Return the exchange of `config` between nodes: the ranks of each add up densely, and their leaders compress.

    What it draws at random follows from `seed`.
    """
    leading = steered(config, buffer, node_links.between, seed=seed) if node_links.leads else Follower()
    return TwoLevelExchange(leading, buffer, node_links)


def steered(config: ExchangeBase, buffer: GradientBuffer, connection: Connection, *, seed: int = 0) -> Exchange:
    """Return the exchange that `config` describes, with what changes its level."""
    inner = exchange(config, buffer, connection, seed=seed)
    if isinstance(config, SteeredConfig) and isinstance(config.levels, WarmupConfig | AccordionConfig):
        return SteeredExchange(config, cast(LayerExchange, inner), buffer, connection)
    return inner  # whose level is chosen elsewhere


def exchange(config: ExchangeBase, buffer: GradientBuffer, connection: Connection, *, seed: int = 0) -> Exchange:
    """Return the exchange that `config` describes; what it draws at random follows from `seed`."""
    build = registry.get("exchange", config.kind).load()
    built: Exchange = build(config, buffer, connection, seed=seed)
    return built
