"""Compare the exchange's selection on a GPU with a copy of the same memory: the share of the copy's bandwidth.

    python benchmarks/kernels_gpu.py [--json FILE] [--numel N ...] [--rounds R]

A selection reads gradient and residual and writes the next residual, 12 bytes an element; a copy reads and writes, 8.
Anything else that the selection reads or writes counts as lost. The share is a median over rounds in which both take
turns, by the device's own clock. Sizes that do not fit into the device's memory are skipped, and named. Needs a GPU and
Triton, else ends with 2.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from trainers.exchange.kernels import operators
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.quantile import reached_by, strided

DENSITIES = (0.001, 0.01, 0.1)
COPY_BYTES, SELECT_BYTES = 8, 12
#: The share of a copy's bandwidth that is to be reached at a density of 1 %.
GOAL = 0.7


def seconds(act: Callable[[], object]) -> float:
    """Return how long the device takes for `act`."""
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    act()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3


def measure(numel: int, density: float, rounds: int) -> dict[str, float]:
    """Return the share, and both bandwidths in bytes per second."""
    gradient, residual = (torch.randn(numel, device="cuda") for _ in range(2))
    kept, room = torch.empty_like(gradient), Entries.room(round(1.25 * density * numel), numel, gradient.device)
    threshold = reached_by(strided(gradient) + strided(residual), density)

    def copy() -> object:
        return kept.copy_(gradient)

    def select() -> object:
        return operators.select(gradient, residual, threshold, next_residual=kept, room=room)

    for act in (copy, select):
        act()  # compiles
    pairs = [(COPY_BYTES * numel / seconds(copy), SELECT_BYTES * numel / seconds(select)) for _ in range(rounds)]
    return {
        "numel": numel,
        "density": density,
        "share": statistics.median(selecting / copying for copying, selecting in pairs),
        "copy_bytes_per_s": statistics.median(copying for copying, _ in pairs),
        "select_bytes_per_s": statistics.median(selecting for _, selecting in pairs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--numel", type=int, nargs="+", default=[25_000_000, 100_000_000, 300_000_000, 1_000_000_000])
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if not torch.cuda.is_available() or not operators.has_triton():
        print("NO GPU, OR NO TRITON, ON THIS MACHINE: nothing was measured", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}; goal at 1 %: {GOAL:.0%} of a copy's bandwidth")
    rows = []
    for numel in options.numel:
        try:
            rows += [measure(numel, density, options.rounds) for density in DENSITIES]
        except torch.cuda.OutOfMemoryError:
            print(f"{numel:>13,} elements: more than the device's memory holds")
            continue
        cells = (f"{row['density']:.1%}: {row['share']:.0%}" for row in rows[-len(DENSITIES) :])
        print(f"{numel:>13,} elements, a copy {rows[-1]['copy_bytes_per_s'] / 1e9:.0f} GB/s; {', '.join(cells)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
