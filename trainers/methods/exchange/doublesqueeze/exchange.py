"""DoubleSqueeze: signs to a server and back, with error feedback on both sides.

Tang, Yu, Lian, Zhang and Liu (2019), "DoubleSqueeze: parallel stochastic gradient descent with double-pass
error-compensated compression", Algorithm 1.
"""

from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.memory import Residual
from trainers.exchange.two_way import TwoWayExchange
from trainers.methods.exchange.doublesqueeze.spec import DoubleSqueezeConfig


def build(config: DoubleSqueezeConfig, buffer: Gradients, connection: Connection, *, seed: int) -> TwoWayExchange:
    """Return the exchange of `config`."""
    return TwoWayExchange(config, Residual(buffer.gradient), buffer, connection)
