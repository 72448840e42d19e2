"""The cost of a message with so many entries: in bits, in packets, or in seconds on the link."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from trainers.exchange.connection import Connection
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.levels.cat import Numbers
from trainers.snapshot import Stateless
from trainers.spec.levels import AffineCost, CatConfig, LinkCost, PacketCost, PayloadCost
from trainers.traffic import collectives
from trainers.traffic.payload_layout import INDEX_BYTES, VALUE_BITS, ValueFormat
from trainers.traffic.sizes import UNIT_BYTES

#: What a measurement counts for after one more.
MEMORY = 0.98
#: Two unknowns are told apart by messages whose sizes vary by a tenth: of others noise would be taken for a price.
LEAST_DETERMINANT = 1e-2

StatedCost = PayloadCost | AffineCost | PacketCost


def payload_bits(num_entries: Numbers, values: ValueFormat) -> Numbers:
    """Return P(T): a value and a 16-bit index for each entry, and for signs a magnitude.

    The paper's are ceil(log2 d) + 32 bits for an entry, ceil(log2 d) + 1 for a sign.
    """
    magnitude = 8 * UNIT_BYTES if values == "sign" else 0
    return num_entries * (VALUE_BITS[values] + 8 * INDEX_BYTES) + magnitude


def stated(config: StatedCost, bits: Numbers) -> Numbers:
    """Return the cost of messages of so many `bits`: in bits, or in bytes of packets."""
    match config:
        case PayloadCost():
            return bits
        case AffineCost():
            return config.fixed + config.per_packet * (bits / (8 * config.packet_bytes))
        case PacketCost():
            return config.fixed + config.per_packet * np.ceil(bits / (8 * config.packet_bytes))


class Price(Protocol):
    """Costs of a bucket's messages."""

    def of(self, d: int, num_entries: Numbers, connection: Connection) -> Numbers | None:
        """Return the cost of each number of entries `(n,)` of `d`, ascending; None: nobody knows yet."""

    def scalars(self) -> dict[str, Any]: ...
    def load_scalars(self, scalars: dict[str, Any]) -> None: ...


class StatedPrice(Stateless):
    """A price that the job states."""

    def __init__(self, config: StatedCost, values: ValueFormat) -> None:
        self._config, self._values = config, values

    def of(self, d: int, num_entries: Numbers, connection: Connection) -> Numbers:
        return stated(self._config, payload_bits(num_entries, self._values))


class Rates(NamedTuple):
    """The seconds that a link takes per round and per byte."""

    round_s: float
    byte_s: float


class LinkFit:
    """Fits seconds = rounds x a + bytes x b to collectives, least squares, the latest of which count most."""

    def __init__(self) -> None:
        self.sums = [0.0] * 5  # of rounds^2, rounds x bytes, bytes^2, rounds x seconds, bytes x seconds

    def add(self, sent: collectives.Traffic, seconds: float) -> None:
        new = (sent.rounds**2, sent.rounds * sent.bytes, sent.bytes**2, sent.rounds * seconds, sent.bytes * seconds)
        self.sums = [MEMORY * old + each for old, each in zip(self.sums, new, strict=True)]

    def rates(self) -> Rates | None:
        """Return a and b, none below 0; None: what was sent was much the same, or in proportion."""
        rr, rb, bb, ry, by = self.sums
        determinant = rr * bb - rb * rb
        if determinant <= LEAST_DETERMINANT * rr * bb:
            return None
        round_s, byte_s = (bb * ry - rb * by) / determinant, (rr * by - rb * ry) / determinant
        if round_s < 0:
            return Rates(0.0, by / bb)
        return Rates(ry / rr, 0.0) if byte_s < 0 else Rates(round_s, byte_s)


class LinkPrice:
    """Seconds: of an emulated link they are known, of any other they are measured."""

    def __init__(self, config: TopKConfig) -> None:
        self._config, self._fit = config, LinkFit()

    def of(self, d: int, num_entries: Numbers, connection: Connection) -> Numbers | None:
        rates = self._rates(connection)
        if rates is None:
            return None
        most = int(num_entries[-1])
        few, many = (self._config.selected_traffic(d, connection.num_workers, room) for room in (1, most))
        per_entry = (many.bytes - few.bytes) / max(1, most - 1)
        seconds: Numbers = few.rounds * rates.round_s + (few.bytes + per_entry * (num_entries - 1)) * rates.byte_s
        return seconds

    def _rates(self, connection: Connection) -> Rates | None:
        if connection.num_workers == 1:
            return Rates(0.0, 0.0)  # nothing leaves
        if connection.link is None:
            for each in connection.take_timings():
                self._fit.add(*each)
            return self._fit.rates()
        return Rates(round_s=connection.link.latency_ms / 1e3, byte_s=8 / (connection.link.mbps * 1e6))

    def scalars(self) -> dict[str, Any]:
        return {"sums": self._fit.sums}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._fit.sums = list(scalars["sums"])


def build(config: TopKConfig, levels: CatConfig) -> Price:
    """Return the price that `levels` names, of messages as `config` makes them."""
    if isinstance(levels.cost, LinkCost):
        return LinkPrice(config)
    return StatedPrice(levels.cost, config.values)
