"""A model of the time and traffic of one optimizer step on a stated link, given each method's declared traffic.

One formula covers flat, owner-summed, two-level, gossip and averaging traffic. They differ in their declared bytes
and rounds, in the steps between two exchanges, and in how much of the exchange is hidden behind training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from search.config import Config
from service.catalog.methods import mean_traffic_of
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.link import EmulateLink
from trainers.spec.sync import LocalUpdatesConfig
from trainers.traffic.collectives import MeanTraffic, num_elements
from trainers.traffic.cost import within_node

#: The share of a link's rate that TCP leaves for data, after headers, acknowledgements and gaps between messages.
GOODPUT = 0.89
#: The rate between workers of one machine, through its memory, in megabits per second.
WITHIN_MBPS = 16_000.0


class OwnCost(Config):
    """A worker's processor seconds for one exchange by a method, without waits for the link."""

    fixed_s: float
    per_entry_s: float  # per trained parameter
    per_round_s: float  # per round in which workers wait for each other

    def seconds(self, num_entries: int, rounds: float) -> float:
        """Return the processor seconds of an exchange of `num_entries`."""
        return self.fixed_s + self.per_entry_s * num_entries + self.per_round_s * rounds


@dataclass(frozen=True)
class Site:
    """The machines that train, and the link between their hosts."""

    mbps: float
    latency_ms: float
    workers: int
    hosts: int  # the workers of a host exchange as one
    compute_s: float  # of one worker's step without an exchange
    slowdown: float = 1.0  # of computing, if workers share cores that `compute_s` had for itself
    goodput: float = GOODPUT  # the share of the link's rate that is left for data

    @property
    def per_host(self) -> int:
        return self.workers // self.hosts


class StepParts(NamedTuple):
    """A predicted step: the bytes that a worker sends, and the seconds by cause."""

    bytes: float
    compute_s: float
    exchange_s: float  # the method's own work
    wire_s: float  # waits for the link that training does not hide

    @property
    def seconds(self) -> float:
        return self.compute_s + self.exchange_s + self.wire_s


def step(replica: ReplicaConfig, shapes: Sequence[tuple[int, ...]], site: Site, own: OwnCost) -> StepParts:
    """Predict a worker's step at `site`; with local updates, the mean over a period.

    An exchange in every step does not overlap with the backward pass. A delayed average is hidden for as long as
    workers train on.
    """
    sent = mean_traffic_of(replica, tuple(shapes), site.hosts)
    period = period_of(replica)
    compute_s = site.slowdown * site.compute_s
    rounds = sent.rounds * period  # per exchange
    exchange_s = site.slowdown * own.seconds(num_elements(shapes), rounds) / period if site.workers > 1 else 0.0
    hidden_s = replica.sync.overlapped * compute_s
    wire_s = max(0.0, _wire_s(sent, site) + _within_s(replica, shapes, site) / period - hidden_s)
    return StepParts(sent.bytes, compute_s, exchange_s, wire_s)


def period_of(replica: ReplicaConfig) -> int:
    """Return the steps from one exchange to the next; for a searched period, its first value."""
    if not isinstance(replica.sync, LocalUpdatesConfig):
        return 1
    period = replica.sync.period
    return period[0] if isinstance(period, tuple) else period


def _wire_s(sent: MeanTraffic, site: Site) -> float:
    seconds = (sent.bytes + sent.awaited) * 8 / (site.mbps * 1e6 * site.goodput)
    return seconds + sent.rounds * site.latency_ms / 1e3


def _within_s(replica: ReplicaConfig, shapes: Sequence[tuple[int, ...]], site: Site) -> float:
    """Return the seconds that workers of one host take among themselves in an exchange."""
    if site.per_host == 1:
        return 0.0
    sent = within_node(shapes, num_workers=site.per_host, exchange=replica.exchange)
    return sent.seconds(EmulateLink(mbps=WITHIN_MBPS))
