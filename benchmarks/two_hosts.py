"""Measure what two hosts save if they send each other everything, instead of exchanging via owners or a ring.

    python benchmarks/two_hosts.py [--links 10 100 1000 unlimited]

Both ways take turns in the same processes, over the cables of the races on limited links. Prints the medians of `TURNS`
in milliseconds, and their ratio. Needs root and iproute2, else ends with 2.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

os.environ["OMP_NUM_THREADS"] = "1"  # before torch
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

import torch
import torch.distributed as dist
from races import network

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.methods import build
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.spec.workloads import StdlibLm
from trainers.traffic import collectives
from trainers.traffic.shapes import parameter_shapes

LINKS = ("10", "100", "1000", "unlimited")
PORT = 29_511
#: Of each way; the first two are not counted.
TURNS = 40
#: Between two of them, as hosts compute between two exchanges.
PAUSE_S = 0.02
#: Longest that a host may take on a link.
HOST_S = 600
#: Both iterates of Schedule-Free on the text task of the races.
NUM_AVERAGED = 408_000
TEXT = parameter_shapes(StdlibLm()) or ()
Act = Callable[[], object]


class ByOwners(BlockwiseConfig):
    """As three hosts and more send."""

    def has_server(self, num_workers: int) -> bool:
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", choices=LINKS, default=LINKS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)  # of a host that this program has started
    given = parser.parse_args()
    if given.rank is not None:
        measure(given.rank)
        return 0
    return network.on_two_hosts(__file__, given.links, timeout_s=HOST_S)


def measure(rank: int) -> None:
    """Print what each way takes, as one host of two."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{os.environ['MASTER_ADDR']}:{PORT}", rank=rank, world_size=2)
    for name, before, after in ways(rank):
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURNS + 2):
            for own, act in zip(times, (before, after), strict=True):
                dist.barrier()
                time.sleep(PAUSE_S)
                dist.barrier()
                started = time.monotonic()
                act()
                own.append(1e3 * (time.monotonic() - started))
        old, new = (statistics.median(each[2:]) for each in times)
        if rank == 0:
            print(f"  {name}: {old:.2f} and {new:.2f} ms, {new / old:.2f}", flush=True)
    dist.destroy_process_group()


def ways(rank: int) -> Iterator[tuple[str, Act, Act]]:
    """Yield what is sent, and how it is sent before and now."""
    shapes = ((NUM_AVERAGED,),)
    yield "integers of 4 bits, an average", step_of(rank, ByOwners(), shapes), step_of(rank, BlockwiseConfig(), shapes)
    step = step_of(rank, PowerSgdConfig(rank=4), TEXT)
    yield "PowerSGD of rank 4, a step", in_a_ring(step), step
    word, connection = torch.zeros(1), Connection(2, Unpaced(), Ledger())

    def sum_up() -> None:
        connection.all_reduce_sum(word, {"control": word.nbytes})

    yield "one number, summed", in_a_ring(sum_up), sum_up


def step_of(rank: int, config: ExchangeConfig, shapes: Sequence[tuple[int, ...]]) -> Act:
    """Return a step of an exchange, of a gradient that is always the same."""
    buffer = GradientBuffer(list(shapes), config, torch.device("cpu"))
    exchange = build.exchange(config, buffer, Connection(2, Unpaced(), Ledger()))
    gradient = torch.randn(buffer.num_elements, generator=torch.Generator().manual_seed(rank))

    def act() -> None:
        buffer.gradient.copy_(gradient)
        buffer.expect()
        buffer.finish()
        exchange.step(torch.tensor(1.0), None, 0.1)

    return act


def in_a_ring(act: Act) -> Act:
    def ring() -> None:
        most, collectives.SWAP_BYTES = collectives.SWAP_BYTES, 0
        act()
        collectives.SWAP_BYTES = most

    return ring


if __name__ == "__main__":
    sys.exit(main())
