"""Select and scatter-add of the sparse exchange, as a ratio to a memory copy in the same run.

python benchmarks/exchange_kernels.py
"""

import statistics
import time
from collections.abc import Callable

import torch

from trainers.exchange.compressors.threshold import sampled_threshold
from trainers.exchange.kernels.sparse import scatter_add, select

RUNS, DENSITY = 15, 0.01


def milliseconds(act: Callable[[], object]) -> float:
    """Return the median wall time of `act`."""
    act()
    runs = []
    for _ in range(RUNS):
        started = time.perf_counter()
        act()
        runs.append(1e3 * (time.perf_counter() - started))
    return statistics.median(runs)


def measure(numel: int) -> dict[str, float]:
    """Return milliseconds of each kernel on `numel` entries."""
    values = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    out = torch.zeros_like(values)
    threshold = sampled_threshold(values, DENSITY)
    hits = select(values, threshold)
    sent = values[hits]
    return {
        "copy": milliseconds(lambda: out.copy_(values)),
        "sampled threshold": milliseconds(lambda: sampled_threshold(values, DENSITY)),
        "select": milliseconds(lambda: select(values, threshold)),
        "scatter-add": milliseconds(lambda: scatter_add(out, hits, sent)),
        "torch.topk": milliseconds(lambda: torch.topk(values.abs(), len(hits))),
    }


def main() -> None:
    torch.set_num_threads(1)
    print(f"density {DENSITY:.0%}, one thread, median of {RUNS}; in brackets: times a copy of the same size")
    for numel in (301_066, 5_000_000):
        times = measure(numel)
        columns = (f"{name} {time_ms:.2f} ms ({time_ms / times['copy']:.1f}x)" for name, time_ms in times.items())
        print(f"{numel:>9} entries: {', '.join(columns)}")


if __name__ == "__main__":
    main()
