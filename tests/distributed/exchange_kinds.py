"""Checks that all kinds of exchange must pass, on one rank of a real group."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from exchange_harness import LOSS, SHAPES, Bench, D, Place, digest, gradients
from torch import Tensor

from trainers.exchange.kernels import operators
from trainers.methods import registry
from trainers.methods.exchange.adacomp.spec import AdaCompConfig
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.methods.exchange.demo.spec import DemoConfig
from trainers.methods.exchange.dense.spec import Bf16Config, Fp16Config, NoneConfig
from trainers.methods.exchange.dgc.spec import DgcConfig
from trainers.methods.exchange.dion.spec import DionConfig
from trainers.methods.exchange.dist_ef_sgd.spec import DistEfSgdConfig
from trainers.methods.exchange.doublesqueeze.spec import DoubleSqueezeConfig
from trainers.methods.exchange.gtopk.spec import GTopKConfig
from trainers.methods.exchange.onebit.spec import OneBitConfig
from trainers.methods.exchange.onebit_adam.spec import OneBitAdamConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.qsgd.spec import QsgdConfig
from trainers.methods.exchange.randomk.spec import RandomKConfig
from trainers.methods.exchange.signsgd.spec import SignSgdConfig
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.methods.exchange.terngrad.spec import TernGradConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.exchange.zero_one_adam.spec import ZeroOneAdamConfig
from trainers.spec.sparse import SparseConfig
from trainers.spec.two_way import DriftingConfig
from trainers.traffic import cost


@dataclass(frozen=True)
class Kind:
    """An exchange that must pass the laws, and the level to use."""

    config: ExchangeConfig
    level: float | None = None
    foreseen: Sequence[int] = range(4)  # of its first four steps, those that send the predicted bytes


Kinds = dict[str, Kind]
#: The first payloads have the predicted room. Later ones have as much as those of the step before needed.
FIRST = (0,)

#: What loses nothing: all that is not sent is kept.
CONSERVING: Kinds = {
    "none": Kind(NoneConfig()),
    "threshold": Kind(ThresholdConfig(density=(0.01, 1.0)), 0.1, foreseen=FIRST),
    "threshold, absolute": Kind(
        ThresholdConfig(search="absolute", threshold=2.0, aggregate="gather"),
        2.0,
        foreseen=(),  # how many entries reach it follows from the gradients
    ),
    "topk": Kind(TopKConfig(density=0.1), 0.1, foreseen=FIRST),
    "topk, by layer": Kind(TopKConfig(density=0.1, selection="exact", scope="layer", aggregate="gather"), 0.1),
    "topk, global": Kind(TopKConfig(density=0.1, scope="global"), 0.1, foreseen=FIRST),
    "topk, signs": Kind(TopKConfig(density=0.1, values="sign"), 0.1, foreseen=FIRST),
    "randomk": Kind(RandomKConfig(density=0.1), 0.1),
    "randomk, block": Kind(RandomKConfig(density=0.1, block=True), 0.1),
    "dgc": Kind(DgcConfig(density=0.1), 0.1, foreseen=FIRST),
    "dgc, gathered": Kind(DgcConfig(density=0.1, masking=False, aggregate="gather"), 0.1),
    "gtopk": Kind(GTopKConfig(density=0.1), 0.1),
    "adacomp": Kind(AdaCompConfig(), foreseen=FIRST),
    "adacomp, small bins": Kind(AdaCompConfig(conv_bin=20, other_bin=40, aggregate="gather"), foreseen=FIRST),
    "powersgd": Kind(PowerSgdConfig(rank=2, values="float32"), 2),
    "scaled sign": Kind(SignSgdConfig()),
    "onebit": Kind(OneBitConfig()),
    "ef21": Kind(TopKConfig(density=0.1, memory="ef21"), 0.1, foreseen=FIRST),
    "doublesqueeze": Kind(DoubleSqueezeConfig(block=100)),
    "dist_ef_sgd": Kind(DistEfSgdConfig()),
    "blockwise": Kind(BlockwiseConfig(block=20)),
    "blockwise, 8 bits": Kind(BlockwiseConfig(bits=8)),
    "sparse_loco": Kind(SparseLoCoConfig(density=0.1), 0.1),
    "sparse_loco, short chunks": Kind(SparseLoCoConfig(density=0.05, chunk=100, decay=0.5), 0.05),
    "sparse_loco, no decay": Kind(SparseLoCoConfig(density=0.1, decay=1.0), 0.1),
}
#: What is right on average.
UNBIASED: Kinds = {
    "randomk": Kind(RandomKConfig(density=0.5, memory="none"), 0.5),
    "qsgd": Kind(QsgdConfig(levels=7)),
    "terngrad": Kind(TernGradConfig(clip=100.0)),
}
KINDS: Kinds = {
    "fp16": Kind(Fp16Config()),
    "bf16": Kind(Bf16Config()),
    "qsgd": Kind(QsgdConfig()),
    "terngrad": Kind(TernGradConfig()),
    "majority": Kind(SignSgdConfig(feedback=False)),
    "demo": Kind(DemoConfig(density=0.05), 0.05),
    "dion": Kind(DionConfig(), 0.25),
    "onebit_adam": Kind(OneBitAdamConfig(freeze_steps=2, block=100), foreseen=(2, 3)),  # the others are dense
    "zero_one_adam": Kind(ZeroOneAdamConfig(refreshes=1, block=100), foreseen=(1, 3)),
}
#: A method that stands in no table above must pass all laws; if it sends differences of parameters, it loses nothing.
for _method in registry.of("exchange"):
    _config = _method.config.model_validate(_method.least)
    _is_listed = any(_method.kind == kind.config.kind for kind in (CONSERVING | KINDS).values())
    if not _is_listed and not isinstance(_config, DriftingConfig):  # whose workers differ
        (KINDS if _config.difference_conflict() else CONSERVING)[_method.kind] = Kind(_config, _config.level)
KINDS = CONSERVING | KINDS
#: Two nodes of two ranks, and one of three beside one of one.
EVEN, UNEVEN = ((0, 1), (2, 3)), ((0, 2, 3), (1,))
#: At a level that sends everything.
DENSE: Kinds = {
    "threshold 0": Kind(ThresholdConfig(search="absolute", threshold=0.0), 0.0),
    "density 1": Kind(ThresholdConfig(density=1.0), 1.0),
    "topk": Kind(TopKConfig(density=1.0), 1.0),
    "topk, global": Kind(TopKConfig(density=1.0, scope="global"), 1.0),
    "randomk": Kind(RandomKConfig(density=1.0), 1.0),
    "dgc": Kind(DgcConfig(density=1.0), 1.0),
    "gtopk": Kind(GTopKConfig(density=1.0), 1.0),
}
#: What sends everything, but not as a dense exchange would: equal up to rounding.
NEARLY_DENSE: Kinds = {
    "powersgd, full": Kind(PowerSgdConfig(rank=1024, values="float32"), 1024),
    "powersgd, of its rank": Kind(PowerSgdConfig(rank=4, values="float32"), 4),
    "ef21": Kind(TopKConfig(density=1.0, memory="ef21"), 1.0),
}
#: Whose memory follows the learning rate.
CORRECTED: Kinds = {
    "threshold": Kind(ThresholdConfig(density=(0.01, 1.0), lr_corrected=True), 0.1),
    "topk": Kind(TopKConfig(density=(0.01, 1.0), lr_corrected=True), 0.1),
    "topk, gathered": Kind(TopKConfig(density=(0.01, 1.0), lr_corrected=True, aggregate="gather"), 0.1),
    "randomk": Kind(RandomKConfig(density=(0.01, 1.0), lr_corrected=True), 0.1),
    "gtopk": Kind(GTopKConfig(density=(0.01, 1.0), lr_corrected=True), 0.1),
    "adacomp": Kind(AdaCompConfig(lr_corrected=True)),
    # At rank 1 one layer more has factors.
    "powersgd": Kind(PowerSgdConfig(rank=(1, 4), values="float32", lr_corrected=True), 2),
    "scaled sign": Kind(SignSgdConfig(lr_corrected=True)),
    "onebit": Kind(OneBitConfig(lr_corrected=True)),
    "dist_ef_sgd": Kind(DistEfSgdConfig(block=100)),
}
#: Of a ramp, a plateau and a decay.
RATES = (0.025, 0.05, 0.1, 0.1, 0.4, 0.05, 0.0125, 0.2)
#: What can be told another level from step to step.
STEERED: Kinds = {
    "threshold": Kind(ThresholdConfig(density=(0.01, 1.0)), 1.0),
    "threshold, absolute": Kind(ThresholdConfig(search="absolute", threshold=(0.1, 3.0)), 2.0),
    "topk, by layer": Kind(TopKConfig(density=(0.01, 1.0), scope="layer", aggregate="gather"), 1.0),
    "topk, global": Kind(TopKConfig(density=(0.01, 1.0), scope="global"), 1.0),
    "randomk": Kind(RandomKConfig(density=(0.01, 1.0)), 1.0),
    "dgc": Kind(DgcConfig(density=(0.01, 1.0)), 1.0),
    "gtopk": Kind(GTopKConfig(density=(0.01, 1.0)), 1.0),
    "ef21": Kind(TopKConfig(density=(0.01, 1.0), memory="ef21"), 1.0),
    "sparse_loco": Kind(SparseLoCoConfig(density=(0.01, 1.0)), 1.0),
    "powersgd": Kind(PowerSgdConfig(rank=(1, 4), values="float32"), 4),  # from rank 2 on a layer travels densely
}
#: What compares entries with each other. Many are equal where gradients are computed in fewer bits.
COMPARING = (SparseConfig, SparseLoCoConfig, DemoConfig)
#: What gradients are computed in; the exchange has them in float32.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _trials(place: Place, dtypes: Iterable[str] = ("float32",)) -> dict[str, Any]:
    """What the laws of all exchanges are about, by the gradients' type and by kind."""
    return {
        dtype: {
            name: trial(kind.config, kind.level, place, DTYPES[dtype])
            for name, kind in KINDS.items()
            if dtype == "float32" or isinstance(kind.config, COMPARING)
        }
        for dtype in dtypes
    }


def kinds(rank: int, num_workers: int) -> dict[str, Any]:
    return _trials(Place(rank, num_workers), dtypes=DTYPES)


def pairs(rank: int, num_workers: int) -> dict[str, Any]:
    """The same, and the limits, for pairs of the ranks."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, num_workers, 2)]
    place = Place(rank % 2, 2, groups[rank // 2])
    return {"kinds": _trials(place), "dense_limits": _dense_limits(place), "near_limits": _near_limits(place)}


def kinds_on_even_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for ranks that share nodes."""
    return _trials(Place.on_nodes(rank, EVEN))


def kinds_on_uneven_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    return _trials(Place.on_nodes(rank, UNEVEN))


def kinds_by_operators(rank: int, num_workers: int) -> dict[str, Any]:
    """The same by torch's operators, as on a GPU that has no Triton."""
    with mock.patch.object(operators, "needed_for", lambda vector: True):
        return _trials(Place(rank, num_workers), DTYPES)


def trial(config: ExchangeConfig, level: float | None, place: Place, dtype: torch.dtype) -> dict[str, Any]:
    """Four steps, three that are not finite, two more, and the same two from the state before; and two of zeros."""
    bench = Bench(config, place)
    sent = [_sent(bench, gradients(place.rank, step, dtype), level) for step in range(4)]
    lost, before = bench.lost(), bench.state()
    refused = _refused(bench, gradients(place.rank, 6, dtype), level)
    restored, idle = Bench(config, place), Bench(config, place)
    restored.load(before)
    bits = [_bits_of_two(each, level, dtype) for each in (bench, restored)]
    for _ in range(2):
        idle.step(torch.zeros(D), level)
    return refused | {
        "lost": lost,
        "memory": digest([before[0][name] for name in ("residual", "sent") if name in before[0]]),
        "leads": bench.node_links.leads,
        "bytes": [between for between, _ in sent],
        "predicted": cost.step_traffic(
            SHAPES, num_workers=bench.num_nodes, exchange=bench.config, level=_as_density(bench.config, level)
        ).bytes,
        "bytes within": [within for _, within in sent],
        "predicted within": cost.within_node(
            SHAPES, num_workers=bench.node_links.within.num_workers, exchange=bench.config
        ).bytes,
        "bits": bits[0],
        "restored": bits[0] == bits[1],
        "of zeros": [float(idle.received.min()), float(idle.received.max())],
    }


def _sent(bench: Bench, gradient: Tensor, level: float | None) -> list[int]:
    """Take a step; returns the bytes that this rank sent in it: between nodes, and within its own."""
    ledgers = [bench.node_links.between.ledger, bench.node_links.within.ledger]
    for ledger in ledgers:
        ledger.take()
    assert bench.step(gradient, level).loss == LOSS
    return [sum(ledger.take().values()) for ledger in ledgers]


def _refused(bench: Bench, gradient: Tensor, level: float | None) -> dict[str, bool]:
    """Take steps in which the last rank has an infinite gradient, one that is no number, and such a loss."""
    tensors, scalars = bench.state()
    is_last = bench.place.rank == bench.num_workers - 1
    diverged = []
    for entry, loss in ((math.inf, 1.0), (math.nan, 1.0), (1.0, math.nan)):
        bad = gradient.clone()
        bad[7] = entry if is_last else bad[7]
        diverged.append(bench.step(bad, level, loss=torch.tensor(loss if is_last else 1.0)).diverged)
    after = bench.state()
    kept = digest(list(after[0].values())) == digest(list(tensors.values())) and after[1] == scalars
    return {"diverged": all(diverged), "state kept": kept}


def _bits_of_two(bench: Bench, level: float | None, dtype: torch.dtype) -> list[str]:
    bits = []
    for step in (7, 8):
        bench.step(gradients(bench.place.rank, step, dtype), level)
        bits.append(digest([bench.buffer.gradient]))
    return bits


def _as_density(config: ExchangeConfig, level: float | None) -> float | None:
    return 0.1 if isinstance(config, ThresholdConfig) else level


def dense_limits(rank: int, num_workers: int) -> dict[str, Any]:
    return _dense_limits(Place(rank, num_workers))


def dense_limits_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for ranks that share nodes."""
    return _dense_limits(Place.on_nodes(rank, EVEN))


def _dense_limits(place: Place) -> dict[str, Any]:
    """The bits of five aggregated gradients of which all is sent, by exchange."""
    benches = {"none": (Bench(NoneConfig(), place), None)} | {
        name: (Bench(kind.config, place), kind.level) for name, kind in DENSE.items()
    }
    bits: dict[str, list[str]] = {name: [] for name in benches}
    for step in range(5):
        for name, (bench, level) in benches.items():
            bench.step(gradients(place.rank, step), level)
            bits[name].append(digest([bench.buffer.gradient]))
    return bits


def near_limits(rank: int, num_workers: int) -> dict[str, float]:
    return _near_limits(Place(rank, num_workers))


def _near_limits(place: Place) -> dict[str, float]:
    """How far kinds that send everything in another form are from the mean gradient after two steps, relative."""
    errors = {}
    for name, kind in NEARLY_DENSE.items():
        bench, gradient = Bench(kind.config, place), gradients(place.rank, 1)
        if name == "powersgd, of its rank":
            gradient = _of_low_rank(place.rank)
        mean = gradient.clone()
        dist.all_reduce(mean, group=place.group)
        mean /= place.num_workers
        for given in (gradients(place.rank, 0) if name == "ef21" else gradient, gradient):
            bench.step(given, kind.level)
        errors[name] = float((bench.buffer.gradient - mean).abs().max() / mean.abs().max())
    return errors


def changing_rates(rank: int, num_workers: int) -> dict[str, Any]:
    """What becomes of the updates when the learning rate changes, in sparse steps and one at level 1, by kind."""
    place = Place(rank, num_workers)
    return {name: _at_changing_rates(kind, place) for name, kind in CORRECTED.items()}


def _at_changing_rates(kind: Kind, place: Place) -> dict[str, Any]:
    """What is lost after each step, and whether a bench that takes over before a change of the rate goes on alike."""
    bench, restored = Bench(kind.config, place), Bench(kind.config, place)
    lost, bits = [], []
    for step, rate in enumerate(RATES):
        given, at = gradients(place.rank, step), 1.0 if step == 6 and kind.level is not None else kind.level
        if step == 4:
            restored.load(bench.state())
        bench.step(given, at, rate=rate)
        lost.append(bench.lost())
        if step >= 4:
            restored.step(given, at, rate=rate)
            bits.append(
                [digest([each.buffer.gradient, *each.exchange.tensors().values()]) for each in (bench, restored)]
            )
    return {"lost": lost, "restored": all(one == other for one, other in bits)}


def changing_levels(rank: int, num_workers: int) -> dict[str, float]:
    """What is lost when the level rises to the highest and falls again, by kind."""
    lost = {}
    for name, kind in STEERED.items():
        assert kind.level is not None
        bench, high = Bench(kind.config, Place(rank, num_workers)), kind.level
        low = 1 if name == "powersgd" else high / 10
        for step, level in enumerate((low, low, 3 * low, high, low, low, high, low)):
            bench.step(gradients(rank, step), level)
        lost[name] = bench.lost()
    return lost


def averages(rank: int, num_workers: int) -> dict[str, Any]:
    """How far one step is from the mean gradient, and the mean of 32 steps, by kind; relative."""
    gradient, found = gradients(rank, 0), {}
    mean = gradient.clone()
    dist.all_reduce(mean)
    mean /= num_workers
    for name, kind in UNBIASED.items():
        bench, errors = Bench(kind.config, Place(rank, num_workers)), []
        for step in range(1, 33):
            bench.step(gradient, kind.level)
            error = bench.received / (num_workers * step) - mean
            errors.append(float(error.norm() / mean.norm()))
        found[name] = [errors[0], errors[-1]]
    return found


def _of_low_rank(rank: int) -> Tensor:
    """Return a gradient whose matrices have rank 1, so that the sum over four ranks has no more than 4."""
    generator = torch.Generator().manual_seed(rank)
    layers = [
        torch.randn(math.prod(shape[:1]), 1, generator=generator)
        * torch.randn(1, math.prod(shape[1:]), generator=generator)
        for shape in SHAPES
    ]
    return torch.cat([layer.flatten() for layer in layers])
