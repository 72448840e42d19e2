"""Scenarios of one rank whose exchange compresses both ways; each returns its findings as JSON."""

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from exchange_harness import Place, digest
from exchange_kinds import UNEVEN
from sync_harness import SHAPES, SyncBench
from sync_scenarios import RATES, SEGMENT, joined_replica, loss_of_the_mean, replicas_apart
from torch import Tensor

from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.methods.exchange.cser.spec import CserConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.dist_ef_sgd.spec import DistEfSgdConfig
from trainers.methods.exchange.doublesqueeze.spec import DoubleSqueezeConfig
from trainers.methods.exchange.liec_sgd.spec import LiecSgdConfig
from trainers.methods.optimizer.spec import OptimizerConfig, ScheduleFreeSgdConfig, SgdConfig
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.spec.two_way import DriftingConfig, TwoWayConfig
from trainers.traffic import cost

#: Entries that share a magnitude, at most: two to four ranks have several blocks each, and the last one is shorter.
BLOCK = 32
CSER_PERIOD, LIEC_PERIOD, MOMENTUM = 3, 4, 0.8
EXCHANGES: dict[str, TwoWayConfig] = {
    "doublesqueeze": DoubleSqueezeConfig(block=BLOCK),
    "blockwise, 4 bits": BlockwiseConfig(block=BLOCK, bits=4),
    "blockwise, 8 bits": BlockwiseConfig(block=BLOCK, bits=8),
    "dist_ef_sgd": DistEfSgdConfig(block=BLOCK),
    "dist_ef_sgd, momentum": DistEfSgdConfig(block=BLOCK, momentum=MOMENTUM),
    "cser": CserConfig(block=BLOCK, period=CSER_PERIOD),
    "liec_sgd": LiecSgdConfig(block=BLOCK, period=LIEC_PERIOD),
}
DRIFTING = [name for name, config in EXCHANGES.items() if isinstance(config, DriftingConfig)]
#: What replicas are asked to train with.
REPLICAS = ["dist_ef_sgd, momentum", "blockwise, 4 bits", *DRIFTING]


def two_way(rank: int, num_workers: int) -> dict[str, Any]:
    return trials(Place(rank, num_workers))


def two_way_of_two(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for the first two ranks. Nothing may follow it: the others do not wait."""
    group = dist.new_group([0, 1])
    return trials(Place(rank, 2, group)) if rank < 2 else {}


def two_way_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """Where ranks that share nodes of different sizes are after each step, and what they sent between nodes."""
    place = Place.on_nodes(rank, UNEVEN)
    return {name: _steps(place, config) for name, config in EXCHANGES.items()}


def two_way_replicas(rank: int, num_workers: int) -> dict[str, Any]:
    """Replicas that train on digits of their own, saved, evaluated and restored in the middle of a period."""
    optimizer = SgdConfig(momentum=0.0)
    return {name: replicas_apart(rank, num_workers, exchange=EXCHANGES[name], optimizer=optimizer) for name in REPLICAS}


def drifting_replicas_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """Where replicas on nodes of different sizes are evaluated that have drifted apart."""
    seen = {}
    for name in DRIFTING:
        parts = {"exchange": EXCHANGES[name], "optimizer": SgdConfig(momentum=0.0)}
        replica = joined_replica(rank, num_workers, nodes=UNEVEN, **parts)
        replica.run(SEGMENT)
        seen[name] = {"of the mean": loss_of_the_mean(replica), "evaluated": replica.evaluate().loss}
    return seen


def trials(place: Place) -> dict[str, Any]:
    return {
        "steps": {name: _steps(place, config) for name, config in EXCHANGES.items()},
        "restored": {name: _restored(place, config) for name, config in EXCHANGES.items()},
        "refused": {name: _refused(place, config) for name, config in EXCHANGES.items()},
        "from a server": _from_a_server(place, EXCHANGES["blockwise, 4 bits"]),
        "dense": _bench(place, NoneConfig()).run(RATES),
        "liec_sgd in every step": _bench(place, LiecSgdConfig(period=1)).run(RATES),
        "liec_sgd, schedule-free": _iterates(place, ScheduleFreeSgdConfig(warmup_steps=3)),
    }


def _iterates(place: Place, optimizer: OptimizerConfig) -> list[str]:
    """The bits of all that LIEC-SGD averages, after each step."""
    bench = SyncBench(EveryStepConfig(), place, exchange=EXCHANGES["liec_sgd"], optimizer=optimizer)
    bits = []
    for rate in RATES:
        bench.step(rate)
        bits.append(digest([tensor.detach() for tensor in bench.optimizer.iterate()]))
    return bits


def _bench(place: Place, exchange: ExchangeConfig) -> SyncBench:
    return SyncBench(EveryStepConfig(), place, exchange=exchange)


def _steps(place: Place, config: TwoWayConfig) -> list[dict[str, Any]]:
    """What each step started from, led to, left behind and sent, beside what was foreseen of it."""
    bench, seen = _bench(place, config), []
    num_nodes = len(bench.node_links.topology.nodes)
    for number, rate in enumerate(RATES, start=1):
        gradient = bench.problem.gradient(bench.x)
        bench.step(rate)
        left = bench.policy.exchange.tensors()
        seen.append(
            {
                "gradient": gradient.tolist(),
                "x": bench.x.tolist(),
                "bits": digest([bench.x]),
                "is_apart": bench.policy.is_apart,
                "left": {name: tensor.tolist() for name, tensor in left.items()},
                "sent": bench.node_links.between.ledger.take(),
                "foreseen": _foreseen(config, number, num_nodes),
            }
        )
    return seen


def _foreseen(config: TwoWayConfig, number: int, num_nodes: int) -> int:
    """Return the bytes of step `number`, from 1."""
    if isinstance(config, CserConfig | LiecSgdConfig) and number % config.period == 0:
        return config.meeting_traffic(SHAPES, num_workers=num_nodes).bytes
    return cost.step_traffic(SHAPES, num_workers=num_nodes, exchange=config).bytes


class State(NamedTuple):
    """A copy of all that a bench's training goes on from."""

    tensors: dict[str, Tensor]
    scalars: list[dict[str, Any]]
    parameters: list[Tensor]
    number: int

    @classmethod
    def of(cls, bench: SyncBench) -> "State":
        return cls(
            {name: tensor.clone() for name, tensor in bench.policy.exchange.tensors().items()},
            [part.scalars() for part in _parts(bench)],
            [parameter.detach().clone() for parameter in bench.parameters],
            bench.number,
        )

    def restore(self, bench: SyncBench) -> None:
        for name, tensor in bench.policy.exchange.tensors().items():
            tensor.copy_(self.tensors[name])
        for part, scalars in zip(_parts(bench), self.scalars, strict=True):
            part.load_scalars(scalars)
        with torch.no_grad():
            for parameter, saved in zip(bench.parameters, self.parameters, strict=True):
                parameter.copy_(saved)
        bench.number = self.number

    @property
    def bits(self) -> str:
        return digest([*self.tensors.values(), *self.parameters]) + repr(self.scalars)


def _parts(bench: SyncBench) -> list[Any]:
    """Return the exchange, and the policy where it has a state."""
    _, own = bench.policy.divide({})
    return [bench.policy.exchange, *own.values()]


def _restored(place: Place, config: TwoWayConfig) -> bool:
    """Whether training in the middle of a period goes on alike from a copy of the state, on this bench and another."""
    first, other = _bench(place, config), _bench(place, config)
    first.run(RATES[:6])
    state = State.of(first)
    expected = first.run(RATES[6:])
    for bench in (first, other):
        state.restore(bench)
    return [bench.run(RATES[6:]) for bench in (first, other)] == [expected] * 2


def _from_a_server(place: Place, config: TwoWayConfig) -> dict[str, list[float]]:
    """A step that is refused and one that counts, where a server has kept something, as a checkpoint may have it."""
    bench = _bench(place, config)
    server = bench.policy.gradients.tensors()["server.0"]
    server.copy_(torch.randn(len(server), generator=torch.Generator().manual_seed(place.rank)))
    told = {"kept": server.tolist(), "gradient": bench.problem.gradient(bench.x).tolist()}
    for bad in (math.nan, 0.0):
        bench.buffer.expect()
        bench.buffer.gradient.copy_(torch.tensor(told["gradient"]) + bad)
        bench.buffer.finish()
        bench.policy.gradients.step(torch.tensor(1.0), None, 0.1)
    left = {name: tensor.tolist() for name, tensor in bench.policy.gradients.tensors().items()}
    return told | {"got": bench.buffer.gradient.tolist(), "residual": left["residual"], "left": left["server.0"]}


def _refused(place: Place, config: TwoWayConfig) -> list[bool]:
    """Whether a gradient that is not finite on the last rank stopped all and left the state alone, before each step."""
    bench, told = _bench(place, config), []
    for bad in (math.inf, math.nan, math.inf, math.nan):
        before = State.of(bench).bits
        gradient = bench.problem.gradient(bench.x)
        if place.rank == place.num_workers - 1:
            gradient[7] = bad
        bench.buffer.expect()
        bench.buffer.gradient.copy_(gradient)
        bench.buffer.finish()
        outcome = bench.policy.gradients.step(torch.tensor(1.0), None, 0.1)
        told.append(outcome.diverged and State.of(bench).bits == before)
        bench.step(0.1)
    return told
