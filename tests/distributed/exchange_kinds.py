"""What all kinds of exchange are asked alike, on one rank of a real group."""

import math
from typing import Any

import torch
import torch.distributed as dist
from exchange_bench import LOSS, SHAPES, Bench, digest, flat, gradients, on_nodes
from torch import Tensor

from trainers import cost
from trainers.config import ExchangeConfig, ThresholdConfig
from trainers.exchange.config import (
    AdaCompConfig,
    Bf16Config,
    DgcConfig,
    Fp16Config,
    GTopKConfig,
    NoneConfig,
    OneBitConfig,
    PowerSgdConfig,
    QsgdConfig,
    RandomKConfig,
    SignSgdConfig,
    TernGradConfig,
    TopKConfig,
)
from trainers.exchange.wires import Wires

Kinds = dict[str, tuple[ExchangeConfig, float | None]]  # with the level to use

#: What loses nothing: all that is not sent is kept.
CONSERVING: Kinds = {
    "none": (NoneConfig(), None),
    "threshold": (ThresholdConfig(density=(0.01, 1.0)), 0.1),
    "threshold, absolute": (ThresholdConfig(search="absolute", threshold=2.0, aggregate="gather"), 2.0),
    "topk": (TopKConfig(density=0.1), 0.1),
    "topk, by layer": (TopKConfig(density=0.1, selection="exact", scope="layer", aggregate="gather"), 0.1),
    "topk, global": (TopKConfig(density=0.1, scope="global"), 0.1),
    "randomk": (RandomKConfig(density=0.1), 0.1),
    "randomk, block": (RandomKConfig(density=0.1, block=True), 0.1),
    "dgc": (DgcConfig(density=0.1), 0.1),
    "dgc, gathered": (DgcConfig(density=0.1, masking=False, aggregate="gather"), 0.1),
    "gtopk": (GTopKConfig(density=0.1), 0.1),
    "adacomp": (AdaCompConfig(), None),
    "adacomp, small bins": (AdaCompConfig(conv_bin=20, other_bin=40, aggregate="gather"), None),
    "powersgd": (PowerSgdConfig(rank=2, values="float32"), 2),
    "scaled sign": (SignSgdConfig(), None),
    "onebit": (OneBitConfig(), None),
    "ef21": (TopKConfig(density=0.1, memory="ef21"), 0.1),
}
#: What is right on average.
UNBIASED: Kinds = {
    "randomk": (RandomKConfig(density=0.5, memory="none"), 0.5),
    "qsgd": (QsgdConfig(levels=7), None),
    "terngrad": (TernGradConfig(clip=100.0), None),
}
KINDS: Kinds = CONSERVING | {
    "fp16": (Fp16Config(), None),
    "bf16": (Bf16Config(), None),
    "qsgd": (QsgdConfig(), None),
    "terngrad": (TernGradConfig(), None),
    "majority": (SignSgdConfig(feedback=False), None),
}
#: Whose bytes do not follow from the gradient.
FORESEEN = [
    "none", "fp16", "bf16", "topk, by layer", "randomk", "randomk, block", "dgc, gathered", "gtopk", "powersgd",
    "scaled sign", "onebit", "qsgd", "terngrad", "majority",
]  # fmt: skip
#: The same for the first step.
FORESEEN_FIRST = ["threshold", "topk", "topk, global", "dgc", "adacomp", "adacomp, small bins", "ef21"]
FOR_TWO = ["topk", "gtopk", "randomk", "dgc", "adacomp", "powersgd", "onebit", "qsgd"]
#: Two nodes of two ranks, and one of three beside one of one.
EVEN, UNEVEN = ((0, 1), (2, 3)), ((0, 2, 3), (1,))
FOR_NODES = {
    EVEN: ["none", "threshold", "topk", "dgc", "randomk", "gtopk", "adacomp", "powersgd", "onebit", "qsgd", "ef21"],
    UNEVEN: ["none", "threshold", "dgc, gathered", "powersgd", "terngrad"],
}
FOR_FOUR = ["topk", "gtopk", "randomk", "powersgd", "scaled sign", "terngrad", "ef21"]
#: At a level that sends everything.
DENSE: Kinds = {
    "threshold 0": (ThresholdConfig(search="absolute", threshold=0.0), 0.0),
    "density 1": (ThresholdConfig(density=1.0), 1.0),
    "topk": (TopKConfig(density=1.0), 1.0),
    "topk, global": (TopKConfig(density=1.0, scope="global"), 1.0),
    "randomk": (RandomKConfig(density=1.0), 1.0),
    "dgc": (DgcConfig(density=1.0), 1.0),
    "gtopk": (GTopKConfig(density=1.0), 1.0),
}


def kinds(rank: int, num_workers: int) -> dict[str, Any]:
    """What the laws of all exchanges are about, by kind."""
    return {name: _trial(config, level, rank, num_workers) for name, (config, level) in KINDS.items()}


def pairs(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for pairs of the ranks."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, num_workers, 2)]
    return {name: _trial(*KINDS[name], rank % 2, 2, flat(2, groups[rank // 2])) for name in FOR_TWO}


def kinds_on_even_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for ranks that share nodes."""
    wires = on_nodes(EVEN, rank)
    return {name: _trial(*KINDS[name], rank, num_workers, wires) for name in FOR_NODES[EVEN]}


def kinds_on_uneven_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    wires = on_nodes(UNEVEN, rank)
    return {name: _trial(*KINDS[name], rank, num_workers, wires) for name in FOR_NODES[UNEVEN]}


def kinds_of_four(rank: int, num_workers: int) -> dict[str, Any]:
    return {name: _trial(*KINDS[name], rank, num_workers) for name in FOR_FOUR}


def _trial(
    config: ExchangeConfig, level: float | None, rank: int, num_workers: int, wires: Wires | None = None
) -> dict[str, Any]:
    """Six steps, one that is not finite, two more, and the same two from the state before; and one of zeros."""
    bench = Bench(config, num_workers, wires=wires)
    sent = [_sent(bench, gradients(rank, step), level) for step in range(6)]
    lost, before = bench.lost(), bench.state()
    bad = gradients(rank, 6)
    bad[7] = float("nan" if num_workers == 2 else "inf") if rank == num_workers - 1 else bad[7]
    outcome = {
        "lost": lost,
        "diverged": bench.step(bad, level).diverged,
        "state kept": digest(list(bench.state()[0].values())) == digest(list(before[0].values()))
        and bench.state()[1] == before[1],
        "leads": bench.wires.leads,
        "bytes": [between for between, _ in sent],
        "predicted": cost.step_traffic(
            SHAPES, num_workers=bench.num_nodes, exchange=bench.config, level=_as_density(bench.config, level)
        ).bytes,
        "bytes within": [within for _, within in sent],
        "predicted within": cost.within_node(
            SHAPES, num_workers=bench.wires.within.num_workers, exchange=bench.config
        ).bytes,
    }
    restored = Bench(config, num_workers, wires=wires)
    restored.load(before)
    bits = [_bits_of_two(each, rank, level) for each in (bench, restored)]
    idle = Bench(config, num_workers, wires=wires)
    idle.step(torch.zeros_like(bad), level)
    return outcome | {
        "bits": bits[0],
        "restored": bits[0] == bits[1],
        "of zeros": [float(idle.buffer.gradient.min()), float(idle.buffer.gradient.max())],
    }


def _sent(bench: Bench, gradient: Tensor, level: float | None) -> list[int]:
    """Take a step; returns the bytes that this rank sent in it: between nodes, and within its own."""
    ledgers = [bench.wires.between.ledger, bench.wires.within.ledger]
    for ledger in ledgers:
        ledger.take()
    assert bench.step(gradient, level).loss == LOSS
    return [sum(ledger.take().values()) for ledger in ledgers]


def _bits_of_two(bench: Bench, rank: int, level: float | None) -> list[str]:
    bits = []
    for step in (7, 8):
        bench.step(gradients(rank, step), level)
        bits.append(digest([bench.buffer.gradient]))
    return bits


def _as_density(config: ExchangeConfig, level: float | None) -> float | None:
    return 0.1 if isinstance(config, ThresholdConfig) else level


def averages(rank: int, num_workers: int) -> dict[str, Any]:
    """How far one step is from the mean gradient, and the mean of 32 steps, by kind; relative."""
    gradient, found = gradients(rank, 0), {}
    mean = gradient.clone()
    dist.all_reduce(mean)
    mean /= num_workers
    for name, (config, level) in UNBIASED.items():
        bench, errors = Bench(config, num_workers), []
        for step in range(1, 33):
            bench.step(gradient, level)
            error = bench.received / (num_workers * step) - mean
            errors.append(float(error.norm() / mean.norm()))
        found[name] = [errors[0], errors[-1]]
    return found


def low_rank(rank: int, num_workers: int) -> dict[str, Any]:
    """How far PowerSGD is from the mean, at a rank beyond all layers', and for gradients of no more than its rank."""
    worst = {}
    for name, each_rank in (("full", 1024), ("of its rank", 4)):
        bench = Bench(PowerSgdConfig(rank=each_rank, values="float32"), num_workers)
        gradient = _of_low_rank(rank) if name == "of its rank" else gradients(rank, 0)
        mean = gradient.clone()
        dist.all_reduce(mean)
        mean /= num_workers
        bench.step(gradient, each_rank)
        worst[name] = float((bench.buffer.gradient - mean).abs().max() / mean.abs().max())
    return worst


def _of_low_rank(rank: int) -> Tensor:
    """Return a gradient whose matrices have rank 1, so that the sum over four ranks has no more than 4."""
    generator = torch.Generator().manual_seed(rank)
    layers = [
        torch.randn(math.prod(shape[:1]), 1, generator=generator)
        * torch.randn(1, math.prod(shape[1:]), generator=generator)
        for shape in SHAPES
    ]
    return torch.cat([layer.flatten() for layer in layers])
