"""Compare the exchange's CPU kernels with a copy of the same memory, and with torch.topk: one thread, one run.

    python benchmarks/kernels.py [--json FILE] [--numel N ...] [--rounds R]

A figure is a kernel's time divided by that of copying the gradient in the same round, as a median over the rounds. In
brackets: nanoseconds per element of the gradient. Times are processor times, and the kernels take turns, so other work
that slows the memory affects all alike.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from trainers.exchange.kernels import operators
from trainers.exchange.kernels.entries import Entries, Velocity
from trainers.exchange.kernels.pack import pack, sum_unpacked
from trainers.exchange.kernels.quantile import reached_by, strided
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.kernels.select import MomentumCorrection, select
from trainers.traffic.payload_layout import VALUE_BITS, PayloadLayout

DENSITIES = (0.001, 0.01, 0.1)
#: Ranks whose payloads are decoded.
RANKS = 4
COPY = "copy"
#: Multiples of a copy that are not to be passed at 5 million elements and a density of 1 %. Of the second, about 0.55
#: are for clearing the mean, 0.4 for the payloads.
GOALS = {"select": 2.0, f"clear and decode {RANKS} float32": 0.95, f"clear and decode {RANKS} float16": 0.95}
GOALS_HOLD_AT = (5_000_000, 0.01)

Act = Callable[[], object]


class Row(NamedTuple):
    numel: int
    density: float
    kernel: str
    copies: float  # time as a multiple of a copy's
    ns_per_element: float
    goal: float | None


def kernels(numel: int, density: float) -> dict[str, Act]:
    """Return what is measured, by name, in the order of a step."""
    g, e, v, kept, kept_too = (torch.randn(numel) for _ in range(5))
    room = partial(Entries.room, round(1.25 * density * numel), numel)
    correction, state, next_state = MomentumCorrection(0.9), Velocity(e, v), Velocity(kept, kept_too)
    threshold = reached_by(strided(g) + strided(e), density)
    velocity_threshold = reached_by(strided(v) + 0.9 * strided(e) + strided(g), density)
    acts: dict[str, Act] = {
        COPY: lambda: kept.copy_(g),
        "torch.topk": lambda: torch.topk(g.abs(), round(density * numel)),
        "sampled threshold": lambda: reached_by(strided(g) + strided(e), density),
        "select by torch operators": lambda: operators.select(g, e, threshold, next_residual=kept, room=room()),
        "select": lambda: select(g, e, threshold, next_residual=kept, room=room()),
        "select, momentum corrected": lambda: correction.select(
            g, state, velocity_threshold, next_state=next_state, room=room()
        ),
    }
    return acts | transport(numel, round(density * numel))


def transport(numel: int, count: int) -> dict[str, Act]:
    """Return what carries `count` entries of each rank to the others, by name."""
    mean = torch.empty(numel)
    ranks = [Entries(torch.randperm(numel)[:count].sort().values.int(), torch.randn(count)) for _ in range(RANKS)]
    acts: dict[str, Act] = {
        "clear the mean": mean.zero_,
        f"scatter-add {RANKS}": partial(add, mean, ranks),
    }
    for values in VALUE_BITS:
        layout = PayloadLayout(numel, count, values)
        payloads = torch.empty(RANKS, layout.num_bytes, dtype=torch.uint8)
        for entries, payload in zip(ranks, payloads, strict=True):
            pack(entries, layout, payload)
        acts[f"clear and decode {RANKS} {values}"] = partial(sum_unpacked, payloads, layout, mean, scale=1 / RANKS)
        acts[f"pack {values}"] = partial(pack, ranks[0], layout, payloads[0])
    return acts


def add(mean: Tensor, ranks: list[Entries]) -> None:
    for entries in ranks:
        scatter_add(mean, entries, 1 / RANKS)


def measure(numel: int, density: float, rounds: int) -> list[Row]:
    acts = kernels(numel, density)
    seconds: dict[str, list[float]] = {name: [] for name in acts}
    for act in acts.values():
        act()  # compiles
    for _ in range(rounds):
        for name, act in acts.items():
            started = time.thread_time()
            act()
            seconds[name].append(time.thread_time() - started)
    goals = GOALS if (numel, density) == GOALS_HOLD_AT else {}
    return [
        Row(
            numel,
            density,
            name,
            statistics.median(own / copy for own, copy in zip(times, seconds[COPY], strict=True)),
            1e9 * statistics.median(times) / numel,
            goals.get(name),
        )
        for name, times in seconds.items()
    ]


def told(rows: list[Row]) -> str:
    """Return a table of one size: kernels in rows, densities in columns."""
    lines = [f"{rows[0].numel:,} elements".ljust(30) + "".join(f"{density:>20.1%}" for density in DENSITIES)]
    for kernel in dict.fromkeys(row.kernel for row in rows):
        own = [row for row in rows if row.kernel == kernel]
        cells = (f"{row.copies:6.2f} ({row.ns_per_element:6.2f} ns)" for row in own)
        goals = (f"   goal at {row.density:.0%}: {row.goal}" for row in own if row.goal is not None)
        lines.append(kernel.ljust(30) + "".join(f"{cell:>20}" for cell in cells) + "".join(goals))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--numel", type=int, nargs="+", default=[1_000_000, 5_000_000, 25_000_000])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"multiples of a copy, medians of {options.rounds} rounds; load {os.getloadavg()[0]:.1f}")
    rows: list[Row] = []
    for numel in options.numel:
        of_size = [row for density in DENSITIES for row in measure(numel, density, options.rounds)]
        print(told(of_size), flush=True)
        rows += of_size
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
