"""Predicted traffic and time of one step of a job, from a list of shapes. Pure Python."""

import math
from collections.abc import Sequence
from dataclasses import replace

from trainers.spec.exchange import ExchangeBase
from trainers.traffic.buckets import split
from trainers.traffic.collectives import (
    CONTROL_WORDS,
    NOTHING,
    OUTCOME_BYTES,
    Traffic,
    all_reduce,
    broadcast,
    num_elements,
    reduce,
)
from trainers.traffic.division import divide
from trainers.traffic.sizes import WORD_BYTES


def step_traffic(
    shapes: Sequence[Sequence[int]], *, num_workers: int, exchange: ExchangeBase, level: float | None = None
) -> Traffic:
    """Return the traffic of one optimizer step among `num_workers`, or among as many nodes that several workers share.

    `level` is the planned, or measured, level of an exchange that has one; of a threshold exchange, the density, as it
    may be of AdaComp. `levels` that change it are not followed: a warm-up and Accordion's critical regimes send more,
    `cat` at most this. The calibration of a threshold, once for a level, and Accordion's broadcasts are not in it.
    Neither are the averages of `cser` and `liec_sgd`, which their configurations predict, and the dense steps of
    `onebit_adam` and `zero_one_adam`. Raises ValueError without a level where one is needed.
    """
    return exchange.step_traffic(split(shapes, exchange), num_workers, level)


def drawn_step(shapes: Sequence[Sequence[int]], *, num_workers: int, exchange: ExchangeBase, share: float) -> Traffic:
    """Return the mean traffic of a step that draws `share` of the blocks, all equally likely; rounds are the most.

    What is drawn goes densely, with the norm of each block. A draw is never empty: of few blocks it has some more.
    """
    num_blocks = len(divide(shapes))
    drawn = share / (1 - (1 - share) ** num_blocks) * num_elements(shapes)
    words = num_blocks + CONTROL_WORDS
    sent = all_reduce(math.ceil(WORD_BYTES * (drawn + words)), num_workers)
    most = all_reduce(WORD_BYTES * (num_elements(shapes) + words), num_workers)
    return replace(sent, rounds=most.rounds * len(split(shapes, exchange)))


def within_node(shapes: Sequence[Sequence[int]], *, num_workers: int, exchange: ExchangeBase) -> Traffic:
    """Return what one of the `num_workers` on a node sends inside of it in a step, whatever is sent between nodes.

    Gradient and loss are summed at the leader, and what it has made of them is broadcast.
    """
    summed = [WORD_BYTES * bucket.num_elements for bucket in split(shapes, exchange)]
    up = [reduce(num_bytes, num_workers) for num_bytes in (WORD_BYTES * CONTROL_WORDS, *summed)]
    down = [broadcast(num_bytes, num_workers) for num_bytes in (OUTCOME_BYTES, sum(summed))]
    return sum((*up, *down), start=NOTHING)
