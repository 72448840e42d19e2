"""Deep gradient compression: each rank clips its gradient before it selects (Lin et al., 2018)."""

import math

from trainers.exchange.by_count import ByCount
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.level import Level
from trainers.exchange.memory import Memory
from trainers.exchange.sparse import SparseExchange
from trainers.methods.exchange.dgc.spec import DgcConfig


class Dgc(ByCount):
    """The largest entries of each bucket, of a gradient that each rank has clipped."""

    def __init__(self, config: DgcConfig) -> None:
        super().__init__(config, exact=False, by_layer=False)
        self._clip = config.clip

    def prepare(self, level: Level, buffer: Gradients, memory: Memory, connection: Connection) -> bool:
        if self._clip is not None:
            buffer.wait_for_all()
            buffer.clip(self._clip / math.sqrt(connection.num_workers))
        return super().prepare(level, buffer, memory, connection)


def build(config: DgcConfig, buffer: Gradients, connection: Connection, *, seed: int) -> SparseExchange:
    """Return the exchange of `config`."""
    return SparseExchange(config, Dgc(config), buffer, connection)
