"""Measure what a step under DDP saves if gradients are exchanged while backward computes others.

    python benchmarks/overlap_under_ddp.py [--links 100]

A step with `overlap: true` and one with `overlap: false` take turns in the same processes, on two hosts that the cables
of the races connect. The model has 8.4 million parameters in eight layers. The backward of a layer waits for `LAYER_S`,
as for an accelerator that leaves the processor to the exchange. Prints medians of `TURNS` in seconds, and their ratio,
with DDP's own buckets of 25 MiB and with buckets of 4. Needs root and iproute2, else ends with 2.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import product
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

import torch
import torch.distributed as dist
from races import network
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainers.own_loop.attach import attach

PORT = 29_512
#: Of each; the first three are not counted, as DDP makes its buckets anew after the first.
TURNS = 8
#: Longest that a host may take on a link.
HOST_S = 900
WIDTH, NUM_LAYERS, ROWS = 1024, 8, 8
LAYER_S = 0.06
BUCKETS_MIB = (25, 4)
KINDS: dict[str, dict[str, Any]] = {
    "topk, 1 %": {"kind": "topk", "density": 0.01},
    "powersgd, rank 16": {"kind": "powersgd", "rank": 16},
    "qsgd": {"kind": "qsgd"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", type=float, default=[100], help="Mbit/s")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)  # of a host that this program has started
    given = parser.parse_args()
    if given.rank is not None:
        measure(given.rank)
        return 0
    return network.on_two_hosts(__file__, [f"{mbps:g}" for mbps in given.links], timeout_s=HOST_S)


def measure(rank: int) -> None:
    """Print what steps of each kind take, as one host of two."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{os.environ['MASTER_ADDR']}:{PORT}", rank=rank, world_size=2)
    for (name, exchange), bucket_mib in product(KINDS.items(), BUCKETS_MIB):
        steps = [step_of(rank, exchange | {"overlap": overlap}, bucket_mib) for overlap in (False, True)]
        times: list[list[float]] = [[], []]
        for _ in range(TURNS + 3):
            for own, step in zip(times, steps, strict=True):
                dist.barrier()
                started = time.monotonic()
                step()
                own.append(time.monotonic() - started)
        behind, beside = (statistics.median(each[3:]) for each in times)
        if rank == 0:
            print(
                f"  {name}, buckets of {bucket_mib} MiB: {behind:.2f} and {beside:.2f} s, {beside / behind:.2f}",
                flush=True,
            )
    dist.destroy_process_group()


class Layer(nn.Module):
    """A layer whose backward takes as long as on an accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.linear(rows).relu()
        outputs.register_hook(lambda _: time.sleep(LAYER_S))
        return outputs


def step_of(rank: int, exchange: dict[str, Any], bucket_mib: float) -> Callable[[], None]:
    """Return a step of training on one batch."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(Layer() for _ in range(NUM_LAYERS))), bucket_cap_mb=bucket_mib)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    attach(model, optimizer, exchange=exchange)
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(rank))

    def step() -> None:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    sys.exit(main())
