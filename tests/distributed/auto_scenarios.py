"""Scenarios of one rank in a real group whose exchange changes between steps; each returns its findings as JSON."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exchange_harness import Place, digest
from exchange_kinds import UNEVEN
from sync_harness import SHAPES, D, Problem, SyncBench
from sync_scenarios import write_checkpoint

from trainers.exchange.step_result import Exchanged
from trainers.methods.exchange.auto.spec import AutoConfig, JobExchange, Option, mean_traffic
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.methods.exchange.dense.spec import Fp16Config, NoneConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import (
    AdamWConfig,
    MuonConfig,
    OptimizerConfig,
    ScheduleFreeAdamWConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
)
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.spec import SyncConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp
from trainers.training.replica import Replica

RATE = 0.05
#: What each option is when nothing changes.
PLAIN: dict[str, tuple[JobExchange, SyncConfig]] = {
    "none": (NoneConfig(), EveryStepConfig()),
    "fp16": (Fp16Config(), EveryStepConfig()),
    "threshold 0.1": (ThresholdConfig(density=0.1), EveryStepConfig()),
    "powersgd 2": (PowerSgdConfig(rank=2), EveryStepConfig()),
    "local_sgd 3": (NoneConfig(), LocalSgdConfig(period=3)),
    "local_sgd 3 blockwise": (BlockwiseConfig(), LocalSgdConfig(period=3)),
    "local_sgd 3 sparse_loco": (SparseLoCoConfig(), LocalSgdConfig(period=3)),
}
AUTO = AutoConfig(options=(*PLAIN, "powersgd 1"))
#: Every change there is between those that lose nothing, and at the end all that is left. Under local updates, and from
#: one of them to the next, ranks meet once: a memory that fades has lost nothing by then.
CHANGES = [
    "none", "threshold 0.1", "powersgd 1", "local_sgd 3", "threshold 0.1", "none", "powersgd 1", "threshold 0.1",
    "local_sgd 3", "powersgd 1", "none", "local_sgd 3", "none", "local_sgd 3 blockwise", "none",
    "local_sgd 3 sparse_loco", "powersgd 1", "local_sgd 3", "local_sgd 3 sparse_loco", "local_sgd 3 blockwise",
    "local_sgd 3", "none", "local_sgd 3 blockwise", "local_sgd 3 sparse_loco", "threshold 0.1", "none",
]  # fmt: skip
#: Those whose state is averaged, and what of it.
STATES: dict[str, OptimizerConfig] = {
    "momentum": SgdConfig(),
    "moments": AdamWConfig(),
    "both": MuonConfig(),
    "schedule-free": ScheduleFreeSgdConfig(),
    "schedule-free moments": ScheduleFreeAdamWConfig(),
}
ON_NODES = AutoConfig(options=("none", "threshold 0.1", "powersgd 1"))
REPLICA_RUN = [
    "threshold 0.01",
    "local_sgd 4",
    "local_sgd 2 blockwise",
    "local_sgd 2 sparse_loco",
    "powersgd 1",
    "none",
]


class AutoBench(SyncBench):
    """Counts the gradients that went in, in the mean over the ranks."""

    def __init__(
        self,
        place: Place,
        config: AutoConfig = AUTO,
        momentum: float = 0.0,
        optimizer: OptimizerConfig | None = None,
    ) -> None:
        optimizer = optimizer or SgdConfig(momentum=momentum)
        super().__init__(EveryStepConfig(), place, optimizer=optimizer, exchange=config)
        self.given = torch.zeros(D, dtype=torch.float64)

    def take(self, option: str, num_steps: int = 1) -> Exchanged:
        """Take steps by `option`, and return what is known of the last one."""
        self.policy.use(option)
        for _ in range(num_steps):
            self.given += self.problem.gradient(self.x).double()
            outcome = self.step(RATE)
        return outcome

    def lost(self) -> float:
        """Return the largest entry that neither moved the mean parameters nor waits for it; collective.

        Relative to the largest that was given.
        """
        sums = torch.stack([self.given, self.x.double()]) / self.node_links.topology.num_workers
        self.node_links.all_reduce_sum(sums, {"control": sums.nbytes})
        given, x = sums
        return float((given + x / RATE).abs().max() / given.abs().max())  # it began at 0


def auto(rank: int, num_workers: int) -> dict[str, Any]:
    return _auto(Place(rank, num_workers)) | {"resumed": _resumed(rank, num_workers)}


def auto_of_two(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for the first two ranks. Nothing may follow it: the others do not wait."""
    group = dist.new_group([0, 1])
    return _auto(Place(rank, 2, group)) if rank < 2 else {}


def auto_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """Changes between ranks that share nodes of different sizes."""
    bench = AutoBench(Place.on_nodes(rank, UNEVEN), ON_NODES)
    for option in (each for each in CHANGES if not each.startswith("local_sgd")):
        bench.take(option, 3)
    return {"lost": bench.lost(), "x": bench.x.tolist()}


def _auto(place: Place) -> dict[str, Any]:
    bench, lost = AutoBench(place), []
    for option in CHANGES:
        bench.take(option, 4)  # the last round of local updates is cut short
        if option == "none":
            lost.append(bench.lost())
    return {
        "lost": lost,
        "x": bench.x.tolist(),
        "unchanged": {option: _unchanged(place, option) for option in PLAIN},
        "sent": {option: _sent(place, Option.parse(option)) for option in PLAIN},
        "stopped": _stopped(place),
        "with momentum": _with_momentum(place),
        "agreed": {name: _agreed(place, optimizer) for name, optimizer in STATES.items()},
    }


def _unchanged(place: Place, option: str) -> list[list[list[float]]]:
    """Return where 9 steps by `option` lead, and by the kind itself."""
    exchange, sync = PLAIN[option]
    mine, plain = AutoBench(place, momentum=0.9), SyncBench(sync, place, optimizer=SgdConfig(), exchange=exchange)
    traces: list[list[list[float]]] = [[], []]
    for _ in range(9):
        mine.take(option)
        plain.step(RATE)
        traces = [[*trace, bench.x.tolist()] for trace, bench in zip(traces, (mine, plain), strict=True)]
    return traces


def _sent(place: Place, option: Option) -> list[float]:
    """Return the bytes of a step on average, over two rounds of local updates, and what was foreseen."""
    bench, num_steps = AutoBench(place), 6
    bench.take(option.name, 3)  # in the first of which ranks agree on a threshold, or on scales
    bench.node_links.between.ledger.take()
    bench.take(option.name, num_steps)
    sent = sum(bench.node_links.between.ledger.take().values())
    foreseen = mean_traffic(option, SHAPES, num_workers=place.num_workers, like=AUTO)
    return [sent / num_steps, foreseen.bytes]


def _stopped(place: Place) -> dict[str, Any]:
    """A gradient that is not finite on the last rank, in the first step after a change."""
    bench = AutoBench(place)
    bench.take("threshold 0.1", 3)
    bench.policy.use("none")
    before, good = bench.policy.exchange.tensors()["carried"].clone(), bench.problem
    if place.rank == place.num_workers - 1:
        bench.problem = Problem(good.curvature * float("nan"), good.optimum)
    x, given = bench.x.clone(), bench.given.clone()
    diverged = bench.take("none").diverged
    is_kept = torch.equal(before, bench.policy.exchange.tensors()["carried"])
    torch.nn.utils.vector_to_parameters(x, bench.parameters)  # as a replica leaves them
    bench.problem, bench.given = good, given
    bench.take("none")
    return {"diverged": diverged, "kept": is_kept, "lost": bench.lost()}


def _with_momentum(place: Place) -> list[list[float]]:
    """Return where momentum leads through local updates and out of them, in rounds of one step, and without them."""
    changing, plain = AutoBench(place, momentum=0.9), AutoBench(place, momentum=0.9)
    for option in ("none", "local_sgd 3", "none", "local_sgd 3", "none"):
        changing.take(option)
        plain.take("none")
    return [changing.x.tolist(), plain.x.tolist()]


def _agreed(place: Place, optimizer: OptimizerConfig) -> dict[str, float]:
    """Return how far apart ranks are after local updates, and how far from their means once they have agreed."""
    bench = AutoBench(place, optimizer=optimizer)
    bench.take("none")
    bench.take("local_sgd 3", 4)
    before, mean = _held(bench), _held(bench) / place.num_workers
    bench.node_links.all_reduce_sum(mean, {"control": mean.nbytes})
    bench.policy.use("none")
    return {
        "apart": float((before - mean).abs().max() / mean.abs().max()),
        "off": float((_held(bench) - mean).abs().max() / mean.abs().max()),
    }


def _held(bench: AutoBench) -> torch.Tensor:
    """Return the parameters and all that the optimizer keeps of them."""
    state = [tensor for tensor in bench.optimizer.tensors().values() if tensor.ndim]
    return torch.cat([tensor.detach().double().flatten() for tensor in (*bench.parameters, *state)])


def _resumed(rank: int, num_workers: int) -> dict[str, list[list[str]]]:
    """Where a replica gets right after a change of option, and another one that goes on from its checkpoint there."""
    found: dict[str, list[list[str]]] = {}
    for name in ("momentum", "moments", "schedule-free"):
        options = AutoConfig(options=tuple(REPLICA_RUN))
        config = ReplicaConfig(workload=DigitsMlp(), optimizer=STATES[name], exchange=options)
        first, second = (_joined(config, rank, num_workers) for _ in range(2))
        found[name] = []
        for number, pair in enumerate(pairwise(REPLICA_RUN)):
            before, after = (Segment(num_steps=3, learning_rate=0.01, option=option) for option in pair)
            first.run(before)
            saved = f"{Path.cwd()}/auto-{name}-{number}"
            write_checkpoint(first, saved)
            second.load(saved)
            found[name].append([_ends(replica, after) for replica in (first, second)])
    return found


def _ends(replica: Replica, segment: Segment) -> str:
    """Return a hash of where the segment leads."""
    replica.run(segment)
    return digest(list(replica.model.parameters()))


def _joined(config: ReplicaConfig, rank: int, num_workers: int) -> Replica:
    replica = Replica(config, rank, num_workers, device="cpu")
    replica._node_links.join()
    return replica
