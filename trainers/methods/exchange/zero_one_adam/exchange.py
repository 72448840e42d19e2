"""0/1 Adam: signs of momenta both ways, over a variance that is refreshed ever more rarely.

Lu, Li, Zhang, De Sa and He (2023), "Maximizing communication efficiency for large-scale training via 0/1 Adam". The
refreshes are theirs; the steps without any exchange, which the paper adds, are not here. In between, workers send what
1-bit Adam does.
"""

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.methods.exchange.onebit_adam.exchange import SignsOfAdam
from trainers.methods.exchange.zero_one_adam.spec import ZeroOneAdamConfig


def build(config: ZeroOneAdamConfig, buffer: GradientBuffer, connection: Connection, *, seed: int) -> SignsOfAdam:
    """Return the exchange of `config`."""
    return SignsOfAdam(config, buffer, connection)
