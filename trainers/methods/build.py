"""From the configuration of a method to what runs it."""

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.exchange import Exchange
from trainers.methods import registry
from trainers.spec.exchange import ExchangeBase


def exchange(config: ExchangeBase, buffer: GradientBuffer, connection: Connection, *, seed: int = 0) -> Exchange:
    """Return the exchange that `config` describes; what it draws at random follows from `seed`."""
    build = registry.get("exchange", config.kind).load()
    built: Exchange = build(config, buffer, connection, seed=seed)
    return built
