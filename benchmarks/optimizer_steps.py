"""Measure a step of each optimizer, and compare it with a gradient of the same model.

    python benchmarks/optimizer_steps.py

Prints medians over `STEPS` of processor seconds on one core. The models are those of the race on limited links, with
the gradients of one host's batches. Torch's plain AdamW is included as well as ours, which is torch's fused one.
"""

import os
import statistics
import time
from collections.abc import Callable

os.environ["OMP_NUM_THREADS"] = "1"  # before torch

import torch
from races import tasks

from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.spec import (
    AdamWConfig,
    MuonConfig,
    OptimizerConfig,
    ScheduleFreeAdamWConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
)

TASKS = ("images", "text", "residual-net", "one-large-layer", "transformer")
CONFIGS: tuple[OptimizerConfig, ...] = (
    SgdConfig(), ScheduleFreeSgdConfig(), AdamWConfig(), ScheduleFreeAdamWConfig(), MuonConfig(),
)  # fmt: skip
STEPS = 9


def milliseconds(act: Callable[[], object]) -> float:
    """Return the median time of an act, of which the first two are not counted."""
    times = []
    for _ in range(STEPS + 2):
        started = time.process_time()
        act()
        times.append(1e3 * (time.process_time() - started))
    return statistics.median(times[2:])


def row(task: str) -> list[float]:
    """Return the milliseconds of a gradient, of each optimizer's step, and of torch's plain AdamW's."""
    workload = tasks.build(task)
    torch.manual_seed(0)
    model = workload.model()
    batch = next(workload.training.batches(seed=0, start_step=0, rank=0, num_workers=2))
    gradient = milliseconds(lambda: workload.loss(model, batch).backward())
    built = [optimizers.build(config, workload, model) for config in CONFIGS]
    for each in built:
        each.set_learning_rate(1e-6, 0)
    steps = [milliseconds(lambda each=each: each.step(1.0)) for each in built]
    return [gradient, *steps, milliseconds(torch.optim.AdamW(model.parameters(), lr=1e-6).step)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| task | gradient | " + " | ".join(f"`{each.kind}`" for each in CONFIGS) + " | torch's plain AdamW |")
    print("| --- " * (len(CONFIGS) + 3) + "|")
    for task in TASKS:
        print(f"| `{task}` | " + " | ".join(f"{each:.3g}" for each in row(task)) + " |", flush=True)
