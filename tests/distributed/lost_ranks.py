"""The ranks' view of an exchange when one of them falls silent, or dies in the middle of it."""

import itertools
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from exchange_harness import Bench, Place, digest, gradients

from tests.support.patience import crowd
from trainers.exchange.connection import PeerLost
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.gtopk.spec import GTopKConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.qsgd.spec import QsgdConfig
from trainers.methods.exchange.randomk.spec import RandomKConfig
from trainers.methods.exchange.topk.spec import TopKConfig

#: Kinds that use every collective there is, and in every order, with the level to use.
PATTERNS: dict[str, tuple[ExchangeConfig, float | None]] = {
    "all-reduce": (NoneConfig(), None),
    "all-reduce of a selection": (RandomKConfig(density=0.1), 0.1),
    "all-reduces of factors": (PowerSgdConfig(rank=2), 2),
    "all-gather of entries": (TopKConfig(density=0.1, aggregate="gather"), 0.1),
    "all-gather of codes": (QsgdConfig(), None),
    "all-to-all": (TopKConfig(density=0.1, aggregate="sharded"), 0.1),
    "tree": (GTopKConfig(density=0.1), 0.1),
}
#: How long a rank waits for its peers in a collective.
TIMEOUT_S = 2.0 * crowd()


def silent_rank(rank: int, num_workers: int) -> dict[str, Any]:
    """The last rank takes no part."""
    benches = _benches(rank, num_workers)
    found = {} if rank == num_workers - 1 else _all_until_lost(benches)
    dist.barrier()
    return found


def dead_rank(rank: int, num_workers: int) -> dict[str, Any]:
    """The last rank dies while all exchanges are on their way."""
    benches = _benches(rank, num_workers)
    for name, bench in benches.items():
        bench.step(gradients(rank, 0), PATTERNS[name][1])
    if rank < num_workers - 1:
        return _all_until_lost(benches)
    with ThreadPoolExecutor(len(benches)) as pool:
        pool.map(_until_lost, benches, benches.values())
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process does not outlive SIGKILL")


def _benches(rank: int, num_workers: int) -> dict[str, Bench]:
    """Return one for each pattern, in a group of its own."""
    return {
        name: Bench(config, Place(rank, num_workers, dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))))
        for name, (config, _) in PATTERNS.items()
    }


def _all_until_lost(benches: dict[str, Bench]) -> dict[str, Any]:
    with ThreadPoolExecutor(len(benches)) as pool:
        return dict(zip(benches, pool.map(_until_lost, benches, benches.values()), strict=True))


def _until_lost(name: str, bench: Bench) -> dict[str, Any]:
    """Take steps until one raises PeerLost; returns how long after the timeout, and what it left of the state."""
    for step in itertools.count(1):
        before, started = bench.state(), time.monotonic()
        try:
            bench.step(gradients(bench.place.rank, step), PATTERNS[name][1])
        except PeerLost as lost:
            after = bench.state()
            kept = digest(list(after[0].values())) == digest(list(before[0].values())) and after[1] == before[1]
            seconds = time.monotonic() - started - TIMEOUT_S
            return {"seconds late": seconds, "told": str(lost), "state kept": kept}
    raise AssertionError("counting does not end")
