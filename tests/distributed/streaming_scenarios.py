"""Ranks that average fragments one after the other, compared with ranks that average everything at once."""

from itertools import product
from typing import Any

import torch.distributed as dist
from exchange_harness import Place, digest
from sync_harness import Problem, SyncBench
from sync_scenarios import COMPRESSED, INNER, RATES

from trainers.methods.sync.diloco.spec import DiLoCoConfig
from trainers.methods.sync.streaming_diloco.spec import StreamingDiLoCoConfig

OUTER: dict[str, Any] = {"outer_learning_rate": 0.7, "outer_momentum": 0.6}
EXCHANGES = ("topk", "powersgd", "signsgd", "blockwise", "sparse_loco")
#: Steps that change nothing while an average travels, after one that does, in an interval of three.
STILL = [0.1, 0.0, 0.0] * 4


def streaming(rank: int, num_workers: int) -> dict[str, Any]:
    return _streaming(Place(rank, num_workers))


def streaming_pairs(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for pairs of the ranks."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, num_workers, 2)]
    return _streaming(Place(rank % 2, 2, groups[rank // 2]))


def _streaming(place: Place) -> dict[str, Any]:
    return {
        "whole": {f"{kind}, {inner}": _whole(place, kind, inner) for kind, inner in product(EXCHANGES, INNER)},
        "merged": {merge: _bench(place, merge=merge).run(STILL) for merge in ("add", "replace")},
        "own": [_bench(place, merge="mix", mix=1.0).run(RATES), _alone(place)],
        "sent": {fragments: _sent(place, fragments) for fragments in ("1", "2")},
        "billed": _billed(place),
        "anchors": _anchors(place),
        "stopped": _stopped(place),
        "resumed": {kind: _resumed(place, kind) for kind in EXCHANGES},
    }


def _bench(place: Place, **changes: Any) -> SyncBench:
    """A bench whose fragments take turns, each sent two steps before its average comes."""
    exchange = changes.pop("exchange", None)
    sync = StreamingDiLoCoConfig(**({"period": 6, "fragments": 2, "overlap_steps": 2} | OUTER | changes))
    return SyncBench(sync, place, exchange=exchange)


def _whole(place: Place, kind: str, inner: str) -> bool:
    """Whether one fragment that nobody trains beside goes where DiLoCo does, and keeps what it does."""
    exchange, level = COMPRESSED[kind]
    seen = []
    for sync in (
        DiLoCoConfig(period=3, **OUTER),
        StreamingDiLoCoConfig(period=3, fragments=1, overlap_steps=0, **OUTER),
    ):
        bench = SyncBench(sync, place, optimizer=INNER[inner], exchange=exchange)
        trace = bench.run(RATES, level=level)
        tensors = bench.state()[0]
        kept = bench.policy.exchange.tensors() or {
            name.removeprefix("0.exchange."): tensor for name, tensor in tensors.items() if ".exchange." in name
        }
        anchor = tensors.get("anchor", tensors.get("0.anchor"))
        seen.append((trace, anchor.tolist(), {name: tensor.tolist() for name, tensor in kept.items()}))
    return seen[0] == seen[1]


def _alone(place: Place) -> list[list[float]]:
    """Where this rank goes if it never meets another."""
    return SyncBench(DiLoCoConfig(period=100), place).run(RATES)


def _sent(place: Place, fragments: str) -> list[dict[str, int]]:
    """The bytes by purpose that each of twelve steps bills, two periods."""
    bench, sent = _bench(place, fragments=int(fragments)), []
    for _ in range(12):
        bench.step(0.1)
        sent.append(bench.node_links.between.ledger.take())
    bench.policy.settle()
    return sent


def _billed(place: Place) -> tuple[int, int]:
    """The bytes billed, and those sent, by four attempts from a state in whose middle an average travels."""
    bench = _bench(place, exchange=COMPRESSED["topk"][0])
    for _ in range(7):
        bench.step(0.1)
    state = bench.state()
    for _ in range(4):
        bench.load(state)
        for _ in range(3):  # takes the average that travels in the state, and launches another
            bench.step(0.1)
    bench.policy.settle()
    sent = sum(fragment._wires.between.ledger.total for fragment in bench.policy._fragments)
    return sum(bench.node_links.between.ledger.take().values()), sent


def _anchors(place: Place) -> list[str]:
    """Anchors and outer velocities after each step of compressed training."""
    bench, seen = _bench(place, exchange=COMPRESSED["blockwise"][0]), []
    for rate in RATES:
        bench.step(rate)
        tensors = bench.state()[0]
        seen.append(digest([tensors[f"{fragment}.{name}"] for fragment in (0, 1) for name in ("anchor", "velocity")]))
    return seen


def _stopped(place: Place) -> dict[str, Any]:
    """What is kept when an average is launched that the last rank's part of makes nothing finite, and when it comes."""
    bench = _bench(place, exchange=COMPRESSED["blockwise"][0])

    def kept() -> dict[str, list[float]]:
        names = ("anchor", "velocity", "exchange.residual")
        return {name: tensor.tolist() for name, tensor in bench.state()[0].items() if name.partition(".")[2] in names}

    bench.run([0.1] * 6)
    before = kept()
    if place.rank == place.num_workers - 1:
        bench.problem = Problem(bench.problem.curvature * float("nan"), bench.problem.optimum)
    told = [bench.step(0.1).diverged for _ in range(3)]
    return {"told": told, "before": before, "after": kept()}


def _resumed(place: Place, kind: str) -> dict[str, Any]:
    """What comes of training on from the middle of an average, and of going back there, on three benches.

    The first bench goes on, and then back. The others begin from that state, as it is or as earlier releases saved it.
    """
    exchange, level = COMPRESSED[kind]
    first, other, later = (_bench(place, exchange=exchange) for _ in range(3))
    for rate in RATES[:8]:
        first.step(rate, level=level)
    state = first.state()
    first.node_links.between.ledger.take()

    def rest(bench: SyncBench, start: tuple[Any, ...] | None) -> tuple[list[list[float]], dict[str, int]]:
        if start is not None:
            bench.load(start)
        return bench.run(RATES[8:], level=level), bench.node_links.between.ledger.take()

    whole, undone = rest(first, None), rest(first, state)
    resumed, undone_later = rest(other, state), rest(other, state)
    return {
        "travels": state[1]["arrived"] is not None,
        "alike": whole == resumed == rest(later, _as_earlier(state)),
        "undone": undone == undone_later and undone[0] == whole[0] and undone[1] != whole[1],
    }


def _as_earlier(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """The state as releases saved it that had the bytes in the report of an average."""
    tensors, scalars, *others = state
    unbilled = scalars["unbilled"]
    arrived = [*scalars["arrived"][:3], *unbilled, *scalars["arrived"][3:]]
    kept = {name: each for name, each in scalars.items() if name not in ("launched", "unbilled")}
    return tensors, kept | {"arrived": arrived}, *others
