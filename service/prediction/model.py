"""The time and traffic of one optimizer step on a link that is stated, from what each method says it sends.

One formula for flat, owner-summed, two-level, gossip and averaging traffic: they differ in the bytes and rounds that
their configurations declare, in the steps between two exchanges, and in how much is hidden behind training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from service.catalog.methods import mean_traffic_of
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.link import EmulateLink
from trainers.spec.sync import LocalUpdatesConfig
from trainers.traffic.collectives import MeanTraffic, num_elements
from trainers.traffic.cost import within_node

#: Of a link's rate, what TCP leaves for data after headers, acknowledgements and gaps between messages.
GOODPUT = 0.89
#: Megabits per second between workers of one machine, through its memory.
WITHIN_MBPS = 16_000.0


class OwnCost(BaseModel):
    """Processor seconds of a worker for one exchange by a method, without waiting for the link."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fixed_s: float
    per_entry_s: float  # for each trained parameter
    per_round_s: float  # for each time that workers wait for each other

    def seconds(self, num_entries: int, rounds: float) -> float:
        """Return what an exchange of so many entries takes."""
        return self.fixed_s + self.per_entry_s * num_entries + self.per_round_s * rounds


@dataclass(frozen=True)
class Site:
    """The machines that train, and the link between their hosts."""

    mbps: float
    latency_ms: float
    workers: int
    hosts: int  # workers of a host exchange as one
    compute_s: float  # of a step of one worker that exchanges nothing
    slowdown: float = 1.0  # of processors, where workers share cores that `compute_s` had for itself
    goodput: float = GOODPUT  # the share of the link's rate that is left to data

    @property
    def per_host(self) -> int:
        return self.workers // self.hosts


class StepParts(NamedTuple):
    """A predicted step: what a worker sends, and seconds by what they go to."""

    bytes: float
    compute_s: float
    exchange_s: float  # the method's own work
    wire_s: float  # waiting for the link, as far as no training hides it

    @property
    def seconds(self) -> float:
        return self.compute_s + self.exchange_s + self.wire_s


def step(replica: ReplicaConfig, shapes: Sequence[tuple[int, ...]], site: Site, own: OwnCost) -> StepParts:
    """Predict a step of one of `site`'s workers, as the mean over a period of local updates.

    Of an exchange in every step nothing is hidden behind backward; an average under way while workers train on is
    hidden for as long as they do.
    """
    sent = mean_traffic_of(replica, tuple(shapes), site.hosts)
    period = period_of(replica)
    compute_s = site.slowdown * site.compute_s
    rounds = sent.rounds * period  # of one exchange
    exchange_s = site.slowdown * own.seconds(num_elements(shapes), rounds) / period if site.workers > 1 else 0.0
    hidden_s = replica.sync.overlapped * compute_s
    wire_s = max(0.0, _wire_s(sent, site) + _within_s(replica, shapes, site) / period - hidden_s)
    return StepParts(sent.bytes, compute_s, exchange_s, wire_s)


def period_of(replica: ReplicaConfig) -> int:
    """Return the steps from one exchange to the next: of a searched period the first."""
    if not isinstance(replica.sync, LocalUpdatesConfig):
        return 1
    period = replica.sync.period
    return period[0] if isinstance(period, tuple) else period


def _wire_s(sent: MeanTraffic, site: Site) -> float:
    seconds = (sent.bytes + sent.awaited) * 8 / (site.mbps * 1e6 * site.goodput)
    return seconds + sent.rounds * site.latency_ms / 1e3


def _within_s(replica: ReplicaConfig, shapes: Sequence[tuple[int, ...]], site: Site) -> float:
    """Return what the workers of a host take among themselves, in one exchange."""
    if site.per_host == 1:
        return 0.0
    sent = within_node(shapes, num_workers=site.per_host, exchange=replica.exchange)
    return sent.seconds(EmulateLink(mbps=WITHIN_MBPS))
