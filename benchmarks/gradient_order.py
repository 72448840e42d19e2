"""Measure what a step saves whose gradients lie in the model's order, and not in that of its parameter groups.

    python benchmarks/gradient_order.py [--links 100 1000] [--exchanges none powersgd]

Two hosts train the races' transformer with AdamW, whose matrices decay and whose other parameters do not. A wrapper
that names the parameters group by group gives the other order. Both take turns in the same processes. Printed are the
medians of steps in milliseconds, and their ratio. Needs root and iproute2, else ends with 2.
"""

import argparse
import os
import statistics
import sys
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # namespaces have no name server, of which every connection warns

import torch
from races import network, ours, tasks
from torch import Tensor, nn

from trainers.segment import Segment
from trainers.training.replica import Replica

LINKS = ("10", "100", "1000", "unlimited")
EXCHANGES: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"},
    "fp16": {"kind": "fp16"},
    "powersgd": {"kind": "powersgd", "rank": 4},
    "threshold": {"kind": "threshold", "density": 0.01},
}
PORT = 29_611
#: Of each order; a turn's first step is not counted.
TURNS, STEPS = 5, 8
#: Longest that a host may take on a link with an exchange.
HOST_S = 600


class InGroups(nn.Module):
    """Names the parameters of `net` as they lie in its groups: matrices, then others."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.matrices, self.others = map(nn.ParameterList, divided(net))
        self.net = net

    def forward(self, text: Tensor) -> Tensor:
        scores: Tensor = self.net(text)
        return scores


class Decayed(tasks.Text):
    """The transformer, whose matrices alone decay; `in_groups` its parameters are named in the groups' order."""

    def __init__(self, *, in_groups: bool) -> None:
        super().__init__("5M", batch_size=8)
        self._in_groups = in_groups

    def model(self) -> nn.Module:
        return InGroups(super().model()) if self._in_groups else super().model()

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        matrices, others = divided(model)
        return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]


def divided(net: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters that decay, and the others."""
    parameters = list(net.parameters())
    return [each for each in parameters if each.dim() > 1], [each for each in parameters if each.dim() == 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", nargs="+", choices=LINKS, default=("100", "1000"))
    parser.add_argument("--exchanges", nargs="+", choices=EXCHANGES, default=("none", "powersgd"))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)  # of a host that this program has started
    given = parser.parse_args()
    if given.rank is not None:
        measure(given.rank, given.exchanges[0])
        return 0
    try:
        with network.made(2) as hosts:
            for link in given.links:
                hosts.limit(None if link == "unlimited" else float(link))
                for exchange in given.exchanges:
                    print(f"{link} Mbit/s, {exchange}: ", end="", flush=True)
                    hosts.run_on_each(sys.executable, __file__, "--exchanges", exchange, "--rank", timeout_s=HOST_S)
    except network.NoNetwork as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def measure(rank: int, exchange: str) -> None:
    """Print what a step takes in each order, as one host of two."""
    torch.set_num_threads(1)
    config = ours.configuration({"exchange": EXCHANGES[exchange]}, "transformer", seed=0)
    orders = (True, False)
    replicas = [Replica(config, rank, 2, device="cpu", workload=Decayed(in_groups=each)) for each in orders]
    steps: tuple[list[float], list[float]] = ([], [])
    exposed: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS):
        for index, replica in enumerate(replicas):
            replica.connect(f"tcp://{os.environ['MASTER_ADDR']}:{PORT + 2 * turn + index}", backend="gloo")
            replica.run(Segment(num_steps=1, learning_rate=1e-3))
            result = replica.run(Segment(num_steps=STEPS, learning_rate=1e-3))
            assert result.times is not None
            steps[index].extend(1e3 * each for each in result.step_seconds)
            exposed[index].append(1e3 * result.times.exposed / STEPS)
    replicas[-1].close()
    if rank == 0:
        (old, new), (waited, waits) = map(statistics.median, steps), map(statistics.median, exposed)
        print(f"{old:.0f} and {new:.0f} ms a step, {new / old:.2f}; waits {waited:.0f} and {waits:.0f} ms", flush=True)


if __name__ == "__main__":
    sys.exit(main())
