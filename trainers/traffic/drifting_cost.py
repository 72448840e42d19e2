"""What the exchanges send whose workers drift apart and meet now and then. Pure Python."""

from collections.abc import Sequence
from typing import NamedTuple

from trainers.exchange.config import CserConfig, LiecSgdConfig, NoneConfig
from trainers.traffic import cost
from trainers.traffic.buckets import split
from trainers.traffic.cost import NOTHING, Traffic

Shapes = Sequence[Sequence[int]]


def meeting_traffic(
    shapes: Shapes, *, num_workers: int, exchange: CserConfig | LiecSgdConfig, num_iterates: int = 1
) -> Traffic:
    """Return the traffic of a step in which workers meet; of others `cost.step_traffic` returns it.

    `num_iterates` is 2 with Schedule-Free, whose z is averaged too, and else 1.
    """
    if isinstance(exchange, CserConfig):
        buckets = split(shapes, exchange)
        return sum((cost.gathered_signs(each, num_workers, exchange, num_payloads=2) for each in buckets), NOTHING)
    dense = NoneConfig(bucket_mib=exchange.bucket_mib)
    gradients = cost.step_traffic(shapes, num_workers=num_workers, exchange=dense)
    if exchange.period == 1:  # nobody drifts apart
        return gradients
    return gradients + cost.all_reduce(cost.WORD_BYTES * num_iterates * cost.num_elements(shapes), num_workers)


class Mean(NamedTuple):
    """What a step sends, as the mean over a period."""

    bytes: float
    rounds: float


def mean_traffic(
    shapes: Shapes, *, num_workers: int, exchange: CserConfig | LiecSgdConfig, num_iterates: int = 1
) -> Mean:
    """Return the mean over the steps of a period, of which the last is a meeting."""
    step = cost.step_traffic(shapes, num_workers=num_workers, exchange=exchange)
    meeting = meeting_traffic(shapes, num_workers=num_workers, exchange=exchange, num_iterates=num_iterates)
    others = exchange.period - 1
    return Mean(
        bytes=(others * step.bytes + meeting.bytes) / exchange.period,
        rounds=(others * step.rounds + meeting.rounds) / exchange.period,
    )
