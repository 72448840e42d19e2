"""What an option of `exchange: {kind: auto}` sends in a step, as predicted from a list of shapes: pure Python."""

from collections.abc import Sequence
from typing import NamedTuple

from trainers.exchange.options import LOCAL, Option, exchange_of
from trainers.spec.config import EmulateLink, ExchangeBase
from trainers.traffic import cost


class MeanTraffic(NamedTuple):
    """What one rank sends in one of many steps, and how many times it waits for the link's latency, on average."""

    bytes: float
    rounds: float

    def seconds(self, link: EmulateLink) -> float:
        """Return the least time this takes on `link`, full duplex."""
        return self.bytes * 8 / (link.mbps * 1e6) + self.rounds * link.latency_ms / 1e3


def mean_traffic(
    option: Option, shapes: Sequence[Sequence[int]], *, num_workers: int, like: ExchangeBase, num_iterates: int = 1
) -> MeanTraffic:
    """Return the traffic of a step between `num_workers` nodes; `like` says how gradients are cut into buckets.

    Local updates average `num_iterates` vectors of parameters once a period, which is 2 with Schedule-Free.
    """
    is_local = option.kind == LOCAL
    sent = cost.step_traffic(
        [*shapes] * (num_iterates if is_local else 1),
        num_workers=num_workers,
        exchange=exchange_of([option], like=like),
        level=None if is_local else option.level,
    )
    period = option.level if is_local and option.level else 1
    return MeanTraffic(sent.bytes / period, sent.rounds / period)
