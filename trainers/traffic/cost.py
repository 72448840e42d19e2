"""What an optimizer step costs on the wire, from shapes alone: bytes one rank sends, rounds, seconds.

The exchange counts its own bytes with these functions, so a prediction and the bill cannot drift apart.
Symbols: N workers, d gradient entries. Pure Python.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trainers.exchange.config import (
    AdaCompConfig,
    Bf16Config,
    CserConfig,
    DgcConfig,
    ExchangeConfig,
    Fp16Config,
    GTopKConfig,
    NoneConfig,
    OneBitConfig,
    PowerSgdConfig,
    QsgdConfig,
    QuantizedBase,
    QuantizedConfig,
    RandomKConfig,
    SignSgdConfig,
    SparseConfig,
    SparseKind,
    TernGradConfig,
    ThresholdConfig,
    TopKConfig,
    TwoWayConfig,
)
from trainers.methods.blocks.division import divide
from trainers.methods.sync.spec import AccordionBatchConfig, BehindConfig, EveryStepConfig, SyncConfig
from trainers.spec.config import EmulateLink
from trainers.traffic import sizes
from trainers.traffic.block_shards import BlockShards
from trainers.traffic.buckets import Bucket, Layer, split
from trainers.traffic.payload_layout import PayloadLayout, ValueFormat
from trainers.traffic.sizes import CodedLayout, as_matrix, is_worth_factors

WORD_BYTES = 4
HALF_BYTES = 2
#: 32-bit words beside the gradient in a dense exchange: the loss.
CONTROL_WORDS = 1
#: The same in one that would have been sparse: the loss, the entries that were wanted, the selector's note.
DENSE_CONTROL_WORDS = 3
#: Before every sparse payload: entries wanted, loss, finite flag, entries wanted of the fullest shard, selector's note.
HEADER_BYTES = 5 * WORD_BYTES
#: What a node's leader tells the others of a step: loss, diverged, density, in 64 bits each.
OUTCOME_BYTES = 3 * 8
#: Room for the next step's entries, relative to what is expected: the plan, or what the fullest rank wanted before.
CAPACITY_MARGIN = 1.2
#: The same where the cut-off is found anew in every step, for each rank by itself.
COUNT_MARGIN = 1.1
#: Capacities are multiples of this, so that they change rarely.
CAPACITY_MULTIPLE = 8
#: What AdaComp sends of a bin of neighbours, before it was ever measured.
ENTRIES_PER_BIN = 2
#: Entries of a block that one rank owns. Small, so that large gradients in one layer are shared out.
SHARD_BLOCK = 64


@dataclass(frozen=True)
class Traffic:
    """What one rank sends in a collective, and how many times it waits for the link's latency."""

    bytes: int
    rounds: int

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.bytes + other.bytes, self.rounds + other.rounds)

    def seconds(self, link: EmulateLink) -> float:
        """Return the least time this takes on `link`, full duplex."""
        return self.bytes * 8 / (link.mbps * 1e6) + self.rounds * link.latency_ms / 1e3


NOTHING = Traffic(0, 0)
#: Kinds whose buckets have nothing to do with each other.
Bucketwise = NoneConfig | Fp16Config | Bf16Config | SparseKind | QuantizedConfig | TwoWayConfig
#: Maps the bytes of one rank's tensor and the number of workers to traffic.
Collective = Callable[[int, int], Traffic]


def all_reduce(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of a ring all-reduce of `num_bytes`: 2(N-1)/N of them leave each rank."""
    return Traffic(math.ceil(2 * (num_workers - 1) * num_bytes / num_workers), 2 * (num_workers - 1))


def all_gather(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of a ring all-gather of `num_bytes` per rank: each payload passes each rank once."""
    return Traffic((num_workers - 1) * num_bytes, num_workers - 1)


def all_to_all(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of an all-to-all of `num_bytes` per rank, of which 1/N stays where it is."""
    return Traffic(math.ceil((num_workers - 1) * num_bytes / num_workers), num_workers - 1)


def broadcast(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of a broadcast down a binomial tree, as the ranks' mean: all but one receive it once."""
    return Traffic(math.ceil((num_workers - 1) * num_bytes / num_workers), math.ceil(math.log2(num_workers)))


def reduce(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of a sum up a binomial tree, as the ranks' mean: all but one send it once."""
    return broadcast(num_bytes, num_workers)


def point_to_point(num_bytes: int, num_workers: int) -> Traffic:
    """Return the traffic of one message to one rank."""
    return Traffic(num_bytes, 1)


def num_elements(shapes: Iterable[Sequence[int]]) -> int:
    """Return d for parameters of these shapes."""
    return sum(math.prod(shape) for shape in shapes)


def dense_step(d: int, num_workers: int) -> Traffic:
    """Return the traffic of a dense step: one all-reduce of gradient and loss."""
    return all_reduce(WORD_BYTES * (d + CONTROL_WORDS), num_workers)


def capacity_for(wanted: float, d: int, margin: float = CAPACITY_MARGIN) -> int:
    """Return the entries to make room for when `wanted` were wanted, at most d."""
    return min(d, CAPACITY_MULTIPLE * max(1, math.ceil(margin * wanted / CAPACITY_MULTIPLE)))


def payload_bytes(d: int, capacity: int, values: ValueFormat) -> int:
    """Return the bytes of a sparse payload, header and padding included."""
    return HEADER_BYTES + PayloadLayout(d, capacity, values).num_bytes


def gather(d: int, capacity: int, values: ValueFormat, num_workers: int) -> Traffic:
    """Return the traffic of sending a payload of `capacity` of `d` entries to all."""
    return all_gather(payload_bytes(d, capacity, values), num_workers)


def sharded(size: int, room: int, kept: int, values: ValueFormat, num_workers: int) -> Traffic:
    """Return the traffic of summing by owners of shards of `size` entries.

    `room` entries go from each rank to each owner, and `kept` from each owner to all.
    """
    to_owners = all_to_all(num_workers * payload_bytes(size, room, values), num_workers)
    return to_owners + all_gather(payload_bytes(size, kept, values), num_workers)


def shared(capacity: int, num_workers: int) -> Traffic:
    """Return the traffic of summing `capacity` entries that all ranks selected alike."""
    return all_reduce(WORD_BYTES * (capacity + CONTROL_WORDS), num_workers)


def tree(d: int, capacity: int, values: ValueFormat, num_workers: int) -> Traffic:
    """Return the traffic of a sum up a tree of ranks, and down again, as the ranks' mean: the first sends none up."""
    one_way = broadcast(payload_bytes(d, capacity, values), num_workers)
    return one_way + one_way


def shard_size(d: int, num_owners: int) -> int:
    """Return the entries of the largest shard of `d`: blocks are dealt out in turn."""
    return -(-d // (SHARD_BLOCK * num_owners)) * SHARD_BLOCK


def is_sharded(config: SparseConfig, num_workers: int) -> bool:
    """Whether selections are summed by owners: for `auto`, where that sends fewer bytes, at any level."""
    return config.aggregate == "sharded" or (config.aggregate == "auto" and num_workers > 2)


def step_traffic(
    shapes: Sequence[Sequence[int]], *, num_workers: int, exchange: ExchangeConfig, level: float | None = None
) -> Traffic:
    """Return the traffic of one optimizer step among `num_workers`, or among as many nodes that several workers share.

    `level` is the planned, or measured, level of an exchange that has one; of a threshold exchange, the density, as it
    may be of AdaComp. `levels` that change it are not followed: a warm-up and Accordion's critical regimes send more,
    `cat` at most this. The calibration of a threshold, once for a level, and Accordion's broadcasts are not in it.
    Neither are the meetings of `cser` and `liec_sgd`, which `trainers.traffic.drifting_cost` has. Raises ValueError
    without a level where one is needed.
    """
    buckets = split(shapes, exchange)
    if isinstance(exchange, PowerSgdConfig):
        return _low_rank(buckets, num_workers, exchange, level)
    parts = [_bucket(bucket, num_workers, exchange, level) for bucket in buckets]
    return sum(parts, start=_once(num_workers, exchange))


def meeting_traffic(
    shapes: Sequence[Sequence[int]],
    *,
    num_workers: int,
    sync: SyncConfig,
    exchange: ExchangeConfig,
    level: float | None = None,
    num_iterates: int = 1,
) -> Traffic:
    """Return the traffic of averaging once, as `step_traffic` does of a step, which it is where these are gradients.

    `num_iterates` is 2 with Schedule-Free, whose z is averaged too, and else 1.
    """
    if isinstance(sync, EveryStepConfig | AccordionBatchConfig):
        return step_traffic(shapes, num_workers=num_workers, exchange=exchange, level=level)
    if isinstance(sync, BehindConfig):
        return all_reduce(WORD_BYTES * num_iterates * num_elements(shapes), num_workers)
    return step_traffic([*shapes] * num_iterates, num_workers=num_workers, exchange=exchange, level=level)


def drawn_step(shapes: Sequence[Sequence[int]], *, num_workers: int, exchange: NoneConfig, share: float) -> Traffic:
    """Return the mean traffic of a step that draws `share` of the blocks, all equally likely; rounds are the most.

    What is drawn goes densely, with the norm of each block. A draw is never empty: of few blocks it has some more.
    """
    num_blocks = len(divide(shapes))
    drawn = share / (1 - (1 - share) ** num_blocks) * num_elements(shapes)
    sent = all_reduce(math.ceil(WORD_BYTES * (drawn + num_blocks + CONTROL_WORDS)), num_workers)
    return replace(sent, rounds=sent.rounds * len(split(shapes, exchange)))


class StepMeans(NamedTuple):
    """What one of many steps takes on average."""

    bytes: float  # sent by one rank
    seconds: float


def mean_step(meeting: Traffic, *, sync: SyncConfig, period: int, link: EmulateLink, compute_s: float) -> StepMeans:
    """Return what a step takes that computes for `compute_s` and averages every `period` steps with `meeting`.

    A method that averages while it trains on takes the longer of the two; others take their sum, whatever an exchange
    of gradients may hide behind backward.
    """
    shared_s = meeting.seconds(link) / period
    seconds = max(compute_s, shared_s) if isinstance(sync, BehindConfig) else compute_s + shared_s
    return StepMeans(bytes=meeting.bytes / period, seconds=seconds)


def within_node(shapes: Sequence[Sequence[int]], *, num_workers: int, exchange: ExchangeConfig) -> Traffic:
    """Return what one of the `num_workers` on a node sends inside of it in a step, whatever is sent between nodes.

    Gradient and loss are summed at the leader, and what it has made of them is broadcast.
    """
    summed = [WORD_BYTES * bucket.num_elements for bucket in split(shapes, exchange)]
    up = [reduce(num_bytes, num_workers) for num_bytes in (WORD_BYTES * CONTROL_WORDS, *summed)]
    down = [broadcast(num_bytes, num_workers) for num_bytes in (OUTCOME_BYTES, sum(summed))]
    return sum((*up, *down), start=NOTHING)


def _once(num_workers: int, exchange: ExchangeConfig) -> Traffic:
    """Return what a step sends beside its buckets: the loss where it cannot ride in them."""
    match exchange:
        case Fp16Config() | Bf16Config():
            return all_reduce(WORD_BYTES, num_workers)
    return NOTHING


def _bucket(bucket: Bucket, num_workers: int, exchange: Bucketwise, level: float | None) -> Traffic:
    match exchange:
        case NoneConfig():
            return _dense(bucket, num_workers)
        case Fp16Config() | Bf16Config():
            return all_reduce(HALF_BYTES * bucket.num_elements, num_workers)
        case QuantizedBase():
            return all_gather(WORD_BYTES + coded(bucket, exchange).num_bytes, num_workers)
        case CserConfig():
            return gathered_signs(bucket, num_workers, exchange)
        case TwoWayConfig():
            return two_way(bucket.num_elements, num_workers, exchange.block)
        case AdaCompConfig() if level is None:
            return _sparse(bucket, num_workers, exchange, first_capacity(bucket, exchange))
        case SparseConfig() if level == 1 and not isinstance(exchange, AdaCompConfig):
            return _dense(bucket, num_workers)
        case SparseConfig():
            return _sparse(bucket, num_workers, exchange, bucket_capacity(bucket, exchange, _density(level)))


def _dense(bucket: Bucket, num_workers: int) -> Traffic:
    """Return a bucket's part of dense training; the last one takes the loss along."""
    control = CONTROL_WORDS if bucket.start == 0 else 0
    return all_reduce(WORD_BYTES * (bucket.num_elements + control), num_workers)


def coded(bucket: Bucket, exchange: QuantizedConfig) -> CodedLayout:
    """Return what a quantizer sends of a bucket, behind the loss."""
    d, num_layers = bucket.num_elements, len(bucket.layers)
    match exchange:
        case QsgdConfig():
            return sizes.qsgd(d, levels=exchange.levels, bucket=exchange.bucket)
        case TernGradConfig():
            return sizes.terngrad(d, num_layers)
        case SignSgdConfig():
            return sizes.scaled_sign(d, num_layers) if exchange.feedback else sizes.majority_sign(d)
        case OneBitConfig():
            return sizes.onebit(d, num_layers)


def two_way(d: int, num_workers: int, block: int) -> Traffic:
    """Return the traffic of signs to the owners of their entries, with the loss, and of their sums' signs to all."""
    row = BlockShards(d, num_workers, block).row_bytes
    return all_to_all(num_workers * (WORD_BYTES + row), num_workers) + all_gather(row, num_workers)


def gathered_signs(bucket: Bucket, num_workers: int, exchange: CserConfig, num_payloads: int = 1) -> Traffic:
    """Return the traffic of a bucket's signs to all, with the loss; `num_payloads` is 2 where errors ride along."""
    payload = sizes.block_sign(bucket.num_elements, exchange.block).num_bytes
    return all_gather(WORD_BYTES + num_payloads * payload, num_workers)


def _density(level: float | None) -> float:
    if level is None or not 0 < level <= 1:
        raise ValueError(f"`level` must be a density in (0, 1] for a sparse exchange, got {level}")
    return level


def bin_size(layer: Layer, exchange: AdaCompConfig) -> int:
    """Return the entries of AdaComp's bins in a layer; a convolution, along any axes, has three dimensions or more."""
    return exchange.conv_bin if len(layer.shape) > 2 else exchange.other_bin


def first_capacity(bucket: Bucket, exchange: AdaCompConfig) -> int:
    """Return the entries that AdaComp makes room for as long as it has measured none."""
    num_bins = sum(-(-layer.num_elements // bin_size(layer, exchange)) for layer in bucket.layers)
    return capacity_for(ENTRIES_PER_BIN * num_bins, bucket.num_elements)


def bucket_capacity(bucket: Bucket, exchange: SparseKind, density: float) -> int:
    """Return the entries that a bucket's payload has room for."""
    parts = bucket.layers if isinstance(exchange, TopKConfig) and exchange.scope == "layer" else (bucket,)
    return sum(_room(part.num_elements, exchange, density) for part in parts)


def _room(d: int, exchange: SparseKind, density: float) -> int:
    match exchange:
        case RandomKConfig() | GTopKConfig() | TopKConfig(scope="layer" | "bucket", selection="exact"):
            return sizes.num_selected(d, density)
        case ThresholdConfig() | AdaCompConfig() | TopKConfig(scope="global"):
            return capacity_for(density * d, d)
        case TopKConfig() | DgcConfig():
            return capacity_for(density * d, d, COUNT_MARGIN)


def _sparse(bucket: Bucket, num_workers: int, exchange: SparseKind, capacity: int) -> Traffic:
    """Return a bucket's part; it goes densely where that takes fewer bytes."""
    d = bucket.num_elements
    dense = dense_instead(d, num_workers)
    sparse = dense if capacity == d else selected(d, num_workers, exchange, capacity)
    return dense if sparse.bytes > dense.bytes else sparse


def selected(d: int, num_workers: int, exchange: SparseKind, capacity: int) -> Traffic:
    """Return the traffic of a sparse bucket of `d` entries whose payloads have room for `capacity`."""
    if isinstance(exchange, RandomKConfig):
        return shared(capacity, num_workers)
    if isinstance(exchange, GTopKConfig):
        return tree(d, capacity, exchange.values, num_workers)
    if not is_sharded(exchange, num_workers):
        return gather(d, capacity, exchange.values, num_workers)
    size = shard_size(d, num_workers)
    room = capacity_for(capacity / num_workers, size)
    return sharded(size, room, min(size, -(-capacity // num_workers)), exchange.values, num_workers)


def dense_instead(d: int, num_workers: int) -> Traffic:
    """Return the traffic of a bucket that goes densely because that takes fewer bytes."""
    return all_reduce(WORD_BYTES * (d + DENSE_CONTROL_WORDS), num_workers)


def _low_rank(buckets: Sequence[Bucket], num_workers: int, exchange: PowerSgdConfig, level: float | None) -> Traffic:
    """Return PowerSGD's: a collective for each bucket, and one in float32 for all second factors and the loss."""
    width = HALF_BYTES if exchange.values == "float16" else WORD_BYTES
    words = [_factor_words(bucket, exchange, round(exchange.check_level(level))) for bucket in buckets]
    firsts = [all_reduce(width * first, num_workers) for first, _ in words]
    return sum(firsts, start=all_reduce(WORD_BYTES * (1 + sum(second for _, second in words)), num_workers))


def _factor_words(bucket: Bucket, exchange: PowerSgdConfig, rank: int) -> tuple[int, int]:
    """Return the numbers in a bucket's first factors and in what stays dense, and those in its second factors."""
    now = later = 0
    for layer in bucket.layers:
        if is_worth_factors(layer.shape, rank=rank, min_rate=exchange.min_saving):
            sides = as_matrix(layer.shape)
            now, later = now + rank * max(sides), later + rank * min(sides)
        else:
            now += layer.num_elements
    return now, later
